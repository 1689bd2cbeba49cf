"""Token segments -> blocks of one length, by best-fit decreasing.

An example longer than a block is cut into whole blocks and a remainder when it is plain text (nothing is lost), and
dropped otherwise (half an answer teaches the wrong end). Segments in a block keep apart by their positions, which
restart at 0; the unused tail is a segment of its own whose labels are ignored.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np


@dataclass
class Segment:
    """A run of tokens that attend to each other: rows [start, start + length) of example `example`."""

    example: int
    start: int
    length: int


def cut(lengths: list[int], block: int, splittable: bool) -> list[Segment]:
    """Cut examples into segments of at most `block` tokens; segments of one token teach nothing and are left out."""
    segments = []
    for example, length in enumerate(lengths):
        if length > block and not splittable:
            continue
        for start in range(0, length, block):
            size = min(block, length - start)
            if size > 1:
                segments.append(Segment(example, start, size))
    return segments


def best_fit(segments: list[Segment], block: int) -> list[list[Segment]]:
    """Pack segments into blocks, longest first, each into the fullest block that still has room.

    Ties keep the order of `segments`, so the result depends on the input alone.
    """
    blocks: list[list[Segment]] = []
    room_left: list[int] = []  # sorted sizes of free room that occur
    by_room: dict[int, list[int]] = {}
    for segment in sorted(segments, key=lambda one: -one.length):
        at = bisect.bisect_left(room_left, segment.length)
        if at == len(room_left):
            blocks.append([])
            index, room = len(blocks) - 1, block
        else:
            room = room_left[at]
            index = by_room[room].pop()
            if not by_room[room]:
                del by_room[room]
                room_left.pop(at)
        blocks[index].append(segment)
        room -= segment.length
        if room > 1:
            if room not in by_room:
                by_room[room] = []
                bisect.insort(room_left, room)
            by_room[room].append(index)
    return blocks


def fill_block(segments: list[tuple[np.ndarray, np.ndarray]], block: int, pad_id: int) -> dict[str, np.ndarray]:
    """Lay segments (ids, labels) one after the other into arrays of length `block`.

    Returns:
        input_ids [block], labels [block], position_ids [block] (restart at each segment), real_tokens (scalar).
        The first label of a segment is ignored: nothing of its own stands before it to predict it from.
    """
    input_ids = np.full(block, pad_id, dtype=np.int64)
    labels = np.full(block, -100, dtype=np.int64)
    position_ids = np.zeros(block, dtype=np.int64)
    at = 0
    for ids, wanted in segments:
        stop = at + len(ids)
        input_ids[at:stop] = ids
        labels[at + 1 : stop] = wanted[1:]
        position_ids[at:stop] = np.arange(len(ids))
        at = stop
    position_ids[at:] = np.arange(block - at)
    return {"input_ids": input_ids, "labels": labels, "position_ids": position_ids, "real_tokens": at}
