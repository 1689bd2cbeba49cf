"""The ranks of this job: where each stands, how they start, and how one works while the others wait."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from zerotune.errors import EXIT_USAGE, UsageError

# Preparing data or exporting may take hours on one rank; the default of 30 minutes ends such runs (PAINS 46).
PATIENCE = timedelta(days=7)


def rank() -> int:
    """Global rank, as the launcher set it; 0 without a launcher."""
    return int(os.environ.get("RANK", 0))


def local_rank() -> int:
    """Rank within this node."""
    return int(os.environ.get("LOCAL_RANK", 0))


def world_size() -> int:
    """Number of ranks of the job."""
    return int(os.environ.get("WORLD_SIZE", 1))


def local_world_size() -> int:
    """Number of ranks on this node: deepspeed says LOCAL_SIZE, torchrun LOCAL_WORLD_SIZE.

    In this order: on CPU accelerate 1.15 sets LOCAL_WORLD_SIZE to 1 where only LOCAL_SIZE is set (state.py).
    """
    return int(os.environ.get("LOCAL_SIZE") or os.environ.get("LOCAL_WORLD_SIZE") or 1)


def say(text: str) -> None:
    """Print a line on rank 0 only."""
    if rank() == 0:
        print(f"zerotune: {text}", flush=True)


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Turn UsageError into one message on one rank and exit code 2; Ctrl-C into exit code 130."""
    try:
        yield
    except UsageError as error:
        _leave(f"zerotune: error: {error}", EXIT_USAGE)
    except KeyboardInterrupt as stopped:
        _leave(f"zerotune: {str(stopped) or 'interrupted'}", 130)


@contextlib.contextmanager
def stoppable(describe: Callable[[], str]) -> Iterator[None]:
    """Inside, Ctrl-C ends the job with `describe()` as its last word."""
    try:
        yield
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGTERM):  # nothing cuts the last word short
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt(describe()) from None


def _leave(message: str, code: int) -> None:
    # Rank 0 speaks. The launcher ends every rank as soon as one has failed, so the others give it time to.
    # An error that only another rank meets must not be lost: it speaks if nobody ended it in the meantime.
    if rank() != 0:
        time.sleep(5)
    print(message, file=sys.stderr, flush=True)
    remove_shared_memory()
    # Not sys.exit: threads and process groups of a half-started job would keep the process alive.
    os._exit(code)


def start(ddp_timeout_s: int) -> None:
    """Initialise torch.distributed through DeepSpeed, also for plain `python` without a launcher.

    It must come before a model is built under zero.Init: there the world size would be read as 1.
    """
    import deepspeed
    import torch

    _environment_of_a_single_process()
    _share_the_cores(torch)
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank())
    if not torch.distributed.is_initialized():
        _init_distributed(deepspeed, torch, ddp_timeout_s)


def _init_distributed(deepspeed, torch, ddp_timeout_s: int) -> None:
    try:
        deepspeed.init_distributed(timeout=timedelta(seconds=ddp_timeout_s), verbose=False)
    except torch.distributed.DistNetworkError as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise UsageError(
            f"the ranks cannot meet at {where}: {str(error).splitlines()[0]}\n"
            "Another job on this machine may use the port: choose one with --master_port (deepspeed, torchrun)."
        ) from error


def _environment_of_a_single_process() -> None:
    if "RANK" in os.environ:
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1", MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(port))


def _share_the_cores(torch) -> None:
    """Give every rank its share of the cores: torchrun gives 1 thread (CPU Adam then crawls), deepspeed all of them."""
    threads = max(1, len(os.sched_getaffinity(0)) // local_world_size())
    chosen_by_user = "OMP_NUM_THREADS" in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ
    if not chosen_by_user:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)


_patient_group = None


def wait_for_all() -> None:
    """A barrier that waits for days, on CPU, whatever the timeout of the training collectives."""
    import torch.distributed as dist

    global _patient_group
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    if _patient_group is None:
        _patient_group = dist.new_group(backend="gloo", timeout=PATIENCE)
    dist.barrier(group=_patient_group)


def new_gather() -> Callable[[Any], list]:
    """A function that gives every rank's value (picklable) to every rank, by rank. All ranks make it together.

    Each has connections of its own: one of them may be used by another thread than the rest.
    """
    import torch.distributed as dist

    if world_size() == 1:
        return lambda value: [value]
    group = dist.new_group(backend="gloo", timeout=PATIENCE)

    def gather(value: Any) -> list:
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, value, group=group)
        return every

    return gather


def new_highest() -> Callable[[int], int]:
    """A function that gives the highest of all ranks' numbers to every rank, on CPU. All ranks make it together."""
    import torch
    import torch.distributed as dist

    if world_size() == 1:
        return lambda number: number
    group = dist.new_group(backend="gloo", timeout=PATIENCE)

    def highest(number: int) -> int:
        box = torch.tensor(number)
        dist.all_reduce(box, dist.ReduceOp.MAX, group=group)
        return int(box)

    return highest


@contextlib.contextmanager
def first(is_first: bool) -> Iterator[None]:
    """Let some ranks run the block before the others, which then find its results on disk."""
    if not is_first:
        wait_for_all()
    yield
    if is_first:
        wait_for_all()


def first_of_node() -> contextlib.AbstractContextManager[None]:
    """`first` for rank 0 of every node."""
    return first(local_rank() == 0)


def from_rank_0(make: Callable[[], Any]) -> Any:
    """Call `make` on rank 0 and give its result (picklable) to every rank."""
    import torch.distributed as dist

    box = [make() if rank() == 0 else None]
    if world_size() > 1:
        wait_for_all()
        dist.broadcast_object_list(box, src=0, group=_patient_group)
    return box[0]


def finish() -> None:
    """Leave the process group in order; without it every run ends with a warning of NCCL."""
    import torch.distributed as dist

    if dist.is_initialized():
        wait_for_all()
        dist.destroy_process_group()
    remove_shared_memory()


def remove_shared_memory() -> None:
    """Delete this rank's buffer of DeepSpeed's CPU collectives (66 MiB): DeepSpeed leaves it in /dev/shm."""
    port = os.environ.get("MASTER_PORT")
    for path in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_{os.getuid()}_*_{port}_{rank()}"):
        path.unlink(missing_ok=True)
