"""Checkpoints written while training goes on: states are held still at once, copied before the next optimizer step,
and written by a thread of each rank; the marker comes last, when every rank's files are on the disk.

The ranks agree twice. On the main thread, before anything is written: is there room on the disk, is there memory for
the copies. In the threads, after writing: did all succeed. One failure, and rank 0 removes the folder: training goes on.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from zerotune.checkpointing import folders, snapshot
from zerotune.checkpointing.completion import write_marker
from zerotune.preflight import host_memory
from zerotune.preflight.output_folder import size

SMALL_FILES = 32 << 20  # room for config, tokenizer, random states and the trainer's state
MEMORY_LEFT = 1 << 30  # host memory per node that the copies leave to everything else

Gather = Callable[[Any], list]


@dataclass
class Save:
    """One checkpoint on its way to the disk.

    Attributes:
        latest: DeepSpeed's tag, for its file `latest`.
        best: the folder of the best checkpoint so far, which retention spares.
    """

    folder: Path
    step: int
    files: list[snapshot.StateFile] = field(default_factory=list)
    latest: str | None = None
    best: Path | None = None
    error: BaseException | None = None

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)


class BackgroundSaver:
    """Takes a rank's states while its Trainer saves (`open`, `add`, `start`) and writes them in a thread.

    Args:
        rank, world_size: of this process.
        per_node: ranks that share this node's memory.
        gather: every rank's value by rank, on the main thread; `gather_in_thread` the same for the writing threads.
        retain: called on rank 0 with each `Save` that is complete.
        say: prints a line on rank 0.
        expected_bytes: all ranks' files of the first checkpoint, before its true size is known.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        per_node: int,
        gather: Gather,
        gather_in_thread: Gather,
        retain: Callable[[Save], None],
        say: Callable[[str], None],
        expected_bytes: int = 0,
    ):
        self.rank, self.world_size, self.per_node = rank, world_size, per_node
        self.gather, self.gather_in_thread = gather, gather_in_thread
        self.retain, self.say, self.expected_bytes = retain, say, expected_bytes
        self.buffer = snapshot.HostBuffer()
        self.in_background = True
        self.open_save: Save | None = None
        self.copying: threading.Event | None = None  # set when the states may change again
        self.thread: threading.Thread | None = None
        self.failed: list[Path] = []
        self.bug: BaseException | None = None
        self.told_memory = False

    def prepare(self, num_bytes: int) -> None:
        """Make memory for the copies in a thread, where there is enough: the first save need not do it."""
        if self._memory_missing(num_bytes) <= 0:
            self.thread = threading.Thread(target=self._reserve, args=(num_bytes, side_stream()), daemon=True)
            self.thread.start()

    def open(self, folder: Path, step: int) -> bool:
        """Make way for a checkpoint; False, with a line, where the disk has no room for it. All ranks together."""
        self.wait()
        free = shutil.disk_usage(folder.parent).free
        if not self._room(folder, min(self.gather(free)), self.expected_bytes):
            return False
        if self.rank == 0:
            folders.set_aside(folder)
        self.gather(None)
        self.open_save = Save(folder, step)
        return True

    def add(self, state, path: Path) -> None:
        """Hold `state` still, to be written to `path` (inside the open checkpoint)."""
        try:
            self.open_save.files.append(snapshot.lay_out(state, path))
        except OSError as error:  # the others go on to their barriers: told to them in `start`
            self.open_save.error = error

    def start(self, best: Path | None = None) -> bool:
        """Begin to write what was added; False, with a line, when there is no room. All ranks together."""
        save, self.open_save = self.open_save, None
        save.best = best
        free, memory = shutil.disk_usage(save.folder.parent).free, self._memory_missing(save.num_bytes)
        every = self.gather((save.error, save.num_bytes, free, memory))
        self.expected_bytes = sum(row[1] for row in every)
        error = next((row[0] for row in every if row[0]), None)
        if error or not self._room(save.folder, min(row[2] for row in every), self.expected_bytes):
            self._abandon(save, error)
            return False
        missing = max(row[3] for row in every)
        self._tell_memory(missing, max(row[1] for row in every))
        if not self.in_background or missing > 0:
            self._run(save, None)
            self._raise_bug()
            return save.folder not in self.failed
        self.copying = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(save, self.copying, side_stream()), daemon=True)
        self.thread.start()
        return True

    def wait_until_copied(self) -> None:
        """Return when the optimizer may change the states of the last save."""
        if self.copying is not None:
            self.copying.wait()
            self.copying = None

    def wait(self) -> None:
        """Return when the last save is complete, or has failed and was told."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
            self._raise_bug()

    def _room(self, folder: Path, free: int, needed: int) -> bool:
        if free >= needed + SMALL_FILES:
            return True
        self.say(
            f"warning: {folder.name} is not saved: {size(free)} free on its disk, {size(needed + SMALL_FILES)} needed. "
            "Training goes on."
        )
        return False

    def _memory_missing(self, num_bytes: int) -> int:
        """Bytes of host memory that this node lacks for the copies, taking its other ranks to need as much."""
        more = max(0, num_bytes - self.buffer.num_bytes) * self.per_node
        return more - (host_memory.free_bytes() - MEMORY_LEFT) if more else 0

    def _tell_memory(self, missing: int, most: int) -> None:
        if self.told_memory or not self.in_background:
            return
        self.told_memory = True
        if missing > 0:
            self.say(
                f"saving in the foreground: copies need {size(most)} of host memory per rank, {size(missing)} more than "
                "is free on a node"
            )
        else:
            self.say(f"saving in the background: copies take {size(most)} of host memory per rank")

    def _reserve(self, num_bytes: int, stream) -> None:
        try:
            with torch.cuda.stream(stream):
                self.buffer.reserve(num_bytes)
        except BaseException as bug:  # raised again on the main thread
            self.bug = bug

    def _run(self, save: Save, copying: threading.Event | None, stream=None) -> None:
        """Copy, write, agree and complete; without `copying` the states are written from where they are."""
        try:
            crc32, error = {}, None
            try:
                if copying is not None:
                    snapshot.copy(save.files, self.buffer, stream)
                    copying.set()
                crc32 = {file.path.relative_to(save.folder).as_posix(): snapshot.write(file) for file in save.files}
            except Exception as failure:  # the other ranks must learn of it
                error = failure
            finally:
                if copying is not None:
                    copying.set()
            self._agree(save, crc32, error)
        except BaseException as bug:  # raised again on the main thread
            self.bug = bug

    def _agree(self, save: Save, crc32: dict[str, int], error: Exception | None) -> None:
        every = self.gather_in_thread((crc32, error))
        error = next((one for _, one in every if one), None)
        if not error:
            merged = {name: value for part, _ in every for name, value in part.items()}
            error = self.gather_in_thread(self._complete(save, merged))[0]
        if error:
            self._abandon(save, error)
            if not isinstance(error, OSError):
                raise error

    def _complete(self, save: Save, crc32: dict[str, int]) -> OSError | None:
        if self.rank != 0:
            return None
        try:
            if save.latest:
                (save.folder / "latest").write_text(save.latest)
            write_marker(save.folder, self.world_size, save.step, crc32)
        except OSError as error:
            return error
        shutil.rmtree(folders.aside(save.folder), ignore_errors=True)
        self.retain(save)
        return None

    def _abandon(self, save: Save, error: BaseException | None) -> None:
        self.failed.append(save.folder)
        if self.rank == 0:
            folders.put_back(save.folder)
        if error:
            self.say(
                f"warning: {save.folder.name} is not saved: {error}. What was written is removed; training goes on."
            )

    def _raise_bug(self) -> None:
        bug, self.bug = self.bug, None
        if bug is not None:
            raise bug


def side_stream() -> torch.cuda.Stream | None:
    """A stream of this rank's GPU that comes after all that was queued there so far; None without one.

    A thread starts on GPU 0; inside the stream it is on the rank's.
    """
    if not torch.cuda.is_available():
        return None
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    return stream
