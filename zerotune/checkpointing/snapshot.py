"""A rank's states, held still: files of torch.save laid out at once, their tensors copied and written later.

`lay_out` writes all of a torch.save file but the tensors' bytes (torch.serialization.skip_data: milliseconds), so the
numbers and structure are those of that moment. Weights and moments do not change before the next optimizer step: until
then `copy` brings them to host memory, and `write` fills the files afterwards, in any thread. Copying, checksumming and
writing all release Python's lock.
"""

from __future__ import annotations

import os
import pickle
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch

from zerotune.checkpointing.torch_archive import storage_offsets

CHUNK = 16 << 20  # bytes written at a time


@dataclass
class Piece:
    """Bytes of one storage: where they go in the file, and where they are now (uint8 [bytes], any device)."""

    offset: int
    source: torch.Tensor


@dataclass
class StateFile:
    """A torch.save file that lacks its tensors' bytes."""

    path: Path
    pieces: list[Piece]

    @property
    def num_bytes(self) -> int:
        return sum(piece.source.numel() for piece in self.pieces)


class _Storages(pickle.Pickler):
    """Meets the storages of a tree in the order in which torch.save numbers them."""

    def __init__(self):
        super().__init__(_Nowhere(), protocol=torch.serialization.DEFAULT_PROTOCOL)
        self.found: dict[int, torch.UntypedStorage] = {}

    def persistent_id(self, one):
        if isinstance(one, torch.storage.TypedStorage):
            one = one._untyped_storage
        if not isinstance(one, torch.UntypedStorage):
            return None
        self.found.setdefault(one._cdata, one)
        return one._cdata


class _Nowhere:
    def write(self, data) -> int:
        return len(data)


def tensor_bytes(state) -> int:
    """Bytes of all storages in a tree, each counted once."""
    storages = _Storages()
    storages.dump(state)
    return sum(one.nbytes() for one in storages.found.values())


def lay_out(state, path: Path) -> StateFile:
    """Write `state` to `path` as torch.save does, without the tensors' bytes; they stay shared with the tensors."""
    with torch.serialization.skip_data():
        torch.save(state, path)
    storages = _Storages()
    storages.dump(state)
    offsets = storage_offsets(path)
    assert len(offsets) == len(storages.found), f"{path}: {len(offsets)} records, {len(storages.found)} storages"
    pieces = [
        Piece(offsets[str(key)], torch.empty(0, dtype=torch.uint8, device=one.device).set_(one))
        for key, one in enumerate(storages.found.values())
        if one.nbytes()
    ]
    return StateFile(path, sorted(pieces, key=lambda piece: piece.offset))


class HostBuffer:
    """Host memory for the copies, kept from save to save; page-locked where there is a GPU."""

    def __init__(self):
        self.memory = torch.empty(0, dtype=torch.uint8)

    @property
    def num_bytes(self) -> int:
        return self.memory.numel()

    def reserve(self, num_bytes: int) -> None:
        """Grow to `num_bytes`, and touch every page: the first save must not pay for that."""
        if num_bytes <= self.num_bytes:
            return
        self._unlock()
        self.memory = torch.empty(0, dtype=torch.uint8)  # the old one goes before the new one comes
        self.memory = torch.empty(num_bytes, dtype=torch.uint8).zero_()
        if torch.cuda.is_available():  # pin_memory=True would round up to a power of two
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), num_bytes, 0))

    def _unlock(self) -> None:
        if self.num_bytes and torch.cuda.is_available():
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self.memory.data_ptr()))


def copy(files: list[StateFile], buffer: HostBuffer, stream: torch.cuda.Stream | None = None) -> None:
    """Move the pieces' sources into `buffer`; returns when all bytes are there.

    Args:
        stream: waits already for the states to be final, and knows this rank's GPU; None on CPU.
    """
    position, moved = 0, []
    with torch.cuda.stream(stream):
        buffer.reserve(sum(file.num_bytes for file in files))
        for piece in (piece for file in files for piece in file.pieces):
            target = buffer.memory[position : position + piece.source.numel()]
            target.copy_(piece.source, non_blocking=True)
            moved.append((piece, target))
            position += target.numel()
    if stream is not None:
        stream.synchronize()
    for piece, target in moved:
        piece.source = target


def write(file: StateFile) -> int:
    """Fill in the tensors' bytes and fsync; returns the CRC-32 of the whole file, computed on the way."""
    crc = position = 0
    with file.path.open("r+b", buffering=0) as opened:
        for piece in file.pieces:
            crc = zlib.crc32(_read(opened, position, piece.offset), crc)
            position = piece.offset
            for part in piece.source.split(CHUNK):
                view = memoryview(part.cpu().numpy())
                crc = zlib.crc32(view, crc)
                _write(opened, view, position)
                position += len(view)
        crc = zlib.crc32(_read(opened, position, os.fstat(opened.fileno()).st_size), crc)
        os.fsync(opened.fileno())
    return crc


def _read(opened, start: int, stop: int) -> bytes:
    return os.pread(opened.fileno(), stop - start, start)


def _write(opened, view: memoryview, position: int) -> None:
    while view:
        written = os.pwrite(opened.fileno(), view, position)
        view, position = view[written:], position + written
