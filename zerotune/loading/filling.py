"""Reads elements of weight files into tensors: every file is opened once and read from front to back."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from zerotune.errors import UsageError
from zerotune.loading import extents
from zerotune.loading.extents import Stored
from zerotune.loading.lazy_tensor import DTYPES, LazyTensor, evaluate
from zerotune.loading.weight_files import STORED_BYTES

SCRATCH_BYTES = 16 << 20
MOST_OPEN = 256


class Goal(NamedTuple):
    """`tensor` [num_elements, 1-D] takes elements `start`, `start + 1`, ... of `weight`, converted to its own type.

    What of it lies behind the end of the weight (the padding of the last partitions) becomes zero.
    """

    weight: LazyTensor
    tensor: torch.Tensor
    start: int


class _Read(NamedTuple):
    path: Path
    offset: int
    length: int
    dtype: str
    into: torch.Tensor


@dataclass
class Reader:
    """Reads into tensors and counts.

    Attributes:
        bytes_read: what was asked of the file system.
        files_opened: how often a file was opened.
    """

    bytes_read: int = 0
    files_opened: int = 0

    def __post_init__(self):
        self._descriptors: dict[Path, int] = {}
        self._scratch: list[tuple[torch.Tensor, torch.cuda.Event | None]] = []
        self._turn = 0

    def fill(self, goals: Iterable[Goal]) -> None:
        """Read everything that `goals` want, in the order in which it lies in the files."""
        reads = []
        for goal in goals:
            stop = min(goal.start + goal.tensor.numel(), math.prod(goal.weight.shape))
            wanted = max(0, stop - goal.start)
            if wanted < goal.tensor.numel():
                goal.tensor[wanted:].zero_()
            if not wanted:
                continue
            extent = goal.weight.extent
            if extent is None or extents.is_scattered(extent):
                whole = evaluate(goal.weight, self.whole).reshape(-1)
                goal.tensor[:wanted].copy_(whole[goal.start : stop])
            else:
                reads += _reads(extent, goal.tensor, goal.start, stop)
        for read in sorted(reads, key=lambda one: (one.path, one.offset)):
            self._read(read)
        for _, copied in self._scratch:
            if copied:
                copied.synchronize()

    def equal_share(self, one: LazyTensor, other: LazyTensor, share: int, shares: int) -> bool:
        """Are two weights equal in part `share` of `shares`?"""
        size = -(-one.numel() // shares)
        stop = min(one.numel(), size * (share + 1))
        for start in range(size * share, stop, SCRATCH_BYTES // 8):
            length = min(SCRATCH_BYTES // 8, stop - start)
            pair = [Goal(weight, torch.empty(length, dtype=weight.dtype), start) for weight in (one, other)]
            self.fill(pair)
            if not torch.equal(pair[0].tensor, pair[1].tensor):
                return False
        return True

    def whole(self, stored: Stored) -> torch.Tensor:
        """A stored tensor."""
        values = torch.empty(math.prod(stored.shape), dtype=DTYPES[stored.dtype])
        self._into_memory(stored.path, stored.offset, values)
        return values.view(stored.shape)

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._scratch.clear()

    def _read(self, read: _Read) -> None:
        if read.into.device.type == "cpu" and read.into.dtype == DTYPES[read.dtype]:
            self._into_memory(read.path, read.offset, read.into)
            return
        item = STORED_BYTES[read.dtype]
        step = SCRATCH_BYTES // item
        for first in range(0, read.length, step):
            length = min(step, read.length - first)
            with self._next_scratch(read.into.device) as scratch:
                values = scratch.view(DTYPES[read.dtype])[:length]
                self._into_memory(read.path, read.offset + first * item, values)
                read.into[first : first + length].copy_(values, non_blocking=True)

    def _into_memory(self, path: Path, offset: int, values: torch.Tensor) -> None:
        """Fill a contiguous CPU tensor with the bytes at `offset`."""
        if not values.numel():
            return
        memory = memoryview(values.view(torch.uint8).numpy())
        done = 0
        while done < len(memory):
            got = os.preadv(self._open(path), [memory[done:]], offset + done)
            if not got:
                raise UsageError(f"{path}: ended while it was read. Is something writing to it?")
            done += got
        self.bytes_read += done

    def _open(self, path: Path) -> int:
        if path not in self._descriptors:
            if len(self._descriptors) >= MOST_OPEN:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            self._descriptors[path] = os.open(path, os.O_RDONLY)
            self.files_opened += 1
        return self._descriptors[path]

    @contextlib.contextmanager
    def _next_scratch(self, device: torch.device):
        """Memory to read into before values are converted or go to a GPU: one buffer is filled while one is copied."""
        on_gpu = device.type == "cuda"
        if not self._scratch:
            made = [torch.empty(SCRATCH_BYTES, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(1 + on_gpu)]
            self._scratch = [(one, torch.cuda.Event() if on_gpu else None) for one in made]
        self._turn = (self._turn + 1) % len(self._scratch)
        scratch, copied = self._scratch[self._turn]
        if copied:
            copied.synchronize()
        yield scratch
        if copied:
            copied.record()


def _reads(extent, tensor: torch.Tensor, start: int, stop: int) -> list[_Read]:
    reads, at = [], 0
    for stored, first, length in extents.merged(extent.runs(start, stop)):
        offset = stored.offset + first * STORED_BYTES[stored.dtype]
        reads.append(_Read(stored.path, offset, length, stored.dtype, tensor[at : at + length]))
        at += length
    return reads
