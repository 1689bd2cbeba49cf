"""load_pretrained: from a model folder to a model whose weights every rank has read for itself."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from zerotune.loading import agreement, audit, engine_config, materialise, meta_model, source, stock, weight_files
from zerotune.loading.extents import Stored
from zerotune.loading.filling import Reader
from zerotune.loading.lazy_tensor import DTYPES


@dataclass(frozen=True)
class Report:
    """What a load took on this rank: `model.load_report`.

    Attributes:
        seconds: whole call.
        bytes_read: weights this rank read (headers left out).
        files_opened: weight files this rank opened.
        compared: elements that were compared with the files afterwards.
    """

    seconds: float
    bytes_read: int
    files_opened: int
    compared: int


def load_pretrained(
    name_or_path: str | Path,
    *,
    config=None,
    ds_config=None,
    dtype: torch.dtype | str | None = None,
    attn_implementation: str | None = None,
    model_class=None,
    revision: str = "main",
    trust_remote_code: bool = False,
    allow_keys: Sequence[str] = (),
    allow_pickle: bool = False,
) -> PreTrainedModel:
    """Load a pretrained model as `from_pretrained` does; under ZeRO-3 every rank reads its own partitions only.

    Nothing is initialised, broadcast or made whole on the way: a rank allocates and reads 1/N of every weight. Call it
    on all ranks, after `deepspeed.init_distributed()`. The model can go to `deepspeed.initialize` or a Trainer.

    Args:
        name_or_path: a model folder, or a hub name (its files come from the hub's cache or the network).
        config: the model's config; default: the folder's own.
        ds_config: the DeepSpeed config: a dict, a JSON file, or None for the one of the TrainingArguments that are
            alive. Without one, and for ZeRO stages below 3, every rank gets the whole model.
        dtype: of the parameters; default: what the DeepSpeed config trains in under ZeRO-3, else the config's own.
        attn_implementation: as for from_pretrained.
        model_class: a model class or an Auto class; default AutoModelForCausalLM.
        revision: branch, tag or commit of a hub model.
        trust_remote_code: run model code that comes with the model; such a model goes through `from_pretrained`.
        allow_keys: regular expressions; weights that match them may be absent, and are initialised, or too many.
        allow_pickle: take pytorch_model*.bin where there is no safetensors file. Its pickle is never run.

    Returns:
        The model in evaluation mode, `model.load_report` with it.

    Raises:
        UsageError: no such model, damaged files, or weights that do not fit; on every rank.
    """
    started = time.perf_counter()
    engine, dtype = engine_config.read(ds_config), engine_config.torch_dtype(dtype)
    engine_config.require_ranks(engine)
    with agreement.together() as seen:
        folder = source.folder(name_or_path, revision, with_pickle=allow_pickle)
        config = copy.deepcopy(config) if config is not None else source.config(folder, trust_remote_code)
        config.name_or_path = str(name_or_path)
        if attn_implementation:
            config._attn_implementation = attn_implementation
        if reason := stock.why(config, engine):
            return stock.load(reason, folder, config, engine, dtype, model_class, trust_remote_code)
        chosen = meta_model.class_for(config, model_class)
        tensors = weight_files.read_folder(folder, allow_pickle)
        dtype = _dtype(dtype, engine, config, tensors)
        seen.append(sorted((name, one.dtype, one.shape, one.offset) for name, one in tensors.items()))
    reader = Reader()
    model = meta_model.build(chosen, config, dtype)

    def equal(one, other) -> bool:
        return agreement.all_true(reader.equal_share(one, other, *agreement.my_share()))

    info = meta_model.attach(model, tensors, dtype, keep_in_fp32=engine.stage < 3, compare=equal)
    if info.conversion_errors:
        reason = f"{next(iter(info.conversion_errors))} needs a conversion that takes the values"
        return stock.load(reason, folder, config, engine, dtype, model_class, trust_remote_code)
    audit.require_keys(info, str(folder), allow_keys)
    weights = _with_memory(model, engine, dtype)
    goals = materialise.fill(weights, reader)
    materialise.compute_the_rest(model, weights)
    if engine.stage == 3:
        audit.require_shares(model)
    compared = audit.require_values(goals)
    source.set_generation_config(model, folder)
    model.load_report = Report(time.perf_counter() - started, reader.bytes_read, reader.files_opened, compared)
    reader.close()
    return model.eval()


def _with_memory(model: PreTrainedModel, engine: engine_config.Engine, dtype: torch.dtype) -> materialise.Weights:
    device = engine_config.local_device(engine)
    if engine.stage == 3:
        return materialise.partitioned(model, engine.config, dtype, device)
    return materialise.whole(model, device)


def _dtype(wanted: torch.dtype | None, engine: engine_config.Engine, config, tensors: dict[str, Stored]) -> torch.dtype:
    """The type of the parameters. zero.Init knows one only, that of the DeepSpeed config."""
    if engine.stage == 3:
        engine_config.require_dtype(wanted, engine)
        return engine.dtype
    if wanted is not None:
        return wanted
    stored = (DTYPES[one.dtype] for one in tensors.values())
    return config.dtype or next((one for one in stored if one.is_floating_point), torch.float32)
