"""Runs out of a DeepSpeed config and the flags beside it: of `zerotune-config plan`, and of a training job."""

from __future__ import annotations

from collections.abc import Mapping

from zerotune.ds_config.resolve import resolve, template_names
from zerotune.errors import UsageError, nearest

from .degrees import degrees_of
from .gpu_terms import MOMENTS
from .hardware import Cluster
from .run import PRECISIONS, Run, Zero, zero_of
from .shapes import Shapes

# TrainingArguments.optim by what it starts with: the planner's name. Others keep other numbers of bytes for a weight.
TRAINER_OPTIMIZERS = {"adamw_torch": "adamw", "adamw_hf": "adamw", "sgd": "sgd", "adagrad": "adagrad"}


def templates(shapes: Shapes) -> dict[str, Zero]:
    """Every shipped template as this model would run it."""
    return {name: zero_of(resolve(name).config, shapes, name) for name in template_names()}


def precision_of(config: dict, cluster: Cluster) -> str:
    """What the config switches on, else what the device is fastest in."""
    for kind in ("bf16", "fp16"):
        block = config.get(kind)
        if isinstance(block, dict) and block.get("enabled") is True:
            return kind
    device = cluster.device
    return "bf16" if device.bf16 else "fp16" if device.fp16 else "fp32"


def grad_accum_of(config: dict) -> str | None:
    """data_types.grad_accum_dtype.

    Raises:
        UsageError: none of the types that DeepSpeed takes.
    """
    block = config.get("data_types")
    value = block.get("grad_accum_dtype") if isinstance(block, dict) else None
    if value is not None and value not in PRECISIONS:
        raise UsageError(f"data_types.grad_accum_dtype is {value!r}; it may be {', '.join(PRECISIONS)}")
    return value


def optimizer_of(flag: str | None, config: dict) -> str:
    """The flag, else the config's optimizer, else AdamW, under the planner's name.

    Raises:
        UsageError: an optimizer whose states the planner doesn't know.
    """
    block = config.get("optimizer")
    name = str(flag or (block.get("type") if isinstance(block, dict) else None) or "adamw").lower()
    if name not in MOMENTS:
        close = nearest(name, MOMENTS) or list(MOMENTS)
        raise UsageError(f"the planner knows no optimizer {name!r}; nearest: {', '.join(close)} (--optimizer)")
    return name


def training_run(shapes: Shapes, cluster: Cluster, config: dict, values: Mapping, **data) -> Run:
    """The run that train.py is about to start.

    Args:
        config: the DeepSpeed config, "auto" or filled in.
        values: TrainingArguments by name.
        data: seq, attn, packed, from_scratch and background_save, as Run has them.

    Raises:
        UsageError: an optimizer or a number that can't be planned.
    """
    liger = bool(values.get("use_liger_kernel"))
    return Run(
        shapes=shapes,
        cluster=cluster,
        zero=zero_of(config, shapes),
        precision="bf16" if values.get("bf16") else "fp16" if values.get("fp16") else "fp32",
        grad_accum=grad_accum_of(config),
        optimizer=optimizer_of(_trainer_optimizer(config, values), config),
        micro_batch=values["per_device_train_batch_size"],
        accumulation=values["gradient_accumulation_steps"],
        recompute=bool(values.get("gradient_checkpointing") or values.get("activation_checkpointing")),
        fused_loss=liger,
        fused_kernels=liger,
        degrees=degrees_of(config),
        **data,
    )


def _trainer_optimizer(config: dict, values: Mapping) -> str | None:
    """The Trainer's own, where the config names none."""
    if "optimizer" in config:
        return None
    asked = str(getattr(values.get("optim"), "value", values.get("optim")) or "adamw_torch")
    bits = any(word in asked for word in ("8bit", "4bit", "torchao", "anyprecision"))
    return (
        asked if bits else next((ours for start, ours in TRAINER_OPTIMIZERS.items() if asked.startswith(start)), asked)
    )
