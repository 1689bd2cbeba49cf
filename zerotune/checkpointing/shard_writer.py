"""Streams weights from the ranks' files to their places in the safetensors files, in small chunks, on many threads.

Threads, not processes: numpy and os.pread / os.pwrite release the GIL, a chunk keeps them busy for milliseconds,
and nothing has to be started, pickled or imported again. A worker holds one chunk (4 MiB in, at most 4 MiB out
and as much scratch), whatever the size of the tensor.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from zerotune.checkpointing.element_types import convert, count_overflow, item_bytes
from zerotune.checkpointing.shard_plan import Shard, Slot
from zerotune.checkpointing.zero_shards import Piece, SourceTensor
from zerotune.errors import UsageError

CHUNK_ELEMENTS = 1 << 20
TASK_ELEMENTS = 1 << 24
MAX_OPEN_FILES = 256


class Stopped(Exception):
    """The stop event was set while work was left."""


class RangeReader:
    """Reads byte ranges of many files from many threads; keeps up to MAX_OPEN_FILES of them open."""

    def __init__(self):
        self._lock = threading.Lock()
        self._descriptors: dict[Path, int] = {}

    def read(self, path: Path, offset: int, num_bytes: int) -> np.ndarray:
        """Exactly `num_bytes` from byte `offset`, as [num_bytes] uint8."""
        data = np.empty(num_bytes, np.uint8)
        descriptor, keep = self._open(path)
        try:
            done = 0
            while done < num_bytes:
                got = os.preadv(descriptor, [memoryview(data)[done:]], offset + done)
                if not got:
                    raise UsageError(f"{path}: truncated, {offset + num_bytes:,} bytes were expected.")
                done += got
        finally:
            if not keep:
                os.close(descriptor)
        return data

    def _open(self, path: Path) -> tuple[int, bool]:
        with self._lock:
            if path not in self._descriptors:
                descriptor = os.open(path, os.O_RDONLY)
                if len(self._descriptors) >= MAX_OPEN_FILES:
                    return descriptor, False
                self._descriptors[path] = descriptor
            return self._descriptors[path], True

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def converted_chunks(reader: RangeReader, slot: Slot, first: int, last: int) -> Iterator[tuple[int, np.ndarray, int]]:
    """Elements [first, last) of a tensor in its exported type.

    Yields:
        (index of the chunk's first element, its bytes [n] uint8, values too large for the exported type)
    """
    if slot.source.strided:
        raw = _read_strided(reader, slot)
        size = item_bytes(slot.source.dtype)
        yield first, convert(raw[first * size : last * size], slot.source.dtype, slot.dtype), 0
        return
    if slot.source.delta:
        yield from _merged_chunks(reader, slot, first, last)
        return
    start = 0
    for piece in slot.source.pieces:
        begin, end = max(first - start, 0), min(last - start, piece.num_elements)
        for at in range(begin, end, CHUNK_ELEMENTS):
            raw = _read_piece(reader, piece, at, min(at + CHUNK_ELEMENTS, end))
            out = convert(raw, piece.dtype, slot.dtype)
            yield start + at, out, count_overflow(raw, out, piece.dtype, slot.dtype)
        start += piece.num_elements


def _read_piece(reader: RangeReader, piece: Piece, first: int, last: int) -> np.ndarray:
    size = item_bytes(piece.dtype)
    return reader.read(piece.path, piece.offset + first * size, (last - first) * size)


def _read_strided(reader: RangeReader, slot: Slot) -> np.ndarray:
    """A tensor saved in another memory order (a transposed view), made row-major: [all bytes] uint8."""
    stored = slot.source.strided
    size = item_bytes(stored.dtype)
    reach = 1 + sum((n - 1) * step for n, step in zip(stored.shape, stored.stride, strict=True))
    raw = reader.read(stored.path, stored.offset, reach * size)
    strides = [step * size for step in stored.stride] + [1]
    view = np.lib.stride_tricks.as_strided(raw, (*stored.shape, size), strides)
    return np.ascontiguousarray(view).reshape(-1)


def _merged_chunks(reader: RangeReader, slot: Slot, first: int, last: int) -> Iterator[tuple[int, np.ndarray, int]]:
    """Blocks of whole rows on a fixed grid, so that a value never depends on which range was asked for: BLAS rounds
    differently for different shapes."""
    rows, columns = slot.source.shape
    step = max(1, CHUNK_ELEMENTS // columns)
    delta = slot.source.delta
    plain = replace(slot, source=replace(slot.source, delta=None), dtype="F32")
    down = _matrix(reader, delta.down, 0, delta.down.shape[0])
    for row in range(first // columns // step * step, rows, step):
        begin, end = row * columns, min(row + step, rows) * columns
        if begin >= last:
            return
        base = np.concatenate([data for _, data, _ in converted_chunks(reader, plain, begin, end)]).view(np.float32)
        up = _matrix(reader, delta.up, row, min(row + step, rows))
        summed = (base.reshape(-1, columns) + np.float32(delta.scale) * (up @ down)).reshape(-1)
        wanted = summed[max(first - begin, 0) : min(last, end) - begin].view(np.uint8)
        out = convert(wanted, "F32", slot.dtype)
        yield max(first, begin), out, count_overflow(wanted, out, "F32", slot.dtype)


def _matrix(reader: RangeReader, source: SourceTensor, first_row: int, last_row: int) -> np.ndarray:
    """Rows of a small two-dimensional weight: [rows, columns] float32."""
    columns = source.shape[1]
    slot = Slot(source.name, source, "F32", 0)
    chunks = [data for _, data, _ in converted_chunks(reader, slot, first_row * columns, last_row * columns)]
    return np.concatenate(chunks).view(np.float32).reshape(-1, columns)


@dataclass
class _ShardFile:
    """A shard being written, or an earlier one being compared (`verify`)."""

    shard: Shard
    path: Path
    descriptor: int
    verify: bool
    tasks_left: int
    differs: bool = False


@dataclass
class ShardWriter:
    """Writes shards into `folder` as NAME.partial, renamed to NAME when whole.

    Attributes:
        folder: working folder, on the same file system as the result.
        workers: threads.
        stop: set it from anywhere to end early; `write` then raises Stopped.
        advance: called with bytes done, from worker threads.
        overflow: after `write`, tensor name -> values that became infinite in fp16.
    """

    folder: Path
    workers: int
    stop: threading.Event = field(default_factory=threading.Event)
    advance: Callable[[int], None] = lambda num_bytes: None
    overflow: dict[str, int] = field(default_factory=dict)

    def __post_init__(self):
        self._lock = threading.Lock()
        self._reader = RangeReader()

    def write(self, shards: list[Shard]) -> list[str]:
        """Write every shard; one that an earlier run finished is compared with the checkpoint and kept if equal.

        Returns:
            The filenames that were kept.
        Raises:
            Stopped: `stop` was set. UsageError: no room left, or a source file is truncated.
        """
        kept = self._run([shard for shard in shards if self._finished_earlier(shard)], verify=True)
        self._run([shard for shard in shards if shard.filename not in kept], verify=False)
        self._reader.close()
        return kept

    def _finished_earlier(self, shard: Shard) -> bool:
        path = self.folder / shard.filename
        if not path.is_file() or path.stat().st_size != shard.num_bytes:
            return False
        with path.open("rb") as file:
            return file.read(len(shard.header)) == shard.header

    def _run(self, shards: list[Shard], verify: bool) -> list[str]:
        files = [self._open(shard, verify) for shard in shards]
        try:
            with ThreadPoolExecutor(self.workers) as pool:
                futures = [pool.submit(self._task, file, slot, *span) for file, slot, *span in self._tasks(files)]
                try:
                    self._await(futures)
                except BaseException:
                    self.stop.set()
                    pool.shutdown(cancel_futures=True)
                    raise
        finally:
            for file in files:
                os.close(file.descriptor)
        return [file.shard.filename for file in files if not file.differs]

    def _await(self, futures) -> None:
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()

    def _open(self, shard: Shard, verify: bool) -> _ShardFile:
        number = sum(len(_spans(slot)) for slot in shard.slots)
        if verify:
            path = self.folder / shard.filename
            return _ShardFile(shard, path, os.open(path, os.O_RDONLY), True, number)
        path = self.folder / (shard.filename + ".partial")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.truncate(descriptor, shard.num_bytes)
        os.pwrite(descriptor, shard.header, 0)
        return _ShardFile(shard, path, descriptor, False, number)

    def _tasks(self, files: list[_ShardFile]):
        """In file order, but `workers` files side by side: writes to one file exclude each other in the kernel."""
        for first in range(0, len(files), self.workers):
            side_by_side = [
                [(file, slot, *span) for slot in file.shard.slots for span in _spans(slot)]
                for file in files[first : first + self.workers]
            ]
            for position in range(max(map(len, side_by_side))):
                yield from (tasks[position] for tasks in side_by_side if position < len(tasks))

    def _task(self, file: _ShardFile, slot: Slot, first: int, last: int) -> None:
        size = item_bytes(slot.dtype)
        base = len(file.shard.header) + slot.begin
        for at, data, overflow in converted_chunks(self._reader, slot, first, last):
            if self.stop.is_set():
                raise Stopped
            if file.verify:
                file.differs |= not np.array_equal(data, _read_back(file.descriptor, len(data), base + at * size))
            else:
                write_all(file.descriptor, data, base + at * size, file.path)
            self.advance(len(data))
            if overflow:
                with self._lock:
                    self.overflow[slot.name] = self.overflow.get(slot.name, 0) + overflow
        self._finish(file)

    def _finish(self, file: _ShardFile) -> None:
        with self._lock:
            file.tasks_left -= 1
            if not file.tasks_left and not file.verify:
                file.path.replace(self.folder / file.shard.filename)


def _spans(slot: Slot) -> list[tuple[int, int]]:
    """The element ranges that are one task each; an empty tensor is one task, so that its shard is finished."""
    total = slot.source.num_elements
    step = max(total, 1) if slot.source.strided else TASK_ELEMENTS
    return [(first, min(first + step, total)) for first in range(0, total, step)] or [(0, 0)]


def _read_back(descriptor: int, num_bytes: int, offset: int) -> np.ndarray:
    return np.frombuffer(os.pread(descriptor, num_bytes, offset), np.uint8)


def write_all(descriptor: int, data: np.ndarray, offset: int, path: Path) -> None:
    """Write all bytes at `offset`.

    Raises:
        UsageError: the disk is full.
    """
    view = memoryview(data)
    try:
        while view:
            written = os.pwrite(descriptor, view, offset)
            view = view[written:]
            offset += written
    except OSError as error:
        raise UsageError(
            f"{path}: cannot write ({error.strerror}). Free some room and run the same command again: "
            "finished files are kept."
        ) from None
