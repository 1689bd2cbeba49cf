"""kill -9 of a random rank at random moments of a tight save loop: the newest complete checkpoint is always whole."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine import forked_ranks
from zerotune.checkpointing import saving
from zerotune.checkpointing.completion import MARKER

pytestmark = pytest.mark.slow
RANKS, RUNS, KILLS = 2, 2, 26  # RUNS at a time, each killed KILLS times
ELEMENTS = 500_000
LIMIT_S = 60


def state(rank: int, step: int) -> dict:
    import torch

    return {"weights": torch.full((ELEMENTS,), 1000.0 * rank + step), "step": step}


def save_for_ever(run: Path, rank: int, first: int, meeting: Path) -> None:
    """One rank: saves at every step, and changes the states as soon as it may, as an optimizer would."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
    import torch
    import torch.distributed as dist

    from zerotune.checkpointing import background, folders, retention
    from zerotune.training import ranks

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)

    def retain(save) -> None:
        for folder in retention.superfluous(run, save.folder, limit=2):
            folders.remove(folder)

    gathers = {"gather": ranks.new_gather(), "gather_in_thread": ranks.new_gather()}
    saver = background.BackgroundSaver(
        rank=rank, world_size=RANKS, per_node=RANKS, retain=retain, say=lambda line: None, **gathers
    )
    live = state(rank, first)
    meeting.with_suffix(f".{rank}").touch()
    for step in range(first, 10**6):
        folder = run / f"checkpoint-{step}"
        assert saver.open(folder, step)
        folder.mkdir(exist_ok=True)
        saver.add(live, folder / f"rank_{rank}.pt")
        saver.start()
        saver.wait_until_copied()
        live["weights"] += 1
        live["step"] += 1


def newest(run: Path) -> int:
    """Step of the newest complete checkpoint, whose content is held against what each rank wrote; 0 without one."""
    import torch

    if not any((folder / MARKER).exists() for folder in saving.checkpoints(run)):
        return 0
    folder, passed_over = saving.find("last", run)
    step = saving.step_of(folder)
    assert all("was not finished" in line or "is missing" in line for line in passed_over), passed_over
    for rank in range(RANKS):
        saved = torch.load(folder / f"rank_{rank}.pt")
        assert saved["step"] == step and torch.equal(saved["weights"], state(rank, step)["weights"])
    return step


def kill_again_and_again(run: Path, seed: int) -> list[int]:
    """Start ranks, kill one of them during its first saves or a later one, see what is left, go on from there."""
    chance, context, steps = random.Random(seed), multiprocessing.get_context("forkserver"), [0]
    run.mkdir()
    for turn in range(KILLS):
        first, meeting = steps[-1] + 1, run.parent / f"meeting-{seed}-{turn}"
        started = [context.Process(target=save_for_ever, args=(run, rank, first, meeting)) for rank in range(RANKS)]
        begun = [meeting.with_suffix(f".{rank}") for rank in range(RANKS)]
        awaited = [*begun, run / f"checkpoint-{first}" / MARKER] if turn % 2 else begun
        for process in started:
            process.start()
        try:
            wait_for(awaited, started)
            time.sleep(chance.uniform(0, 0.3))
            started[chance.randrange(RANKS)].kill()
        finally:
            for process in started:
                process.kill()
                process.join()
        steps.append(newest(run))
    return steps


def wait_for(files: list[Path], processes) -> None:
    until = time.monotonic() + LIMIT_S
    while not all(file.exists() for file in files):
        assert time.monotonic() < until, "the ranks did not begin to save"
        assert all(process.is_alive() for process in processes), "a rank ended by itself"
        time.sleep(0.005)


def test_a_killed_rank_never_costs_a_complete_checkpoint(tmp_path):
    assert forked_ranks.LIBRARIES  # importing it tells the fork server what to load
    seeds = [random.randrange(10**6) for _ in range(RUNS)]
    print(f"seeds {seeds}")
    with ThreadPoolExecutor(RUNS) as runs:
        every = list(runs.map(lambda seed: kill_again_and_again(tmp_path / f"run-{seed}", seed), seeds))
    for steps in every:
        assert steps == sorted(steps), "a complete checkpoint was lost"
        assert steps[-1] >= KILLS // 2  # they did save, at every second start
