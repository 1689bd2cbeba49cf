"""How a run stops and goes on; at its end nothing goes on, or the export would replace the finished model."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest
from transformers import TrainerControl

from zerotune.checkpointing import completion
from zerotune.errors import UsageError
from zerotune.reporting import wandb_run
from zerotune.training import ranks, resume, stopping


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


def test_a_stopped_run_says_how_to_continue(run):
    (run / "checkpoint-60").mkdir()  # not complete
    said = resume.how_to_continue(61, run)
    assert said == f"stopped at step 61; continue with --output_dir {run} --resume_from_checkpoint last (checkpoint-40)"
    assert "no checkpoint" in resume.how_to_continue(3, run / "nothing")


def test_ctrl_c_ends_the_training_with_the_last_word():
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        with (
            pytest.raises(KeyboardInterrupt, match=r"^stopped at step 7$"),
            ranks.stoppable(lambda: "stopped at step 7"),
        ):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_signal_to_any_rank_saves_and_stops_all_at_the_same_step(number):
    others = [0]  # what the other ranks heard
    callback = stopping.StopOnSignal(lambda mine: max(mine, *others))
    before = signal.getsignal(number)
    with stopping.listening() as request:
        control = TrainerControl()
        callback.on_step_end(None, None, control)
        assert not control.should_save and not control.should_training_stop
        for _ in range(2):  # a launcher may pass on what was sent to all
            os.kill(os.getpid(), number)
        callback.on_step_end(None, None, control)
        assert control.should_save and control.should_training_stop and request.agreed == number.name
    others.append(signal.SIGUSR1)
    with stopping.listening() as request:
        control = TrainerControl()
        callback.on_step_end(None, None, control)
        assert control.should_save and control.should_training_stop and request.agreed == "SIGUSR1"
    assert signal.getsignal(number) == before


def test_the_run_of_weights_and_biases_goes_on(run, monkeypatch):
    for name in ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.setenv(name, "")  # so that the environment is restored afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=SimpleNamespace(id="abc123")))
    state = SimpleNamespace(is_world_process_zero=True)
    wandb_run.KeepRunId().on_train_begin(SimpleNamespace(output_dir=run), state, None)
    wandb_run.prepare(run, resuming=False)
    assert "WANDB_RUN_ID" not in os.environ
    wandb_run.prepare(run, resuming=True)
    assert (os.environ["WANDB_RUN_ID"], os.environ["WANDB_RESUME"]) == ("abc123", "allow")
