"""What the loader has to know of a DeepSpeed config."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from deepspeed.accelerator import get_accelerator
from transformers.integrations.deepspeed import deepspeed_config

from zerotune.errors import UsageError


@dataclass(frozen=True)
class Engine:
    """A DeepSpeed config, its ZeRO stage and the type it trains in. Without DeepSpeed: {} and stage 0."""

    config: dict
    stage: int
    dtype: torch.dtype


def read(ds_config) -> Engine:
    """Read a config.

    Args:
        ds_config: dict, path of a JSON file, transformers' HfDeepSpeedConfig, or None for the one that is alive.

    Raises:
        UsageError: the file cannot be read.
    """
    config = _plain(ds_config)
    stage = config.get("zero_optimization", {}).get("stage", 0)
    dtype = torch.float32
    for key, one in (("bf16", torch.bfloat16), ("bfloat16", torch.bfloat16), ("fp16", torch.float16)):
        if config.get(key, {}).get("enabled") is True:
            dtype = one
            break
    return Engine(config, int(stage), dtype)


def _plain(ds_config) -> dict:
    if ds_config is None:
        return deepspeed_config() or {}
    if not isinstance(ds_config, str | Path):
        return getattr(ds_config, "config", ds_config)
    try:
        return json.loads(Path(ds_config).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"ds_config {ds_config}: cannot be read as JSON: {error}") from None


def require_ranks(engine: Engine) -> None:
    """Before the ranks have met, zero.Init would believe in one rank.

    Raises:
        UsageError: ZeRO-3, and torch.distributed is not initialised.
    """
    if engine.stage == 3 and not torch.distributed.is_initialized():
        raise UsageError("under ZeRO-3 call deepspeed.init_distributed() before load_pretrained, on every rank.")


def local_device(engine: Engine) -> torch.device:
    """Where the parameters are used: this rank's accelerator under DeepSpeed, as zero.Init takes it, else the CPU."""
    if not engine.config:
        return torch.device("cpu")
    return torch.device(get_accelerator().device_name(int(os.environ.get("LOCAL_RANK", 0))))


def torch_dtype(name) -> torch.dtype | None:
    """A torch dtype by its name; None for None and "auto".

    Raises:
        UsageError: no such type.
    """
    if name is None or name == "auto" or isinstance(name, torch.dtype):
        return name if isinstance(name, torch.dtype) else None
    found = getattr(torch, str(name), None)
    if not isinstance(found, torch.dtype):
        raise UsageError(f"dtype {name!r}: no such type. Use bfloat16, float16 or float32.")
    return found


def require_dtype(wanted, engine: Engine) -> None:
    """Under ZeRO-3 the parameters have the type of the config.

    Raises:
        UsageError: another one is wanted.
    """
    if isinstance(wanted, torch.dtype) and wanted != engine.dtype:
        raise UsageError(
            f"dtype {wanted}: under ZeRO-3 the parameters have the type that the DeepSpeed config trains in, here "
            f"{engine.dtype}. Leave dtype out, or change bf16.enabled / fp16.enabled."
        )
