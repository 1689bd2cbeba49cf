"""The plan beside what the run measured: in metrics.jsonl, in W&B, and as one line at the end."""

from __future__ import annotations

import statistics
import sys

from transformers import TrainerCallback

from zerotune.planner.plan import Plan
from zerotune.reporting.metrics import Meter, MetricsFile
from zerotune.training import ranks

WORDS = {"gpu_peak_gib": "GPU peak {} GiB", "host_peak_gib": "host peak of a rank {} GiB", "step_s": "step {} s"}
PHASES_IN_TRAINING = ("load", "first step", "steady step", "evaluation", "save")


def figures(plan: Plan) -> dict[str, float]:
    """What `measured` will hold too. Of the worst rank: allocated GPU bytes, host memory over every phase of training."""
    host = max(peak.num_bytes for peak in plan.host if peak.phase in PHASES_IN_TRAINING)
    load = next(peak.num_bytes for peak in plan.host if peak.phase == "load")
    found = {"load_host_gib": load / 2**30, "host_peak_gib": host / 2**30, "step_s": plan.step.seconds}
    if not plan.run.cluster.device.is_cpu:
        found = {"gpu_peak_gib": plan.allocated_bytes / 2**30, **found}
    return found


def in_words(planned: dict, measured: dict) -> str:
    """GPU peak 50.1 GiB (measured 49.8, +0.6 %), ...: by how much the plan was too high."""
    parts = []
    for name, words in WORDS.items():
        if name in planned and measured.get(name):
            off = planned[name] / measured[name] - 1
            parts.append(words.format(f"{planned[name]:.3g}") + f" (measured {measured[name]:.3g}, plan {off:+.1%})")
    return ", ".join(parts)


class Beside(TrainerCallback):
    """Writes planned/* when training begins, and measured/* beside it as long as it lasts.

    Args:
        planned: of `figures`.
        meter: whose records carry `step_s`, and which knows the peaks of all ranks.
        metrics: the run's metrics.jsonl.
    """

    def __init__(self, planned: dict[str, float], meter: Meter, metrics: MetricsFile):
        self.planned, self.meter, self.metrics = planned, meter, metrics
        self.steps: list[float] = []

    def on_train_begin(self, args, state, control, **kwargs):
        load = {"load_host_gib": self.meter.peaks()["host_peak_gib"]}  # a collective
        if state.is_world_process_zero:
            record = {**_named("planned", self.planned), **_named("measured", load)}
            self.metrics.append({"step": state.global_step, **record})

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "step_s" in (logs or {}):
            self.steps.append(logs["step_s"])
            known = {"gpu_peak_gib": "device_peak_gib", "host_peak_gib": "host_peak_gib", "step_s": "step_s"}
            self._to_wandb(state, {name: logs[key] for name, key in known.items() if key in logs})

    def on_train_end(self, args, state, control, **kwargs):
        measured = self.meter.peaks()  # a collective
        if not state.is_world_process_zero or not self.steps:
            return
        measured["step_s"] = statistics.median(self.steps[1:] or self.steps)  # the first one warms up
        self.metrics.append(
            {"step": state.global_step, **_named("planned", self.planned), **_named("measured", measured)}
        )
        self._to_wandb(state, measured)
        ranks.say(f"planned: {in_words(self.planned, measured)}")

    def _to_wandb(self, state, measured: dict) -> None:
        """Under their own names: what goes through the Trainer would be called train/planned/..."""
        run = sys.modules["wandb"].run if "wandb" in sys.modules else None
        if run is not None:
            both = {**_named("planned", self.planned), **_named("measured", measured)}
            run.log({**both, "train/global_step": state.global_step})


def _named(group: str, values: dict[str, float]) -> dict[str, float]:
    return {f"{group}/{name}": round(value, 4) for name, value in values.items()}
