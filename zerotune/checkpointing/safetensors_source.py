"""A plain safetensors model as a source of weights: where each tensor's bytes lie."""

import json
import struct
from pathlib import Path

from zerotune.checkpointing.torch_archive import ITEM_BYTES
from zerotune.checkpointing.weights import Piece, SourceTensor
from zerotune.errors import UsageError


def read_safetensors_folder(folder: Path) -> dict[str, SourceTensor]:
    """Index every *.safetensors of a model folder, as its index file lists them or all there are.

    Raises:
        UsageError: there is none, one is damaged, or a tensor is of a type that is not supported.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = sorted(path.name for path in folder.glob("model*.safetensors"))
    if not names:
        raise UsageError(f"{folder}: holds no model*.safetensors; the base model is needed in that format.")
    tensors = {}
    for name in names:
        tensors |= _read_header(folder / name)
    return tensors


def _read_header(path: Path) -> dict[str, SourceTensor]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
    except (OSError, ValueError, struct.error) as error:
        raise UsageError(f"{path}: missing or damaged ({error}).") from None
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] not in ITEM_BYTES:
            raise UsageError(f"{path}: {name} is of type {entry['dtype']}, a quantised base cannot be merged into.")
        begin, end = entry["data_offsets"]
        number = (end - begin) // ITEM_BYTES[entry["dtype"]]
        piece = Piece(path, entry["dtype"], 8 + length + begin, number)
        tensors[name] = SourceTensor(name, tuple(entry["shape"]), (piece,) if number else ())
    return tensors
