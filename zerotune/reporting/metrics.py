"""Speed and memory of the run, added to every log record and appended to metrics.jsonl."""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from transformers import TrainerCallback

from zerotune.reporting import flops


class Meter:
    """Counts tokens on this rank and turns them, over all ranks, into tokens/s, MFU and memory peaks.

    Args:
        flops_per_token: see `flops.flops_per_token`.
        device_name: as torch names it; None on CPU.
        accumulation: micro batches of a step.
    """

    def __init__(self, flops_per_token: float, device_name: str | None, accumulation: int = 1):
        self.flops_per_token = flops_per_token
        self.accumulation = accumulation
        self.peak_tflops = flops.peak_tflops(device_name) if device_name else None
        self.process = psutil.Process()
        self.real = self.all = self.batches = 0
        self.since = None

    def count_batch(self, real_tokens: torch.Tensor, all_tokens: int) -> None:
        """Add one micro batch. `real_tokens` [rows] may be on the device: it is read when a record is logged."""
        if self.since is None:
            self.since = time.perf_counter()
        self.real = self.real + real_tokens.sum()
        self.all += all_tokens
        self.batches += 1

    def exclude(self, seconds: float) -> None:
        """Take time out of the current window: evaluation and saving are not the speed of training."""
        if self.since is not None:
            self.since += seconds

    def measure(self, logs: dict) -> dict:
        """What to add to a record. A collective: every rank must call it for the same records."""
        if "loss" not in logs or self.since is None:
            return {}
        now = time.perf_counter()
        seconds = max(now - self.since, 1e-9)
        peaks = [self._device_peak_gib(), self._rss_gib(), self._host_peak_gib()]
        rows = self._all_ranks([float(self.real), float(self.all), *peaks])
        steps = max(1, self.batches / self.accumulation)
        self.since, self.real, self.all, self.batches = now, 0, 0, 0
        world = len(rows)
        real, everything = sum(row[0] for row in rows), sum(row[1] for row in rows)
        record = {
            "tokens_per_s": round(real / seconds, 1),
            "all_tokens_per_s": round(everything / seconds, 1),
            "step_s": round(seconds / steps, 4),
            "host_rss_gib": round(max(row[3] for row in rows), 3),
            "host_peak_gib": round(max(row[4] for row in rows), 3),
        }
        if torch.cuda.is_available():
            record["device_peak_gib"] = round(max(row[2] for row in rows), 3)
            record |= {f"device_peak_gib_rank{rank}": round(row[2], 3) for rank, row in enumerate(rows) if world > 1}
        if self.peak_tflops:
            achieved = everything / seconds / world * self.flops_per_token
            record["mfu"] = round(achieved / (self.peak_tflops * 1e12), 4)
        return record

    def peaks(self) -> dict[str, float]:
        """GiB so far, of the rank with most: allocated on its GPU, if it has one, and in host memory. A collective."""
        rows = self._all_ranks([self._device_peak_gib(), self._host_peak_gib()])
        gpu, host = (max(column) for column in zip(*rows, strict=True))
        return {**({"gpu_peak_gib": gpu} if torch.cuda.is_available() else {}), "host_peak_gib": host}

    @staticmethod
    def _device_peak_gib() -> float:
        return torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0

    def _rss_gib(self) -> float:
        return self.process.memory_info().rss / 2**30

    @staticmethod
    def _host_peak_gib() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in KiB on Linux

    @staticmethod
    def _all_ranks(row: list[float]) -> list[list[float]]:
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return [row]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        mine = torch.tensor(row, dtype=torch.float64, device=device)
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine)
        return [one.tolist() for one in every]


class MetricsFile(TrainerCallback):
    """Append every log record to `path`, one JSON object a line, with step and seconds since 1970."""

    def __init__(self, path: Path):
        self.path = path

    def on_train_begin(self, args, state, control, **kwargs):
        """A resumed run repeats the steps after its checkpoint: what an earlier attempt logged for them goes."""
        if state.is_world_process_zero and self.path.exists():
            lines = self.path.read_text().splitlines(keepends=True)
            kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= state.global_step]
            if len(kept) < len(lines):
                self.path.write_text("".join(kept))

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and logs:
            self.append({"step": state.global_step, **logs})

    def append(self, record: dict) -> None:
        """Write one record now; rank 0 only."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"time": round(time.time(), 3), **record}) + "\n")
