"""Reads any range of a weight, in the exported type, chunk by chunk; adds a LoRA product on the way.

A chunk is 4 MiB of fp32, so a reader's memory does not depend on the size of the tensor; only a tensor saved in
another memory order (a transposed view) is read whole.
"""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from zerotune.checkpointing.element_types import convert, count_overflow, item_bytes
from zerotune.checkpointing.shard_plan import Slot
from zerotune.checkpointing.weights import Piece, SourceTensor
from zerotune.errors import UsageError

CHUNK_ELEMENTS = 1 << 20
MAX_OPEN_FILES = 256


class RangeReader:
    """Reads byte ranges of many files from many threads; keeps up to MAX_OPEN_FILES of them open."""

    def __init__(self):
        self._lock = threading.Lock()
        self._descriptors: dict[Path, int] = {}

    def read(self, path: Path, offset: int, num_bytes: int) -> np.ndarray:
        """Exactly `num_bytes` from byte `offset`, as [num_bytes] uint8."""
        data = np.empty(num_bytes, np.uint8)
        descriptor, keep = self._open(path)
        try:
            done = 0
            while done < num_bytes:
                got = os.preadv(descriptor, [memoryview(data)[done:]], offset + done)
                if not got:
                    raise UsageError(f"{path}: truncated, {offset + num_bytes:,} bytes were expected.")
                done += got
        finally:
            if not keep:
                os.close(descriptor)
        return data

    def _open(self, path: Path) -> tuple[int, bool]:
        with self._lock:
            if path not in self._descriptors:
                descriptor = os.open(path, os.O_RDONLY)
                if len(self._descriptors) >= MAX_OPEN_FILES:
                    return descriptor, False
                self._descriptors[path] = descriptor
            return self._descriptors[path], True

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def converted_chunks(reader: RangeReader, slot: Slot, first: int, last: int) -> Iterator[tuple[int, np.ndarray, int]]:
    """Elements [first, last) of a tensor in its exported type.

    Yields:
        (index of the chunk's first element, its bytes [n] uint8, values too large for the exported type)
    """
    if slot.source.strided:
        raw = _read_strided(reader, slot)
        size = item_bytes(slot.source.dtype)
        yield first, convert(raw[first * size : last * size], slot.source.dtype, slot.dtype), 0
        return
    if slot.source.delta:
        yield from _merged_chunks(reader, slot, first, last)
        return
    start = 0
    for piece in slot.source.pieces:
        begin, end = max(first - start, 0), min(last - start, piece.num_elements)
        for at in range(begin, end, CHUNK_ELEMENTS):
            raw = _read_piece(reader, piece, at, min(at + CHUNK_ELEMENTS, end))
            out = convert(raw, piece.dtype, slot.dtype)
            yield start + at, out, count_overflow(raw, out, piece.dtype, slot.dtype)
        start += piece.num_elements


def _read_piece(reader: RangeReader, piece: Piece, first: int, last: int) -> np.ndarray:
    size = item_bytes(piece.dtype)
    return reader.read(piece.path, piece.offset + first * size, (last - first) * size)


def _read_strided(reader: RangeReader, slot: Slot) -> np.ndarray:
    """A tensor saved in another memory order (a transposed view), made row-major: [all bytes] uint8."""
    stored = slot.source.strided
    size = item_bytes(stored.dtype)
    reach = 1 + sum((n - 1) * step for n, step in zip(stored.shape, stored.stride, strict=True))
    raw = reader.read(stored.path, stored.offset, reach * size)
    strides = [step * size for step in stored.stride] + [1]
    view = np.lib.stride_tricks.as_strided(raw, (*stored.shape, size), strides)
    return np.ascontiguousarray(view).reshape(-1)


def _merged_chunks(reader: RangeReader, slot: Slot, first: int, last: int) -> Iterator[tuple[int, np.ndarray, int]]:
    """Blocks of whole rows on a fixed grid, so that a value never depends on which range was asked for: BLAS rounds
    differently for different shapes."""
    rows, columns = slot.source.shape
    step = max(1, CHUNK_ELEMENTS // columns)
    delta = slot.source.delta
    plain = replace(slot, source=replace(slot.source, delta=None), dtype="F32")
    down = _matrix(reader, delta.down, 0, delta.down.shape[0])
    for row in range(first // columns // step * step, rows, step):
        begin, end = row * columns, min(row + step, rows) * columns
        if begin >= last:
            return
        base = np.concatenate([data for _, data, _ in converted_chunks(reader, plain, begin, end)]).view(np.float32)
        up = _matrix(reader, delta.up, row, min(row + step, rows))
        summed = (base.reshape(-1, columns) + np.float32(delta.scale) * (up @ down)).reshape(-1)
        wanted = summed[max(first - begin, 0) : min(last, end) - begin].view(np.uint8)
        out = convert(wanted, "F32", slot.dtype)
        yield max(first, begin), out, count_overflow(wanted, out, "F32", slot.dtype)


def _matrix(reader: RangeReader, source: SourceTensor, first_row: int, last_row: int) -> np.ndarray:
    """Rows of a small two-dimensional weight: [rows, columns] float32."""
    columns = source.shape[1]
    slot = Slot(source.name, source, "F32", 0)
    chunks = [data for _, data, _ in converted_chunks(reader, slot, first_row * columns, last_row * columns)]
    return np.concatenate(chunks).view(np.float32).reshape(-1, columns)
