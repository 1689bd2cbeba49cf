"""load_pretrained: from a model folder to a model whose weights every rank has read for itself."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from deepspeed.accelerator import get_accelerator
from transformers import AutoConfig, GenerationConfig
from transformers.integrations.deepspeed import HfDeepSpeedConfig, deepspeed_config

from zerotune.errors import UsageError
from zerotune.loading import audit, lazy_tensor, materialise, meta_model, weight_files
from zerotune.loading.filling import Goal, Reader
from zerotune.loading.lazy_tensor import DTYPES


@dataclass(frozen=True)
class Report:
    """What a load took on this rank; `model.load_report`.

    Attributes:
        bytes_read: by this rank, headers left out.
        compared: elements that were compared with the files afterwards.
    """

    seconds: float
    bytes_read: int
    compared: int


def load_pretrained(
    name_or_path: str | Path,
    *,
    config=None,
    ds_config=None,
    dtype: torch.dtype | None = None,
    attn_implementation: str | None = None,
    model_class=None,
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
    allow_pickle: bool = False,
):
    """Load a pretrained model; under ZeRO-3 every rank reads its own partitions, and no weight is ever whole."""
    started = time.perf_counter()
    folder = Path(name_or_path)
    ds_config = _plain(ds_config)
    stage = int((ds_config or {}).get("zero_optimization", {}).get("stage", 0))
    tensors = weight_files.read_folder(folder, allow_pickle)
    config = copy.deepcopy(config) if config is not None else AutoConfig.from_pretrained(folder)
    if attn_implementation:
        config._attn_implementation = attn_implementation
    config.name_or_path = str(name_or_path)
    if stage == 3:
        dtype = _zero3_dtype(ds_config)
    elif dtype is None:
        dtype = config.dtype or next(
            DTYPES[one.dtype] for one in tensors.values() if DTYPES[one.dtype].is_floating_point
        )
    model = meta_model.build(meta_model.class_for(config, model_class), config, dtype)
    reader = Reader()
    info = meta_model.attach(model, tensors, dtype, keep_in_fp32=stage < 3)
    audit.require_keys(info, str(folder), allow_missing, allow_unexpected)
    device = torch.device(get_accelerator().current_device_name()) if ds_config else torch.device("cpu")
    if stage == 3:
        weights = materialise.partitioned(model, ds_config, dtype, device)
    else:
        weights = materialise.whole(model, device)
    goals = materialise.fill(weights, reader)
    materialise.compute_the_rest(model, weights)
    if stage == 3:
        audit.require_shares(model)
    compared = audit.require_values(goals)
    reader.close()
    model.eval()
    model.load_report = Report(time.perf_counter() - started, reader.bytes_read, compared)
    return model


def _plain(ds_config) -> dict | None:
    if ds_config is None:
        return deepspeed_config()
    if isinstance(ds_config, str | Path):
        return json.loads(Path(ds_config).read_text(encoding="utf-8"))
    return getattr(ds_config, "config", ds_config)


def _zero3_dtype(ds_config: dict) -> torch.dtype:
    for key, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if ds_config.get(key, {}).get("enabled") is True:
            return dtype
    return torch.float32
