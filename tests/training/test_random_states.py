"""A rank goes on with the random states of the same rank, on whatever number of ranks."""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")


def draw() -> tuple:
    return random.random(), float(np.random.rand()), torch.rand(()).item()


def save(path) -> tuple:
    """Save the states as transformers does; what is drawn after them."""
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "cpu": torch.random.get_rng_state()}
    torch.save(states, path)
    return draw()


@pytest.mark.parametrize(("wrote", "names"), [(1, ["rng_state.pth"]), (2, ["rng_state_0.pth", "rng_state_1.pth"])])
def test_states_are_taken_where_there_were_some(tmp_path, wrote, names):
    from zerotune.training.resuming_trainer import restore_random_states

    after = [save(tmp_path / name) for name in names]
    drawn = []
    for rank in range(4):
        restore_random_states(tmp_path, wrote, rank, seed=42, step=10)
        drawn.append(draw())
    assert drawn[:wrote] == after
    assert len(set(drawn)) == 4
    restore_random_states(tmp_path, wrote, 3, seed=42, step=10)
    assert draw() == drawn[3]
