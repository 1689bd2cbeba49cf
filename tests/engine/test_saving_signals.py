"""Whole jobs that a signal ends: the step is finished, saved, and the job goes on from there when started again."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.engine.test_train_job import CASES, SMALL, losses
from zerotune.checkpointing import saving
from zerotune.checkpointing.completion import what_is_damaged

pytestmark = pytest.mark.slow
STEPS = 400


def job(jobs, folder: Path, *flags: str, steps: int = STEPS):
    return jobs.train(
        *("--ds", "stage2", "--dataset_name", str(CASES / "chats.jsonl"), *SMALL, "--max_seq_length", "128"),
        *("--max_steps", str(steps), "--save_strategy", "no", "--eval_strategy", "no", "--export", "False"),
        *("--per_device_train_batch_size", "2", "--logging_steps", "1", "--output_dir", str(folder), *flags),
        launcher="deepspeed",
        ranks=2,
    )


def signal_one_rank(folder: Path, number: int, after_step: int) -> None:
    """Wait until the job has logged a step, then send the signal to its rank 1 only."""
    until = time.monotonic() + 250
    while time.monotonic() < until:
        path = folder / "metrics.jsonl"
        if path.exists() and f'"step": {after_step}' in path.read_text():
            break
        time.sleep(0.1)
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if str(folder) in command and "--local_rank=1" in command:
            os.kill(process.pid, number)


def test_a_signal_to_one_rank_saves_and_the_job_goes_on(jobs):
    folder = jobs.cwd / "signalled"
    sender = threading.Thread(target=signal_one_rank, args=(folder, signal.SIGUSR1, 3), daemon=True)
    sender.start()
    ended = job(jobs, folder)
    assert ended.code == 0, ended.output[-4000:]
    stopped = saving.complete(folder)[-1]
    step = saving.step_of(stopped)
    assert 3 <= step < STEPS
    (line,) = ended.lines("zerotune: SIGUSR1: stopped at step")
    command = f"continue with --output_dir {folder} --resume_from_checkpoint last ({stopped.name})"
    assert f"stopped at step {step}; {command}" in line
    assert what_is_damaged(stopped) is None
    assert json.loads((stopped / "trainer_state.json").read_text())["global_step"] == step
    assert not (folder / "train_results.json").exists()

    again = job(jobs, folder, "--resume_from_checkpoint", "last", steps=step + 3)
    assert again.code == 0, again.output[-4000:]
    assert sorted(losses(folder)) == list(range(1, step + 4))
    assert (folder / "train_results.json").exists()
