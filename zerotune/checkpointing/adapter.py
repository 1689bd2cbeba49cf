"""LoRA checkpoints: the adapter alone in PEFT's own format, or merged into its base model.

The HF Trainer saves a PEFT model's ZeRO checkpoint without the frozen base, so a merged export reads the base from
its own safetensors. Names are PEFT's (peft/utils/save_and_load.py and peft/tuners/lora, 0.21): weights of the
adapter carry the adapter's name, "default"; a wrapped layer's own weights sit below `.base_layer`.
"""

import math
import re
from dataclasses import replace
from pathlib import Path

from zerotune.checkpointing.checkpoint_folder import OpenedCheckpoint
from zerotune.checkpointing.safetensors_source import read_safetensors_folder
from zerotune.checkpointing.weights import LowRankDelta, SourceTensor
from zerotune.checkpointing.zero_shards import ZeroCheckpoint
from zerotune.errors import UsageError

PREFIX = "base_model.model."
LORA = re.compile(r"\.lora_[A-Za-z_]+\.")
UNMERGEABLE = ("use_dora", "fan_in_fan_out", "lora_bias", "target_parameters", "use_qalora", "use_bdlora")


def is_adapter(opened: OpenedCheckpoint) -> bool:
    """Whether the checkpoint is one of a PEFT model."""
    return opened.adapter is not None or any(LORA.search(name) for name in opened.zero.tensors)


def adapter_only(opened: OpenedCheckpoint) -> OpenedCheckpoint:
    """The trained weights under the names that PEFT gives them in adapter_model.safetensors."""
    tensors = {
        _saved_name(name): tensor
        for name, tensor in opened.zero.tensors.items()
        if LORA.search(name) or ".modules_to_save." in name
    }
    return replace(opened, zero=replace(opened.zero, tensors=tensors, shared={}), model_folder=None)


def merged(opened: OpenedCheckpoint, base_model: Path | None) -> OpenedCheckpoint:
    """The base model's weights, with the adapter's low-rank products to be added as they are written.

    Args:
        opened: a checkpoint that `is_adapter`.
        base_model: folder of the base model; by default what adapter_config.json names.

    Raises:
        UsageError: no base weights, an adapter that is no plain LoRA, or one of another base model.
    """
    config = opened.adapter or {}
    _refuse_unmergeable(opened, config)
    folder = _base_folder(config, base_model)
    zero = opened.zero
    tensors = read_safetensors_folder(folder)
    deltas = _deltas(zero, config)
    own = {name: tensor for name, tensor in zero.tensors.items() if not LORA.search(name) and ".original_" not in name}
    tensors |= {_merged_name(name): tensor for name, tensor in own.items()}
    absent = [name for name in deltas if name not in tensors]
    wrong = [name for name, delta in deltas.items() if name in tensors and tensors[name].shape != delta.shape]
    if absent or wrong:
        name = (absent or wrong)[0]
        there = f"has shape {list(tensors[name].shape)} there" if wrong and not absent else "is not there"
        raise UsageError(
            f"{folder}: not the base model of this adapter: {len(absent) + len(wrong)} of {len(deltas)} adapted weights "
            f"do not fit; {name} {list(deltas[name].shape)} {there}."
        )
    tensors |= {name: replace(tensors[name], delta=delta) for name, delta in deltas.items()}
    shared = {_merged_name(alias): _merged_name(kept) for alias, kept in zero.shared.items()}
    shared = {alias: kept for alias, kept in shared.items() if kept in tensors}
    for alias in shared:
        tensors.pop(alias, None)
    note = f"merged the adapter ({len(deltas)} weights) into {folder}"
    return replace(
        opened,
        zero=replace(zero, tensors=tensors, shared=shared),
        model_folder=folder,
        notes=[*opened.notes, note],
    )


def _saved_name(name: str) -> str:
    return name.replace(".modules_to_save.default", "").replace(".default", "")


def _merged_name(name: str) -> str:
    return name.removeprefix(PREFIX).replace(".modules_to_save.default", "").replace(".base_layer", "")


def _deltas(zero: ZeroCheckpoint, config: dict) -> dict[str, LowRankDelta]:
    """Weight name in the base model -> what is added to it."""
    deltas = {}
    for name, down in zero.tensors.items():
        if not name.endswith(".lora_A.default.weight"):
            continue
        module = name.removesuffix(".lora_A.default.weight")
        up = zero.tensors[f"{module}.lora_B.default.weight"]
        if len(down.shape) != 2:
            raise _unmergeable(f"{module} is a convolution")
        target = module.removeprefix(PREFIX)
        deltas[f"{target}.weight"] = LowRankDelta(down, up, _scale(config, target, down))
    return deltas


def _scale(config: dict, module: str, down: SourceTensor) -> float:
    """lora_alpha / rank, or / sqrt(rank) for rank-stabilised LoRA; the rank is the matrix's own."""
    alpha = next(
        (value for key, value in (config.get("alpha_pattern") or {}).items() if re.match(rf"(.*\.)?({key})$", module)),
        config.get("lora_alpha"),
    )
    rank = down.shape[0]
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _refuse_unmergeable(opened: OpenedCheckpoint, config: dict) -> None:
    if not config:
        raise UsageError(
            f"{opened.zero.folder.parent}: adapter weights without adapter_config.json, so their scale is not known; "
            "put it there, or export without --merge."
        )
    if config.get("peft_type") != "LORA":
        raise _unmergeable(f"it is of type {config.get('peft_type')}")
    used = [name for name in UNMERGEABLE if config.get(name)]
    if used or any(".lora_embedding_" in name for name in opened.zero.tensors):
        raise _unmergeable(f"it uses {', '.join(used) or 'LoRA on an embedding'}")


def _unmergeable(reason: str) -> UsageError:
    return UsageError(
        f"this adapter cannot be merged here ({reason}): export it without --merge, then load it with peft and call "
        "merge_and_unload()."
    )


def _base_folder(config: dict, base_model: Path | None) -> Path:
    name = str(base_model or config.get("base_model_name_or_path") or "")
    if name and Path(name).is_dir():
        return Path(name)
    found = _cached(name) if name and not base_model else None
    if found:
        return found
    raise UsageError(
        f"the base model {name or '(adapter_config.json names none)'} is not on this machine; download it and give its "
        "folder with --base-model."
    )


def _cached(name: str) -> Path | None:
    """The hub's local cache, without asking the network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None
