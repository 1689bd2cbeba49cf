"""The one entry: continue an engine from a checkpoint, whatever kind of run wrote it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zerotune.checkpointing.resharding import kind, layout, matching
from zerotune.checkpointing.resharding.restore import restore
from zerotune.checkpointing.resharding.stored import index, zero_folder
from zerotune.checkpointing.same_run import read_rank_states
from zerotune.errors import UsageError


def load(engine, checkpoint: Path, say: Callable[[str], None], strict: bool = True) -> None:
    """Continue `engine` from a checkpoint folder (the one that holds `latest`). All ranks call it.

    A run of the same kind is loaded by DeepSpeed itself, which also knows NVMe and its special optimizers.

    Args:
        say: told in one line what was found and what it becomes.
        strict: all of the module's weights must be in the checkpoint (not so for LoRA).

    Raises:
        UsageError: no such checkpoint, or not one of this model and optimizer.
    """
    states = read_rank_states(zero_folder(checkpoint))
    there, here = kind.of_checkpoint(states), kind.of_engine(engine)
    _refuse_impossible(checkpoint, there, here)
    groups = states.models[0].get("param_shapes") or []
    if here.stage:
        shapes = {name: shape for group in groups for name, shape in group.items()}
        matching.require_same_model(checkpoint, shapes, engine)
    same = there == here and (not here.stage or [list(group) for group in groups] == layout.named_groups(engine))
    if not same:
        say(f"resume: {there} -> {here}")
    if here.stage and kind.NVME not in (there.optimizer, there.parameters):
        stored = index(states)
        matching.require_same_optimizer(stored, engine)
        if not same:
            restore(engine, stored)
    if same:
        engine.load_checkpoint(str(checkpoint), load_module_strict=strict)
        say(f"resume: {there}, as before")


def _refuse_impossible(checkpoint: Path, there: kind.Kind, here: kind.Kind) -> None:
    if there == here:
        return
    if not (there.stage and here.stage):
        raise UsageError(
            f"--resume_from_checkpoint {checkpoint}: written at ZeRO stage {there.stage}, this run has stage "
            f"{here.stage}. Stages 1, 2 and 3 can be exchanged, stage 0 cannot."
        )
    if kind.NVME in (there.optimizer, there.parameters, here.optimizer, here.parameters):
        raise UsageError(
            f"--resume_from_checkpoint {checkpoint}: states on NVMe are resumed only as they were written. "
            f"There: {there}. Here: {here}."
        )
