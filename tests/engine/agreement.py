"""Validator against engine on random configs near the rules' borders: who disagrees, and the smallest config for it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version

from tests.engine.border_configs import draw
from tests.engine.trials import CPU_CANNOT_SHOW, TINY_LLAMA, judge_all, with_optimizer
from zerotune.ds_config import Context, check
from zerotune.ds_config.finding import ERROR

# Depends on the program: stage 3 without an optimizer is an engine for inference, which is built and runs forward;
# fp16.auto_cast breaks the trial's float inputs and leaves token ids alone.
BY_PROGRAM = ("DeepSpeedZeRoOffload", "mat1 and mat2 must have the same dtype")


@dataclass
class Tally:
    """What came out: trials by (entry, verdict of the engine), left out by reason, and disagreements as text."""

    verdicts: Counter = field(default_factory=Counter)
    left_out: Counter = field(default_factory=Counter)
    disagreements: list[str] = field(default_factory=list)

    @property
    def refused(self) -> int:
        return sum(count for (_, verdict), count in self.verdicts.items() if verdict != "accepted")


def ask_engine(number: int, seed: int, jobs: int = 1) -> Iterator[tuple[dict, dict]]:
    """Draw trials and have the installed engine answer them."""
    random_ = random.Random(seed)
    trials = [draw(random_) | {"deepspeed": version("deepspeed")} for _ in range(number)]
    return zip(trials, judge_all(trials, jobs=jobs), strict=True)


def compare(answers: Iterable[tuple[dict, dict]], shrink_them: bool = True) -> Iterator[Tally]:
    """Hold the validator against the answers; yields the tally after each one."""
    tally = Tally()
    for trial, answer in answers:
        tally.verdicts[trial["entry"], answer["verdict"].partition("@")[0]] += 1
        if reason := left_out(trial, answer):
            tally.left_out[reason] += 1
        elif disagrees(trial, answer):
            least, why = shrink(trial, answer) if shrink_them else (trial, answer)
            tally.disagreements.append(
                f"{json.dumps(least)}\n  engine: {why['verdict']} {why['error'][:200]}\n  errors: {errors(least)}"
            )
        yield tally


def errors(trial: dict) -> list[str]:
    """Ids of the error-level findings in the trial's own context.

    Advisories on wrong results (ZT9xx) are left out: a trial of a few steps does not see them.
    """
    versions = {"deepspeed": trial["deepspeed"]} if "deepspeed" in trial else {}
    if trial["entry"] == "trainer":
        flags = {**trial["flags"], "use_cpu": True}
        context = Context("trainer", 1, training_args=flags, model=TINY_LLAMA, versions=versions)
    else:
        context = Context("raw", 1, client_optimizer=trial.get("client_optimizer"), versions=versions)
    config = trial["config"] if trial["entry"] == "trainer" else with_optimizer(trial)
    found = [finding.rule for finding in check(config, context) if finding.severity == ERROR]
    return [rule for rule in found if not rule.startswith("ZT9")]


def left_out(trial: dict, answer: dict) -> str | None:
    """Why this answer says nothing about the config on a GPU."""
    zero = trial["config"].get("zero_optimization")
    if answer["verdict"] != "accepted" and isinstance(zero, dict) and zero.get("stage") == 3 and zero.get("zenflow"):
        return "ZenFlow at stage 3 asks for CUDA streams"
    return next((text for text in CPU_CANNOT_SHOW + BY_PROGRAM if text in answer["error"]), None)


def disagrees(trial: dict, answer: dict) -> bool:
    return (answer["verdict"] != "accepted") != bool(errors(trial))


def smaller(config: dict) -> Iterator[dict]:
    """Configs with one key less."""
    for name, value in config.items():
        yield {key: item for key, item in config.items() if key != name}
        if isinstance(value, dict):
            for less in smaller(value):
                yield {**config, name: less}


def shrink(trial: dict, answer: dict) -> tuple[dict, dict]:
    """The smallest trial that still disagrees in the same direction."""
    while True:
        for less in ({**trial, "config": config} for config in smaller(trial["config"])):
            found = next(judge_all([less]))
            same_way = (found["verdict"] == "accepted") == (answer["verdict"] == "accepted")
            if same_way and not left_out(less, found) and disagrees(less, found):
                trial, answer = less, found
                break
        else:
            return trial, answer
