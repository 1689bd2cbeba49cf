"""Flat ranges of joined, cut, reshaped and permuted tensors, against numpy doing the same to numbered elements."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest

from zerotune.loading import extents
from zerotune.loading.extents import Cut, Joined, Permuted, Reshaped, Run, Stored


def stored(number: int, *shape: int) -> tuple[Stored, np.ndarray]:
    """A stored tensor, and an array that holds where each of its elements lies."""
    values = np.arange(math.prod(shape)).reshape(shape) + 1_000_000 * number
    return Stored(Path("x"), "BF16", shape, 1_000_000 * number), values


def elements(extent, start: int, stop: int) -> list[int]:
    return [
        run.stored.offset + index
        for run in extents.merged(extent.runs(start, stop))
        for index in range(run.first, run.first + run.length)
    ]


def random_tree(draw: random.Random) -> tuple[object, np.ndarray]:
    """A weight as transformers may make it: a few operations in a row on a few stored tensors."""
    shape = [draw.randint(1, 5) for _ in range(draw.randint(1, 3))]
    pairs = [stored(number, *shape) for number in range(draw.randint(1, 4))]
    dim = draw.randrange(len(shape))
    extent = Joined([one for one, _ in pairs], dim)
    values = np.concatenate([array for _, array in pairs], axis=dim)
    for _ in range(draw.randint(0, 4)):
        kind = draw.choice(["cut", "permute", "reshape", "join"])
        dims = len(values.shape)
        if kind == "cut":
            dim = draw.randrange(dims)
            begin = draw.randrange(values.shape[dim])
            end = draw.randint(begin + 1, values.shape[dim])
            extent, values = Cut(extent, dim, begin, end), values.take(range(begin, end), axis=dim)
        elif kind == "permute":
            order = tuple(draw.sample(range(dims), dims))
            extent, values = Permuted(extent, order), values.transpose(order)
        elif kind == "reshape":
            shape = (values.size,) if dims > 1 else (1, values.size)
            extent, values = Reshaped(extent, shape), values.reshape(shape)
        else:
            dim = draw.randrange(dims)
            extent, values = Joined([extent, extent], dim), np.concatenate([values, values], axis=dim)
    return extent, values


@pytest.mark.parametrize("seed", range(300))
def test_any_range_of_any_tree(seed):
    draw = random.Random(seed)
    extent, values = random_tree(draw)
    assert extent.shape == values.shape
    flat = values.reshape(-1).tolist()
    for _ in range(5):
        start = draw.randint(0, len(flat))
        stop = draw.randint(start, len(flat))
        assert elements(extent, start, stop) == flat[start:stop]


def test_experts_are_read_in_runs_of_a_matrix():
    gates = [stored(number, 3, 4)[0] for number in range(2)]
    ups = [stored(10 + number, 3, 4)[0] for number in range(2)]
    stack = [Joined([Reshaped(one, (1, 3, 4)) for one in part], 0) for part in (gates, ups)]
    fused = Joined(stack, 1)
    assert fused.shape == (2, 6, 4)
    assert fused.unbroken == 12
    assert list(fused.runs(6, 30)) == [
        *(Run(gates[0], 6, 6), Run(ups[0], 0, 12), Run(gates[1], 0, 6)),
    ]


def test_neighbours_become_one_run():
    whole, _ = stored(0, 8, 4)
    halves = Joined([Cut(whole, 0, 0, 4), Cut(whole, 0, 4, 8)], 0)
    assert list(extents.merged(halves.runs(3, 30))) == [Run(whole, 3, 27)]


@pytest.mark.parametrize(("shape", "expected"), [((400, 400), True), ((100, 100), False)])
def test_a_large_transpose_is_read_whole(shape, expected):
    assert extents.is_scattered(Permuted(stored(0, *shape)[0], (1, 0))) == expected
    assert not extents.is_scattered(stored(0, *shape)[0])
