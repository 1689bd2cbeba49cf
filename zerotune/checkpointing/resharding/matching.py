"""Is a checkpoint one of this model and of this kind of optimizer?"""

from __future__ import annotations

from pathlib import Path

import torch

from zerotune.checkpointing.resharding.layout import groups
from zerotune.checkpointing.resharding.stored import Stored
from zerotune.errors import UsageError
from zerotune.loading.lazy_tensor import DTYPES

SHOWN = 3
TELLING = {"betas", "eps", "momentum"}  # settings that tell kinds of optimizers apart
ADAM_STATES = {"exp_avg", "exp_avg_sq"}


def require_same_model(folder: Path, shapes: dict[str, tuple[int, ...]], engine) -> None:
    """Names and shapes of what is trained must be those of the checkpoint.

    Args:
        shapes: of the parameters that the checkpoint's optimizer owns.

    Raises:
        UsageError: the first that differ.
    """
    owned = {param for group in groups(engine.optimizer) for param in group}
    here = {name: _shape(param) for name, param in engine.module.named_parameters() if param in owned}
    there = {name: tuple(shape) for name, shape in shapes.items()}
    differing = [
        f"{name}: {there[name]} there, {here[name]} here" for name in here if there.get(name, here[name]) != here[name]
    ]
    differing += [f"{name} {here[name]}: only here" for name in here if name not in there]
    differing += [f"{name} {there[name]}: only in the checkpoint" for name in there if name not in here]
    if differing:
        rest = f"\n  and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        raise UsageError(
            f"--resume_from_checkpoint {folder}: a checkpoint of another model, or other parameters are "
            "trained:\n  " + "\n  ".join(differing[:SHOWN]) + rest + "\nResume with the model flags of that run."
        )


def require_same_frozen(stored: Stored, engine, names: list[str]) -> bool:
    """Are the frozen parameters `names` in the checkpoint? A LoRA run saves none: they come from the base model.

    Raises:
        UsageError: only some are, or in another shape.
    """
    tensors, params = stored.weights.tensors, dict(engine.module.named_parameters())
    absent = [name for name in names if name not in tensors]
    if absent and len(absent) == len(names):
        return False
    other = [f"{name} {tuple(tensors[name].shape)} there, {_shape(params[name])} here" for name in names
             if name in tensors and tuple(tensors[name].shape) != _shape(params[name])]  # fmt: skip
    wrong = [f"{name} only here" for name in absent] + other
    if wrong:
        raise UsageError(
            f"--resume_from_checkpoint {stored.weights.folder}: a checkpoint of another model. Frozen parameters: "
            f"{'; '.join(wrong[:SHOWN])}. Resume with the model flags of that run."
        )
    return True


def require_same_optimizer(stored: Stored, engine) -> None:
    """The optimizer must be of the kind that wrote the checkpoint: Adam and AdamW of torch or DeepSpeed are one kind.

    Raises:
        UsageError: its settings or states are others.
    """
    settings, saved = engine.optimizer.optimizer.param_groups[0], stored.hyperparameters[stored.masters[0]]
    there, here = TELLING & set(saved), TELLING & set(settings)
    lacks = here == {"betas", "eps"} and bool(stored.tensors) and bool(ADAM_STATES - set(stored.tensors))
    if there != here or lacks:
        raise UsageError(
            f"--resume_from_checkpoint {stored.weights.folder}: another optimizer wrote it: settings "
            f"{', '.join(sorted(saved))} and states {', '.join(stored.tensors) or 'none'} there, settings "
            f"{', '.join(sorted(settings))} here. Choose the same --optim or optimizer block."
        )


def require_no_rounding(stored: Stored, key: str, name: str, source: str, target: torch.dtype) -> None:
    """A state must be kept in no fewer bits than it was saved in.

    Raises:
        UsageError: it would be.
    """
    if torch.promote_types(DTYPES[source], target) != target:
        raise UsageError(
            f"--resume_from_checkpoint {stored.weights.folder}: {key} of {name} is {DTYPES[source]} there and "
            f"{target} here, which would round it. Resume with the master weights' type of that run "
            "(bf16_master_weights_and_grads, fp16_master_weights_and_grads)."
        )


def _shape(param) -> tuple[int, ...]:
    return tuple(getattr(param, "ds_shape", param.shape))
