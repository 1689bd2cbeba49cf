"""What a flag means when the user did not give it: chosen by the machine, never against an explicit flag."""

from __future__ import annotations

import importlib.util
import textwrap
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
LONGEST_WITHOUT_GPU = 512  # for a pretrained model; chats that are longer are left out, so no less
BATCH_WITHOUT_GPU = 4
FEWEST_STEPS_BETWEEN = 10  # evaluations of the default job: each takes as long as several steps
LINE = 110


def scratch_size(device_gib: float) -> ScratchSize:
    """The first row of SCRATCH_SIZES that the device's memory reaches."""
    return next(size for least, size in SCRATCH_SIZES if device_gib >= least)


def device_gib() -> float:
    """Memory of this rank's GPU in GiB, 0 without one."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory / 2**30 if torch.cuda.is_available() else 0.0


@dataclass(frozen=True)
class Choice:
    """A flag that the user left out, the value it got, and why."""

    name: str
    value: object
    because: str


def fill(args: Arguments, config: dict) -> list[Choice]:
    """Fill `args.training` and `args.data` where the user said nothing; return what was chosen.

    Args:
        args: the parsed flags, changed in place.
        config: the DeepSpeed config; where it fixes a value itself ("auto" is not fixed) that value is used.
    """
    chosen: dict[str, Choice] = {}

    def default(name: str, value, because: str) -> None:
        """The first word on a flag holds: the user's, then the config's, then ours."""
        if name in args.explicit or name in chosen:
            return
        if hasattr(args.data, name):
            setattr(args.data, name, value)
        else:
            args.training[name] = value
        chosen[name] = Choice(name, value, because)

    _precision(args, config, default)
    _follow_config(config, default)
    size = scratch_size(device_gib())
    if is_default_job(args):
        _demo_schedule(args, size, default)
    else:
        _own_job(args, size, default)
    if "logging_steps" not in args.explicit:
        args.training["logging_steps"] = 10
    if "report_to" not in args.explicit:
        args.training["report_to"] = "wandb" if importlib.util.find_spec("wandb") else "none"
    args.training["remove_unused_columns"] = False
    return list(chosen.values())


def in_words(chosen: list[Choice]) -> list[str]:
    """One line a reason, broken where it gets long."""
    lines = []
    for because in dict.fromkeys(one.because for one in chosen):
        flags = ", ".join(f"--{one.name}\0{one.value}" for one in chosen if one.because == because)
        wrapped = textwrap.wrap(f"chosen ({because}): {flags}", LINE, subsequent_indent="  ", break_on_hyphens=False)
        lines += [line.replace("\0", " ") for line in wrapped]
    return lines


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


def _follow_config(config: dict, default) -> None:
    """Take a TrainingArguments value from the config when only the config gives it."""
    optimizer, scheduler = _params(config, "optimizer"), _params(config, "scheduler")
    betas = optimizer.get("betas")
    beta1, beta2 = betas if isinstance(betas, list) and len(betas) == 2 else (None, None)
    for name, value in (
        ("per_device_train_batch_size", config.get("train_micro_batch_size_per_gpu")),
        ("gradient_accumulation_steps", config.get("gradient_accumulation_steps")),
        ("max_grad_norm", config.get("gradient_clipping")),
        ("learning_rate", optimizer.get("lr")),
        ("learning_rate", scheduler.get("warmup_max_lr")),
        ("weight_decay", optimizer.get("weight_decay")),
        ("adam_beta1", beta1),
        ("adam_beta2", beta2),
        ("adam_epsilon", optimizer.get("eps")),
        ("warmup_steps", scheduler.get("warmup_num_steps")),
    ):
        if isinstance(value, int | float) and not isinstance(value, bool):
            default(name, value, "the config says so")


def _params(config: dict, block: str) -> dict:
    """The `params` of the config's optimizer or scheduler; empty when there are none."""
    params = config[block].get("params") if isinstance(config.get(block), dict) else None
    return params if isinstance(params, dict) else {}


def _demo_schedule(args: Arguments, size: ScratchSize, default) -> None:
    """The default job: a few minutes, evaluated and saved at each third of them."""
    because = "default job"
    if "num_train_epochs" not in args.explicit:
        default("max_steps", size.max_steps, because)
    default("max_seq_length", size.max_seq_length, because)
    default("per_device_train_batch_size", size.micro_batch, because)
    default("per_device_eval_batch_size", size.micro_batch, because)
    default("max_eval_samples", size.eval_samples, because)
    default("learning_rate", size.learning_rate, because)
    default("lr_scheduler_type", "cosine", because)
    steps = args.training["max_steps"]
    # With epochs the number of steps is not known yet: transformers reads a value below 1 as a share of it.
    default("warmup_steps", max(1, min(20, steps // 10)) if steps > 0 else 0.1, because)
    default("weight_decay", 0.1, because)
    default("adam_beta2", 0.95, because)
    third = max(FEWEST_STEPS_BETWEEN, steps // 3) if steps > 0 else 0.33
    if "eval_strategy" not in args.explicit:
        args.training["eval_strategy"] = "steps"
        default("eval_steps", third, because)
    if "save_strategy" not in args.explicit and "save_steps" not in args.explicit:
        default("save_steps", third, because)
        default("save_total_limit", 2, because)


def _own_job(args: Arguments, size: ScratchSize, default) -> None:
    """The user's own model or data: transformers' values, less where a CPU would need hours for them."""
    if device_gib() == 0:
        because = "no GPU"
        default("max_seq_length", size.max_seq_length if is_scratch(args) else LONGEST_WITHOUT_GPU, because)
        default("per_device_train_batch_size", BATCH_WITHOUT_GPU, because)
        default("per_device_eval_batch_size", BATCH_WITHOUT_GPU, because)
    schedule = () if args.training["max_steps"] > 0 else ("num_train_epochs",)
    for name in ("per_device_train_batch_size", "learning_rate", *schedule):
        default(name, args.training[name], "transformers' defaults")
