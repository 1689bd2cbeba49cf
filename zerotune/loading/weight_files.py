"""The weight files of a model folder: which they are, and where every tensor lies in them. Reads headers only."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

from zerotune.checkpointing.torch_archive import ITEM_BYTES, read_archive
from zerotune.errors import UsageError
from zerotune.loading.extents import Stored

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
STORED_BYTES = {**ITEM_BYTES, "F8_E4M3": 1, "F8_E5M2": 1}
LONGEST_HEADER = 100_000_000  # the format's own limit


def read_folder(folder: Path, allow_pickle: bool = False) -> dict[str, Stored]:
    """Every stored tensor of the model in `folder`, by its key.

    Args:
        allow_pickle: take pytorch_model*.bin when there is no safetensors file. Nothing in it is ever run.

    Raises:
        UsageError: no weights; a file is missing, truncated or damaged, or does not hold what the index says.
    """
    if (folder / SINGLE).is_file():
        return read_header(folder / SINGLE)
    if (folder / INDEX).is_file():
        return _sharded(folder / INDEX, read_header)
    pickled = folder / PICKLED_INDEX if (folder / PICKLED_INDEX).is_file() else folder / PICKLED
    if not pickled.is_file():
        raise UsageError(_no_weights(folder))
    if not allow_pickle:
        raise UsageError(
            f"{folder} holds its weights as {pickled.name} (pickle) and no safetensors. Convert it once: "
            f"AutoModelForCausalLM.from_pretrained({str(folder)!r}).save_pretrained(...), or allow it "
            "with allow_pickle=True (--allow_pickle): the tensors are found without running the pickle."
        )
    return _sharded(pickled, read_pickled) if pickled.suffix == ".json" else read_pickled(pickled)


def read_header(path: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file.

    Raises:
        UsageError: missing, damaged, shorter than its header says, or of a type that cannot be loaded.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(size, LONGEST_HEADER):
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        tensors = {name: _stored(path, name, entry, 8 + length) for name, entry in header.items()}
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, KeyError, AttributeError, struct.error) as error:
        mend = "Run git lfs pull" if _is_lfs_pointer(path) else "Copy or download it again"
        raise UsageError(f"{path}: no safetensors file, or damaged ({str(error).splitlines()[0]}). {mend}.") from None
    need = max((one.offset + _num_bytes(one) for one in tensors.values()), default=0)
    if size < need:
        raise UsageError(f"{path}: truncated, {size:,} of {need:,} bytes are there. Copy or download it again.")
    return tensors


def read_pickled(path: Path) -> dict[str, Stored]:
    """The tensors of a torch.save file (zip format), found without running its pickle.

    Raises:
        UsageError: missing, damaged, no state dict, or a tensor that is not stored row-major.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file.")
    tree = read_archive(path)
    tensors = {name: one for name, one in getattr(tree, "items", dict)() if hasattr(one, "contiguous")}
    strided = [name for name, one in tensors.items() if not one.contiguous]
    if strided or not tensors:
        what = f"{strided[0]} is not stored row-major" if strided else "holds no tensors by name"
        raise UsageError(f"{path}: {what}. Convert the model to safetensors with save_pretrained.")
    return {name: Stored(path, one.dtype, one.shape, one.offset) for name, one in tensors.items()}


def _is_lfs_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(40).startswith(b"version https://git-lfs")


def _stored(path: Path, name: str, entry: dict, start: int) -> Stored:
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if dtype not in STORED_BYTES:
        raise UsageError(f"{path}: {name} is of type {dtype}, which cannot be loaded.")
    if end - begin != math.prod(shape) * STORED_BYTES[dtype]:
        raise UsageError(f"{path}: damaged, {name} {list(shape)} of {dtype} takes {end - begin:,} bytes.")
    return Stored(path, dtype, shape, start + begin)


def _num_bytes(tensor: Stored) -> int:
    return math.prod(tensor.shape) * STORED_BYTES[tensor.dtype]


def _sharded(index: Path, read) -> dict[str, Stored]:
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(places.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{index}: no weight index ({type(error).__name__}: {error}). Download it again.") from None
    absent = [name for name in files if not (index.parent / name).is_file()]
    if absent:
        raise UsageError(
            f"{index} names {len(files)} files, and {len(absent)} of them are not in the folder: "
            f"{_some(absent)}. Copy or download them."
        )
    shards = {name: read(index.parent / name) for name in files}
    wrong = [key for key, name in places.items() if key not in shards[name]]
    if wrong:
        raise UsageError(
            f"{index} says where {len(places)} weights are, and {len(wrong)} of them are not there: "
            f"{_some([f'{key} in {places[key]}' for key in wrong])}. Index and files are of different models."
        )
    return {key: shards[name][key] for key, name in places.items()}


def _no_weights(folder: Path) -> str:
    return (
        f"{folder} holds no weights ({SINGLE}, {INDEX}). It holds: {listing(folder)}. "
        "A training checkpoint becomes a model folder with zerotune-export."
    )


def listing(folder: Path) -> str:
    """The names in a folder, for messages."""
    return _some(sorted(path.name for path in folder.iterdir()), 8) or "nothing"


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
