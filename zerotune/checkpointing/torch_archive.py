"""Where the tensors of a torch.save file lie, found without torch, without running its pickle, without its data.

A torch.save file is an uncompressed zip: `NAME/data.pkl` is the object tree, `NAME/data/KEY` the bytes of one
storage (https://docs.pytorch.org/docs/stable/notes/serialization.html). The exporter only has to know offsets:
reading them here keeps a worker at tens of MB where importing torch and deepspeed takes 250 MB and two seconds.

Safety. Nothing named in the file is ever imported or called, which is stricter than
`torch.load(weights_only=True)`. That mode also refuses what DeepSpeed 0.19.8 writes, unless these are
allow-listed: `deepspeed.runtime.zero.config.ZeroStageEnum` and, by stage,
`deepspeed.runtime.fp16.loss_scaler.LossScaler` / `DynamicLossScaler` and
`deepspeed.utils.tensor_fragment.fragment_address` (tests/engine/test_export.py holds the list to the engine). Here
the types understood are OrderedDict, torch's typed storages, torch.Size, plain contiguous and strided tensors and
parameters; every other class becomes an inert `Opaque` that keeps its arguments.
"""

import pickle
import struct
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from zerotune.errors import UsageError

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
STORAGE_DTYPES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
LOCAL_HEADER_BYTES = 30


@dataclass(frozen=True)
class StoredTensor:
    """One tensor's place on disk.

    Attributes:
        path: the file.
        dtype: safetensors' name of the element type, such as "F32" or "BF16".
        offset: byte of element 0 in the file.
        shape, stride: in elements, as torch means them.
    """

    path: Path
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        number = 1
        for size in self.shape:
            number *= size
        return number

    @property
    def contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.stride), strict=True):
            if size != 1 and stride != expected:
                return self.num_elements == 0
            expected *= size
        return True


class Opaque:
    """Stands for an object of a class that is not needed: keeps constructor arguments and state, does nothing."""

    def __init__(self, *args, **kwargs):
        self.args = args
        self.state = None

    def __setstate__(self, state):
        self.state = state

    def append(self, item):
        """Accept the items of a list subclass."""

    def __setitem__(self, key, value):
        """Accept the items of a dict subclass."""


@dataclass(frozen=True)
class _Storage:
    dtype: str
    offset: int
    num_elements: int


def read_archive(path: Path):
    """The object tree of a torch.save file, with a `StoredTensor` in place of every tensor.

    Args:
        path: a file that `torch.save` wrote in its zip format (torch 1.6 and later).

    Raises:
        UsageError: the file is truncated, damaged, or not of this format.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = _only_pickle(archive, path)
            places = _storage_offsets(archive, path)
            return _TreeReader(archive.open(pickled), path, places).load()
    except (zipfile.BadZipFile, EOFError, struct.error, pickle.UnpicklingError) as error:
        bytes_now = path.stat().st_size
        raise UsageError(
            f"{path}: truncated or damaged ({bytes_now:,} bytes; {error}). The write was cut off or the copy is "
            "incomplete: copy the file again, or take an older checkpoint."
        ) from None


def storage_offsets(path: Path) -> dict[str, int]:
    """Byte at which each storage's data starts in a torch.save file, by torch's key for it ("0", "1", ...)."""
    with zipfile.ZipFile(path) as archive:
        return _storage_offsets(archive, path)


def _only_pickle(archive: zipfile.ZipFile, path: Path) -> str:
    names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(names) != 1:
        raise UsageError(f"{path}: a zip file, but not one that torch.save wrote (it holds no data.pkl).")
    prefix = names[0].removesuffix("data.pkl")
    if prefix + "byteorder" in archive.namelist() and archive.read(prefix + "byteorder") != b"little":
        raise UsageError(f"{path}: written on a big-endian machine, which is not supported.")
    return names[0]


def _storage_offsets(archive: zipfile.ZipFile, path: Path) -> dict[str, int]:
    """Storage key -> byte where its data starts. The local header's own name and extra lengths decide."""
    offsets = {}
    with path.open("rb") as file:
        for entry in archive.infolist():
            if "/data/" not in entry.filename:
                continue
            if entry.compress_type != zipfile.ZIP_STORED:
                raise UsageError(f"{path}: the tensor data is compressed; torch.save never does that.")
            file.seek(entry.header_offset)
            header = file.read(LOCAL_HEADER_BYTES)
            name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
            key = entry.filename.rpartition("/data/")[2]
            offsets[key] = entry.header_offset + LOCAL_HEADER_BYTES + name_bytes + extra_bytes
    return offsets


class _TreeReader(pickle.Unpickler):
    """Unpickles into plain containers; never imports a name that the file gives."""

    def __init__(self, file, path: Path, places: dict[str, int]):
        super().__init__(file)
        self.path = path
        self.places = places

    def find_class(self, module, name):
        if module == "torch" and name in STORAGE_DTYPES:
            return STORAGE_DTYPES[name]
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        known = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch", "Size"): tuple,
            ("torch._utils", "_rebuild_parameter"): _first,
            ("torch._utils", "_rebuild_parameter_with_state"): _first,
            ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
            ("builtins", "set"): set,
            ("__builtin__", "set"): set,  # as pickle protocol 2 names it
        }
        return known.get((module, name)) or type(name, (Opaque,), {"__module__": module})

    def persistent_load(self, pid):
        kind, dtype, key, _location, num_elements = pid
        if kind != "storage" or not isinstance(dtype, str):
            raise UsageError(f"{self.path}: holds a storage of a type that is not supported: {pid!r}")
        return _Storage(dtype, self.places.get(key, -1), num_elements)

    def _tensor(self, storage: _Storage, first: int, shape, stride, *_rest) -> StoredTensor:
        if storage.offset < 0:
            raise UsageError(f"{self.path}: damaged, the bytes of a tensor of shape {tuple(shape)} are absent.")
        offset = storage.offset + first * ITEM_BYTES[storage.dtype]
        return StoredTensor(self.path, storage.dtype, offset, tuple(shape), tuple(stride))


def _first(tensor, *_rest):
    return tensor


def _from_type(rebuild, _type, arguments, _state):
    """A tensor that carries attributes (DeepSpeed's `ds_id`): the tensor alone."""
    return rebuild(*arguments)
