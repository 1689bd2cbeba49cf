"""What a flag means when the user did not give it: chosen by the machine, never against an explicit flag."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from zerotune.training.arguments import Arguments


@dataclass(frozen=True)
class ScratchSize:
    """A small Llama and a schedule that fits one kind of machine."""

    hidden_size: int
    num_layers: int
    num_heads: int
    max_seq_length: int
    micro_batch: int
    max_steps: int
    eval_samples: int
    learning_rate: float


# First match wins: least device memory in GiB (0 = no GPU). The CPU row ends within 5 minutes on 2 cores,
# the operators' compilation included; the GPU rows within a few minutes on one card of that size.
SCRATCH_SIZES = (
    (60, ScratchSize(1024, 16, 16, 2048, 8, 200, 64, 6e-4)),
    (14, ScratchSize(768, 12, 12, 1024, 8, 300, 256, 6e-4)),
    (1, ScratchSize(512, 8, 8, 512, 8, 300, 256, 1e-3)),
    (0, ScratchSize(256, 4, 4, 256, 8, 150, 64, 2e-3)),
)
LONGEST_DEFAULT = 2048


def scratch_size(device_gib: float) -> ScratchSize:
    """The first row of SCRATCH_SIZES that the device's memory reaches."""
    return next(size for least, size in SCRATCH_SIZES if device_gib >= least)


def device_gib() -> float:
    """Memory of this rank's GPU in GiB, 0 without one."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory / 2**30 if torch.cuda.is_available() else 0.0


def fill(args: Arguments, config: dict) -> list[str]:
    """Fill `args.training` and `args.data` where the user said nothing; return what was chosen, in words.

    Args:
        args: the parsed flags, changed in place.
        config: the DeepSpeed config; where it fixes a value itself ("auto" is not fixed) that value is used.
    """
    said: list[str] = []

    def default(name: str, value, because: str) -> None:
        if name not in args.explicit:
            args.training[name] = value
            said.append(f"--{name} {value} ({because})")

    _precision(args, config, default)
    _follow_config(args, config, default)
    if is_default_job(args):
        _demo_schedule(args, scratch_size(device_gib()), default)
    if "logging_steps" not in args.explicit:
        args.training["logging_steps"] = 10
    if "report_to" not in args.explicit:
        args.training["report_to"] = "wandb" if importlib.util.find_spec("wandb") else "none"
    args.training["remove_unused_columns"] = False
    return said


def is_default_job(args: Arguments) -> bool:
    """True when a small model is trained from scratch on the built-in corpus."""
    model = args.model
    return not (model.model_name_or_path or model.config_name or args.data.dataset_name)


def is_scratch(args: Arguments) -> bool:
    """True when the model starts from random weights."""
    return args.model.model_name_or_path is None


def _precision(args: Arguments, config: dict, default) -> None:
    """bf16 where the GPU has it, else fp16; fp32 on CPU. A config that fixes the precision wins."""
    import torch

    if {"bf16", "fp16", "bf16_full_eval", "fp16_full_eval"} & args.explicit:
        return
    for name in ("bf16", "fp16"):
        if config.get(name, {}).get("enabled") is True:
            default(name, True, "the config enables it")
            return
    if any(config.get(name, {}).get("enabled", "auto") != "auto" for name in ("bf16", "fp16")):
        return
    if torch.cuda.is_available():
        name = "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
        default(name, True, "the GPU supports it")


def _follow_config(args: Arguments, config: dict, default) -> None:
    """Take a TrainingArguments value from the config when only the config gives it."""
    params = config.get("optimizer", {}).get("params", {}) if isinstance(config.get("optimizer"), dict) else {}
    for name, value in (
        ("per_device_train_batch_size", config.get("train_micro_batch_size_per_gpu")),
        ("gradient_accumulation_steps", config.get("gradient_accumulation_steps")),
        ("max_grad_norm", config.get("gradient_clipping")),
        ("learning_rate", params.get("lr")),
        ("weight_decay", params.get("weight_decay")),
    ):
        if isinstance(value, int | float) and not isinstance(value, bool):
            default(name, value, "the config says so")


def _demo_schedule(args: Arguments, size: ScratchSize, default) -> None:
    because = "default job"
    default("learning_rate", size.learning_rate, because)
    if "num_train_epochs" not in args.explicit:
        default("max_steps", size.max_steps, because)
    default("per_device_train_batch_size", size.micro_batch, because)
    default("per_device_eval_batch_size", size.micro_batch, because)
    default("lr_scheduler_type", "cosine", because)
    default("warmup_steps", max(1, min(20, args.training["max_steps"] // 10)), because)
    default("weight_decay", 0.1, because)
    default("adam_beta2", 0.95, because)
    if "eval_strategy" not in args.explicit:
        args.training.update(eval_strategy="steps")
        default("eval_steps", max(1, args.training["max_steps"] // 3), because)
    if args.data.max_seq_length is None:
        args.data.max_seq_length = size.max_seq_length
    if args.data.max_eval_samples is None:
        args.data.max_eval_samples = size.eval_samples
