"""Where the elements of a weight lie: flat ranges of a tensor that is made of others, as runs of stored elements.

A rank owns elements [start, stop) of a weight, counted row-major. A weight that transformers joins from many stored
tensors (the experts of a layer), cuts from one (a fused qkv) or reorders is described by the classes here, and
`runs(start, stop)` says which elements of which stored tensors to read, in order. No torch, no file is opened.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Protocol

# Python reads about 100,000 runs a second: a weight that lies in more than this is read whole and reordered in memory.
MOST_RUNS = 20_000


class Run(NamedTuple):
    """`length` elements of `stored`, from its element `first`."""

    stored: Stored
    first: int
    length: int


class Extent(Protocol):
    """Shape of a tensor and the place of its elements; `unbroken` elements in a row are one run, except at the ends."""

    shape: tuple[int, ...]
    unbroken: int

    def runs(self, start: int, stop: int) -> Iterator[Run]: ...


@dataclass(frozen=True)
class Stored:
    """A tensor of a file, row-major.

    Attributes:
        dtype: its safetensors name, e.g. BF16.
        offset: first byte in the file.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def unbroken(self) -> int:
        return math.prod(self.shape)

    def runs(self, start: int, stop: int) -> Iterator[Run]:
        yield Run(self, start, stop - start)


class Joined:
    """Tensors one after the other along `dim`."""

    def __init__(self, parts: list[Extent], dim: int):
        first = parts[0].shape
        self.parts, self.dim = parts, dim
        self.shape = (*first[:dim], sum(part.shape[dim] for part in parts), *first[dim + 1 :])
        inner = math.prod(first[dim + 1 :])
        self._sizes = [part.shape[dim] * inner for part in parts]
        self._ends = list(accumulate(self._sizes))
        whole = len(parts) == 1
        self.unbroken = parts[0].unbroken if whole else min(map(min, zip(self._sizes, self._unbroken(), strict=True)))

    def _unbroken(self) -> list[int]:
        return [part.unbroken for part in self.parts]

    def runs(self, start: int, stop: int) -> Iterator[Run]:
        block = self._ends[-1]
        while start < stop:
            outer, within = divmod(start, block)
            index = bisect_right(self._ends, within)
            length = min(stop - start, self._ends[index] - within)
            inside = outer * self._sizes[index] + within - (self._ends[index] - self._sizes[index])
            yield from self.parts[index].runs(inside, inside + length)
            start += length


class Cut:
    """Indices [begin, end) of `base` along `dim`."""

    def __init__(self, base: Extent, dim: int, begin: int, end: int):
        self.shape = (*base.shape[:dim], end - begin, *base.shape[dim + 1 :])
        inner = math.prod(base.shape[dim + 1 :])
        self._base, self._block, self._skip = base, base.shape[dim] * inner, begin * inner
        self._size = (end - begin) * inner
        self.unbroken = min(base.unbroken, self._size)

    def runs(self, start: int, stop: int) -> Iterator[Run]:
        while start < stop:
            outer, within = divmod(start, self._size)
            length = min(stop - start, self._size - within)
            inside = outer * self._block + self._skip + within
            yield from self._base.runs(inside, inside + length)
            start += length


class Reshaped:
    """The same elements in the same order under another shape."""

    def __init__(self, base: Extent, shape: tuple[int, ...]):
        self.shape, self.unbroken, self.runs = tuple(shape), base.unbroken, base.runs


class Permuted:
    """`base` with its dimensions in the order `dims`."""

    def __init__(self, base: Extent, dims: tuple[int, ...]):
        self.shape = tuple(base.shape[dim] for dim in dims)
        kept = len(dims)  # from here on the dimensions stay where they were
        while kept and dims[kept - 1] == kept - 1:
            kept -= 1
        steps = [math.prod(base.shape[dim + 1 :]) for dim in range(len(dims))]
        self._base, self._outer, self._steps = base, self.shape[:kept], [steps[dim] for dim in dims[:kept]]
        self._size = math.prod(self.shape[kept:])
        self.unbroken = min(base.unbroken, self._size)

    def runs(self, start: int, stop: int) -> Iterator[Run]:
        while start < stop:
            outer, within = divmod(start, self._size)
            length = min(stop - start, self._size - within)
            inside = within
            for extent, step in zip(reversed(self._outer), reversed(self._steps), strict=True):
                outer, index = divmod(outer, extent)
                inside += index * step
            yield from self._base.runs(inside, inside + length)
            start += length


def merged(runs: Iterator[Run]) -> Iterator[Run]:
    """Runs that continue one another in one stored tensor become one."""
    last = None
    for run in runs:
        if last and run.stored is last.stored and run.first == last.first + last.length:
            last = Run(last.stored, last.first, last.length + run.length)
            continue
        if last:
            yield last
        last = run
    if last:
        yield last


def is_scattered(extent: Extent) -> bool:
    """Would reading it run by run take too long? A true transpose is one element a run."""
    return math.prod(extent.shape) > MOST_RUNS * max(1, extent.unbroken)
