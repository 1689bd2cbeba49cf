"""Config values that the Trainer owns: it fills them when they are "auto" and compares them when they are not.

transformers 5.24 integrations/deepspeed.py:134-246 (fill_match).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .context import TRAINER

# Config path -> who owns it under the Trainer.
OWNERS = {
    "train_micro_batch_size_per_gpu": "--per_device_train_batch_size",
    "gradient_accumulation_steps": "--gradient_accumulation_steps",
    "train_batch_size": "the product of the batch flags and the world size",
    "gradient_clipping": "--max_grad_norm",
    "optimizer.params.lr": "--learning_rate",
    "optimizer.params.betas": "--adam_beta1 and --adam_beta2",
    "optimizer.params.eps": "--adam_epsilon",
    "optimizer.params.weight_decay": "--weight_decay",
    "scheduler.params.warmup_max_lr": "--learning_rate",
    "scheduler.params.warmup_num_steps": "the warmup of the flags",
    "scheduler.params.total_num_steps": "the steps of the run",
    "bf16.enabled": "--bf16",
    "fp16.enabled": "--fp16",
}


@dataclass(frozen=True)
class Owned:
    """A config value that must equal a flag. flag: as it is typed; value: None when it can't be known."""

    path: str
    flag: str
    value: object
    typed: bool


def owned(view) -> list[Owned]:
    """What the Trainer compares, with the values it compares with. Empty when the flags are unknown."""
    context = view.context
    if context.entry != TRAINER or context.training_args is None:
        return []
    rows = []

    def add(path: str, flag: str, value: object, *names: str) -> None:
        rows.append(Owned(path, flag, value, any(map(context.typed, names or (flag,)))))

    batch = {} if context.argument("auto_find_batch_size") else batch_values(context)
    for path, (flag, value, names) in batch.items():
        add(path, flag, value, *names)
    add("gradient_accumulation_steps", "gradient_accumulation_steps", context.argument("gradient_accumulation_steps"))
    add("gradient_clipping", "max_grad_norm", context.argument("max_grad_norm"))
    betas = [context.argument("adam_beta1"), context.argument("adam_beta2")]
    betas = None if None in betas else betas
    add("optimizer.params.lr", "learning_rate", context.argument("learning_rate"))
    add("optimizer.params.betas", "adam_beta1 and --adam_beta2", betas, "adam_beta1", "adam_beta2")
    add("optimizer.params.eps", "adam_epsilon", context.argument("adam_epsilon"))
    add("optimizer.params.weight_decay", "weight_decay", context.argument("weight_decay"))
    add("scheduler.params.warmup_max_lr", "learning_rate", context.argument("learning_rate"))
    for kind in ("fp16", "bf16"):
        asked = (context.argument(kind), context.argument(f"{kind}_full_eval"))
        value = True if any(asked) else None if None in asked else False
        add(f"{kind}.enabled", kind, value, kind, f"{kind}_full_eval")
    steps = context.argument("max_steps")
    if isinstance(steps, int) and steps > 0:
        add("scheduler.params.total_num_steps", "max_steps", steps)
    warmup = warmup_steps(context)
    if warmup is not None:
        asked = context.argument("warmup_steps")
        flag = "warmup_steps" if asked == warmup else f"warmup_steps {asked}, at least 1 step,"
        rows.append(Owned("scheduler.params.warmup_num_steps", flag, warmup, context.typed("warmup_steps")))
    return rows


def warmup_steps(context) -> int | None:
    """What the Trainer compares: max(1, steps), where a value below 1 is a share of the run (training_args.py:2154)."""
    asked, steps = context.argument("warmup_steps"), context.argument("max_steps")
    if isinstance(asked, bool) or not isinstance(asked, (int, float)):
        return None
    if asked >= 1 or asked == 0:
        return max(1, int(asked))
    return max(1, math.ceil(steps * asked)) if isinstance(steps, int) and steps > 0 else None


def batch_values(context) -> dict:
    micro = context.argument("per_device_train_batch_size")
    steps = context.argument("gradient_accumulation_steps")
    values = {"train_micro_batch_size_per_gpu": ("per_device_train_batch_size", micro, ())}
    if context.world_size and isinstance(micro, int) and isinstance(steps, int):
        product = (
            f"per_device_train_batch_size {micro} x --gradient_accumulation_steps {steps} x {context.world_size} ranks"
        )
        names = ("per_device_train_batch_size", "gradient_accumulation_steps")
        values["train_batch_size"] = (product, context.world_size * micro * steps, names)
    return values
