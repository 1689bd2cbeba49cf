"""A checkpoint at the end of the training is not resumed from: the export would replace the finished model."""

from __future__ import annotations

import json

import pytest

from zerotune.checkpointing import completion
from zerotune.errors import UsageError
from zerotune.training import resume


@pytest.fixture
def run(tmp_path):
    """A run whose newest checkpoint is at step 40, the end of the second epoch."""
    folder = tmp_path / "checkpoint-40"
    folder.mkdir()
    (folder / "latest").write_text("global_step40")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 40, "epoch": 2.0}))
    completion.write_marker(folder, world_size=1, step=40)
    return tmp_path


@pytest.mark.parametrize(
    ("max_steps", "epochs", "flag"), [(5, 3.0, "--max_steps 5"), (40, 3.0, "--max_steps 40"), (-1, 2.0, "_epochs 2;")]
)
def test_nothing_left_to_train_is_refused(run, max_steps, epochs, flag):
    with pytest.raises(UsageError, match=f"checkpoint-40 is already at or past .*{flag}"):
        resume.point("last", run, {"max_steps": max_steps, "num_train_epochs": epochs})


@pytest.mark.parametrize(("max_steps", "epochs"), [(41, 1.0), (-1, 2.5)])
def test_what_is_left_is_trained(run, max_steps, epochs):
    assert resume.point("last", run, {"max_steps": max_steps, "num_train_epochs": epochs}).name == "checkpoint-40"
