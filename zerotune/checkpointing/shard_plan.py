"""Which weight goes to which safetensors file, at which byte: decided before anything is written.

The layout is fixed by the format (https://huggingface.co/docs/safetensors/index#format): 8 bytes header length,
a JSON header, then the tensors without gaps. Knowing every offset first, workers can write in any order.
"""

import json
import re
import struct
from dataclasses import dataclass
from functools import cached_property

from zerotune.checkpointing.element_types import exported_dtype, item_bytes
from zerotune.checkpointing.weights import SourceTensor
from zerotune.errors import UsageError

UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
HEADER_ALIGNMENT = 8


@dataclass(frozen=True)
class Slot:
    """One tensor's place in a shard: `begin` counts bytes from the start of the data section."""

    name: str
    source: SourceTensor
    dtype: str
    begin: int

    @property
    def num_bytes(self) -> int:
        return self.source.num_elements * item_bytes(self.dtype)


@dataclass(frozen=True)
class Shard:
    """One safetensors file to be."""

    filename: str
    slots: tuple[Slot, ...]
    metadata: dict

    @cached_property
    def header(self) -> bytes:
        """The file's first bytes, up to the data section."""
        entries = {"__metadata__": self.metadata}
        for slot in self.slots:
            offsets = [slot.begin, slot.begin + slot.num_bytes]
            entries[slot.name] = {"dtype": slot.dtype, "shape": list(slot.source.shape), "data_offsets": offsets}
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % HEADER_ALIGNMENT)
        return struct.pack("<Q", len(text)) + text

    @property
    def num_bytes(self) -> int:
        return len(self.header) + sum(slot.num_bytes for slot in self.slots)


def parse_size(text: str | int) -> int:
    """Bytes from "5GB", "500 MiB" or a plain number.

    Raises:
        UsageError: not a positive size.
    """
    match = re.fullmatch(r"([\d.]+)\s*([KMGT]?I?B?)", str(text).strip().upper())
    try:
        size = int(float(match[1]) * UNITS[match[2] if match[2] in UNITS else match[2] + "B"])
    except (TypeError, KeyError, ValueError):
        size = 0
    if size <= 0:
        raise UsageError(f"max_shard_size {text!r} is not a size; write it like 5GB, 500MB or 2GiB.")
    return size


def plan_shards(
    tensors: dict[str, SourceTensor],
    dtype: str,
    max_shard_bytes: int,
    metadata: dict[str, str] | None = None,
    stem: str = "model",
) -> list[Shard]:
    """Lay the tensors out in order, a new file whenever the next one would pass the limit.

    A tensor larger than the limit gets a file of its own. Within a file wider types come first, so that every
    tensor is aligned to its element size, as the safetensors library itself writes.
    """
    groups: list[list[SourceTensor]] = [[]]
    names: list[list[str]] = [[]]
    used = 0
    for name, tensor in tensors.items():
        size = tensor.num_elements * item_bytes(exported_dtype(tensor.dtype, dtype))
        if groups[-1] and used + size > max_shard_bytes:
            groups.append([])
            names.append([])
            used = 0
        groups[-1].append(tensor)
        names[-1].append(name)
        used += size
    total = len(groups)
    return [
        Shard(
            shard_filename(index, total, stem),
            _slots(names[index], groups[index], dtype),
            {"format": "pt", **(metadata or {})},
        )
        for index in range(total)
    ]


def shard_filename(index: int, total: int, stem: str = "model") -> str:
    """model.safetensors, or model-00001-of-00003.safetensors when there are several."""
    return f"{stem}.safetensors" if total == 1 else f"{stem}-{index + 1:05}-of-{total:05}.safetensors"


def _slots(names: list[str], tensors: list[SourceTensor], dtype: str) -> tuple[Slot, ...]:
    typed = [(name, tensor, exported_dtype(tensor.dtype, dtype)) for name, tensor in zip(names, tensors, strict=True)]
    typed.sort(key=lambda entry: -item_bytes(entry[2]))
    slots = []
    begin = 0
    for name, tensor, target in typed:
        slots.append(Slot(name, tensor, target, begin))
        begin += slots[-1].num_bytes
    return tuple(slots)


def index_json(shards: list[Shard]) -> str:
    """The text of model.safetensors.index.json."""
    weight_map = {slot.name: shard.filename for shard in shards for slot in shard.slots}
    slots = [slot for shard in shards for slot in shard.slots]
    metadata = {
        "total_parameters": sum(slot.source.num_elements for slot in slots),
        "total_size": sum(slot.num_bytes for slot in slots),
    }
    return json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2, sort_keys=True) + "\n"
