"""Which checkpoints stay, and that nothing older goes before the new one is complete."""

from __future__ import annotations

import pytest

from zerotune.checkpointing.completion import MARKER
from zerotune.checkpointing.retention import superfluous


@pytest.fixture
def run(tmp_path):
    """Complete checkpoints 10 to 60; 35 and 65 were cut short."""
    for step in (10, 20, 30, 35, 40, 50, 60, 65):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if step % 10 == 0:
            (tmp_path / f"checkpoint-{step}" / MARKER).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("choice", "gone"),
    [
        ({"limit": None}, []),
        ({"limit": 1}, [10, 20, 30, 35, 40, 50]),
        ({"limit": 2}, [10, 20, 30, 35, 40]),
        ({"limit": 5}, [10, 35]),
        ({"limit": 6}, [35]),
        ({"limit": 9}, [35]),
        ({"limit": 2, "every": 20}, [10, 30, 35]),
        ({"limit": 2, "best": 10}, [20, 30, 35, 40]),
        ({"limit": 1, "best": 50, "every": 30}, [10, 20, 35, 40]),
    ],
)
def test_what_goes(run, choice, gone):
    if "best" in choice:
        choice = {**choice, "best": run / f"checkpoint-{choice['best']}"}
    found = superfluous(run, run / "checkpoint-60", **choice)
    assert [folder.name for folder in found] == [f"checkpoint-{step}" for step in gone]


def test_newer_ones_stay_when_an_older_one_is_trained_on(run):
    """A run resumed from 20 and saved at 30: what the earlier attempt left after it is not this one's to delete."""
    assert [one.name for one in superfluous(run, run / "checkpoint-30", limit=1)] == ["checkpoint-10", "checkpoint-20"]
