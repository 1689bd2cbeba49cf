"""A resumed run keeps its global batch: the schedule and the place in the data are counted in it."""

from __future__ import annotations

from dataclasses import dataclass

from zerotune.errors import UsageError

MICRO, ACCUMULATION = "per_device_train_batch_size", "gradient_accumulation_steps"
SHOWN = 8


@dataclass(frozen=True)
class Batch:
    """Sequences an optimizer step takes: ranks * micro * accumulation."""

    ranks: int
    micro: int
    accumulation: int

    @property
    def total(self) -> int:
        return self.ranks * self.micro * self.accumulation

    def __str__(self) -> str:
        return f"{self.total} = {self.ranks} rank(s) x {self.micro} x {self.accumulation} accumulated"


def keep(was: Batch, ranks: int, training: dict, fixed: set[str]) -> Batch:
    """Change micro batch and accumulation in `training` so that the global batch stays what it was.

    The micro batch stays too where it can; else the largest smaller one is taken.

    Args:
        was: the run that is resumed.
        ranks: of this job.
        training: the values of TrainingArguments, changed in place.
        fixed: those of `MICRO` and `ACCUMULATION` that the user or the config gave.

    Raises:
        UsageError: the fixed values, or the number of ranks, cannot make the same global batch.
    """
    if was.total % ranks:
        counts = [count for count in range(1, was.total + 1) if was.total % count == 0]
        raise UsageError(
            f"--resume_from_checkpoint: the run has a global batch of {was}, which {ranks} ranks cannot share evenly. "
            f"Start one of these numbers of ranks: {_some(counts)}, or leave the place in the data with "
            "--ignore_data_skip."
        )
    each = was.total // ranks
    choices = [(micro, each // micro) for micro in range(1, each + 1) if each % micro == 0]
    fitting = [
        (micro, accumulation)
        for micro, accumulation in choices
        if (MICRO not in fixed or micro == training[MICRO])
        and (ACCUMULATION not in fixed or accumulation == training[ACCUMULATION])
    ]
    if not fitting:
        given = " and ".join(f"--{name} {training[name]}" for name in (MICRO, ACCUMULATION) if name in fixed)
        work = _some([f"{micro} x {accumulation}" for micro, accumulation in choices])
        raise UsageError(
            f"--resume_from_checkpoint: the run has a global batch of {was}, and {given} on {ranks} rank(s) cannot "
            f"make {was.total}. On {ranks} rank(s) these do (--{MICRO} x --{ACCUMULATION}): {work}. Or leave both out."
        )
    micro, accumulation = max((one for one in fitting if one[0] <= was.micro), default=fitting[0])
    training[MICRO], training[ACCUMULATION] = micro, accumulation
    return Batch(ranks, micro, accumulation)


def refuse_other_order(was: Batch, now: Batch, training: dict) -> None:
    """Some ways to go through the data depend on the sizes of the parts, not only on the global batch.

    Raises:
        UsageError: such a way is chosen, and the parts changed.
    """
    ordered = training.get("train_sampling_strategy") not in (None, "random", "sequential")
    drop_last = training.get("dataloader_drop_last") and was.ranks * was.micro != now.ranks * now.micro
    if drop_last or (ordered and (was.micro, was.accumulation) != (now.micro, now.accumulation)):
        flag = (
            "--dataloader_drop_last"
            if drop_last
            else f"--train_sampling_strategy {training['train_sampling_strategy']}"
        )
        raise UsageError(
            f"--resume_from_checkpoint: with {flag} the order of the data depends on the ranks and the micro batch. "
            f"The run had {was}, this one has {now}: resume as it was, or leave the place in the data with "
            "--ignore_data_skip."
        )


def _some(values: list) -> str:
    return ", ".join(map(str, values[:SHOWN])) + (f", ... {values[-1]}" if len(values) > SHOWN else "")
