"""Checks of the written files against the checkpoint: headers by the safetensors library, samples of every tensor."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from zerotune.checkpointing.element_types import item_bytes
from zerotune.checkpointing.shard_plan import Shard, Slot
from zerotune.checkpointing.weight_reader import RangeReader, converted_chunks

SAMPLE_ELEMENTS = 1024
SAMPLES = 3


class ExportDamaged(Exception):
    """A written file does not hold what was to be written: failing hardware, or a bug of ours."""


def check_written(folder: Path, shards: list[Shard]) -> None:
    """Re-read every shard.

    Raises:
        ExportDamaged: a header is refused or differs, or a sampled value differs from the checkpoint's.
    """
    reader = RangeReader()
    for shard in shards:
        path = folder / shard.filename
        _check_header(path, shard)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            for slot in shard.slots:
                _check_samples(reader, path, descriptor, len(shard.header), slot)
        finally:
            os.close(descriptor)
    reader.close()


def _check_header(path: Path, shard: Shard) -> None:
    """By a reader that is not ours: the one transformers uses."""
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {name: file.get_slice(name) for name in list(file.keys())}
            found = {name: (part.get_dtype(), part.get_shape()) for name, part in slices.items()}
    except SafetensorError as error:
        raise ExportDamaged(f"{path}: the safetensors library refuses it: {error}") from error
    expected = {slot.name: (slot.dtype, list(slot.source.shape)) for slot in shard.slots}
    if found != expected:
        raise ExportDamaged(f"{path}: its header names other tensors than were to be written")


def _check_samples(reader: RangeReader, path: Path, descriptor: int, base: int, slot: Slot) -> None:
    size = item_bytes(slot.dtype)
    for first, last in _sample_ranges(slot.source.num_elements):
        for at, expected, _ in converted_chunks(reader, slot, first, last):
            written = os.pread(descriptor, len(expected), base + slot.begin + at * size)
            if not np.array_equal(np.frombuffer(written, np.uint8), expected):
                raise ExportDamaged(f"{path}: {slot.name}, elements {first:,} to {last:,} differ from the checkpoint")


def _sample_ranges(total: int) -> Iterator[tuple[int, int]]:
    """The start, the middle and the end of a tensor, or all of a small one."""
    if total <= SAMPLES * SAMPLE_ELEMENTS:
        yield 0, total
        return
    for first in (0, total // 2, total - SAMPLE_ELEMENTS):
        yield first, first + SAMPLE_ELEMENTS
