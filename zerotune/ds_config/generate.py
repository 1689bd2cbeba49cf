"""A template with some values written in. Deterministic: the same options give the same text."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass

from zerotune.errors import UsageError

PRECISIONS = ("auto", "bf16", "fp16", "fp32")


@dataclass(frozen=True)
class Options:
    """What to write into a template; None leaves the template's value.

    precision: auto follows the Trainer's flags. Buckets count elements, not bytes.
    """

    precision: str | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    clip: float | None = None
    lr: float | None = None
    nvme_path: str | None = None
    pin_memory: bool | None = None
    reduce_bucket: int | None = None
    allgather_bucket: int | None = None
    prefetch_bucket: int | None = None


def generate(name: str, template: dict, options: Options) -> dict:
    """The template's config with the options written in.

    Raises:
        UsageError: an option that the template has no use for.
    """
    config = copy.deepcopy(template)
    zero = config["zero_optimization"]
    _precision(config, options.precision)
    if options.micro_batch is not None:
        config["train_micro_batch_size_per_gpu"] = options.micro_batch
    if options.accumulation is not None:
        config["gradient_accumulation_steps"] = options.accumulation
    if options.clip is not None:
        config["gradient_clipping"] = options.clip
    if options.lr is not None:
        config["optimizer"]["params"]["lr"] = options.lr
    _offload(name, zero, options)
    _buckets(name, zero, options)
    return config


def _precision(config: dict, precision: str | None) -> None:
    if precision in (None, "auto"):
        return
    for kind in ("bf16", "fp16"):
        if precision == kind:
            config[kind]["enabled"] = True
        else:
            config[kind] = {"enabled": False}


def _offload(name: str, zero: dict, options: Options) -> None:
    blocks = [zero[key] for key in ("offload_optimizer", "offload_param") if key in zero]
    if options.nvme_path is not None:
        targets = [block for block in blocks if block["device"] == "nvme"]
        if not targets:
            raise UsageError(f"--nvme-path: {name} puts nothing on NVMe; stage3_nvme does")
        for block in targets:
            block["nvme_path"] = options.nvme_path
    if options.pin_memory is not None:
        if not blocks:
            raise UsageError(f"--no-pin-memory: {name} offloads nothing; the *_offload templates do")
        for block in blocks:
            block["pin_memory"] = options.pin_memory


def _buckets(name: str, zero: dict, options: Options) -> None:
    if options.reduce_bucket is not None:
        zero["reduce_bucket_size"] = options.reduce_bucket
    if options.allgather_bucket is not None:
        if zero["stage"] == 3:
            raise UsageError(f"--allgather-bucket: stage 3 ({name}) does not read it; use --prefetch-bucket")
        if options.allgather_bucket % 2:
            raise UsageError(f"--allgather-bucket {options.allgather_bucket} is odd: DeepSpeed wants an even number")
        zero["allgather_bucket_size"] = options.allgather_bucket
    if options.prefetch_bucket is not None:
        if zero["stage"] != 3:
            raise UsageError(f"--prefetch-bucket: only stage 3 reads it, {name} is stage {zero['stage']}")
        zero["stage3_prefetch_bucket_size"] = options.prefetch_bucket


def flags_to_match(options: Options) -> list[str]:
    """Flags that a Trainer run needs now, since it compares these values with its own."""
    flags = []
    if options.precision in ("bf16", "fp16"):
        flags.append(f"--{options.precision} true")
    if options.precision == "fp32":
        flags += ["--bf16 false", "--fp16 false"]
    pairs = {
        "per_device_train_batch_size": options.micro_batch,
        "gradient_accumulation_steps": options.accumulation,
        "max_grad_norm": options.clip,
        "learning_rate": options.lr,
    }
    return flags + [f"--{name} {value}" for name, value in pairs.items() if value is not None]


def text_of(config: dict) -> str:
    return json.dumps(config, indent=2) + "\n"
