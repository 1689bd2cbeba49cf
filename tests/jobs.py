"""Jobs are started as a user starts them; every one has its own port, time limit and clean-up."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
TRAIN = str(REPO / "zerotune" / "train.py")


@dataclass
class Ended:
    """A job that has ended: its exit code, everything it printed, and how long it took in seconds."""

    code: int
    output: str
    seconds: float

    def lines(self, word: str) -> list[str]:
        return [line for line in self.output.splitlines() if word in line]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_and_wait(command: list[str], port: int, environment: dict[str, str], cwd: Path, limit_s: int) -> Ended:
    """Run a command in a session of its own; end it and its children at the limit; remove its shared memory."""
    started = time.monotonic()
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += f"\n*** ended by the test after {limit_s} s".encode()
    finally:
        for left in Path("/dev/shm").glob(f"deepspeed_*_{port}_*"):
            left.unlink(missing_ok=True)
    return Ended(process.returncode, output.decode(errors="replace"), time.monotonic() - started)


class Jobs:
    """Starts train.py under a launcher, with caches and working folder of this test session."""

    def __init__(self, cwd: Path):
        self.cwd = cwd
        self.environment = {
            **os.environ,
            "ZEROTUNE_CACHE": str(cwd / "cache"),
            "HF_HOME": str(cwd / "huggingface"),
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "disabled",
            "PYTHONPATH": str(REPO),
        }
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", "WANDB_API_KEY"):
            self.environment.pop(name, None)

    def train(self, *flags: str, launcher: str = "python", ranks: int = 1, limit_s: int = 300, **environment) -> Ended:
        port = free_port()
        commands = {
            "python": [sys.executable],
            "deepspeed": [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(ranks)]
            + ["--master_port", str(port)],
            "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks)]
            + ["--master_port", str(port)],
        }
        chosen = {"MASTER_PORT": str(port)} if launcher == "python" else {}
        command = [*commands[launcher], TRAIN, *flags]
        return start_and_wait(command, port, {**self.environment, **chosen, **environment}, self.cwd, limit_s)
