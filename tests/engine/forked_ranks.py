"""Run a function on real DeepSpeed CPU ranks, case after case, without importing torch anew for each.

A fork server imports the libraries once; every case gets fresh processes forked from it, so that no state of an
engine reaches the next case. A case that hangs is ended at its limit, and its shared memory is removed.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

from tests.jobs import free_port

LIBRARIES = ["torch", "numpy", "transformers", "transformers.trainer", "deepspeed", "accelerate", "datasets"]
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([*LIBRARIES, "tests.engine.forked_ranks"])


class CaseFailed(AssertionError):
    """A rank raised or did not end; the message holds its traceback."""


def run(function: Callable, world_size: int, *arguments: Any, limit_s: int = 240) -> list[Any]:
    """Call `function(*arguments)` on every rank; return what each returned, by rank.

    Args:
        function: importable; it finds RANK, WORLD_SIZE and the rest in its environment.
        limit_s: seconds until all ranks are ended.
    """
    port = free_port()
    answers = _context.Queue()
    ranks = [
        _context.Process(target=_rank, args=(answers, rank, world_size, port, function, arguments))
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    try:
        return _collect(answers, world_size, limit_s)
    finally:
        for process in ranks:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
        for left in Path("/dev/shm").glob(f"deepspeed_*_{port}_*"):
            left.unlink(missing_ok=True)


def _collect(answers, world_size: int, limit_s: int) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < world_size:
        try:
            rank, error, value = answers.get(timeout=limit_s)
        except Empty:
            missing = sorted(set(range(world_size)) - set(results))
            raise CaseFailed(f"rank(s) {missing} did not answer within {limit_s} s") from None
        if error:
            raise CaseFailed(f"rank {rank}:\n{error}")
        results[rank] = value
    return [results[rank] for rank in range(world_size)]


def _rank(answers, rank: int, world_size: int, port: int, function: Callable, arguments: tuple) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_SIZE=str(world_size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
    try:
        import torch

        torch.set_num_threads(1)
        answers.put((rank, None, function(*arguments)))
    except BaseException:  # the parent must learn of everything, an assertion of the engine included
        answers.put((rank, traceback.format_exc(), None))
