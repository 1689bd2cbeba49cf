"""Streams weights from the ranks' files to their places in the safetensors files, in small chunks, on many threads.

Threads, not processes: numpy and os.pread / os.pwrite release the GIL, a chunk keeps them busy for milliseconds,
and nothing has to be started, pickled or imported again. A worker holds one chunk (4 MiB in, at most 4 MiB out
and as much scratch), whatever the size of the tensor.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from zerotune.checkpointing.element_types import item_bytes
from zerotune.checkpointing.shard_plan import Shard, Slot
from zerotune.checkpointing.weight_reader import RangeReader, converted_chunks
from zerotune.errors import UsageError

TASK_ELEMENTS = 1 << 24


class Stopped(Exception):
    """The stop event was set while work was left."""


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
