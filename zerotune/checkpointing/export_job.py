"""One export at work: shards are written while a child process finds out which keys the model wants."""

import sys
import threading
from dataclasses import dataclass, field, replace

from zerotune.checkpointing.checkpoint_folder import OpenedCheckpoint
from zerotune.checkpointing.model_keys import ModelKeys, ModelKeysProcess, audit, names_to_write
from zerotune.checkpointing.output_folder import OutputFolder
from zerotune.checkpointing.progress import progress_bar
from zerotune.checkpointing.shard_plan import Shard, plan_shards
from zerotune.checkpointing.shard_writer import ShardWriter, Stopped


@dataclass
class ExportJob:
    """Writes the shards while a child process finds out which keys the model wants."""

    opened: OpenedCheckpoint
    folder: OutputFolder
    dtype: str
    max_shard_bytes: int
    workers: int
    progress: bool
    stem: str
    notes: list[str] = field(default_factory=list)

    def run(self, check_model: bool) -> tuple[ModelKeys, list[Shard]]:
        if not check_model or not self.opened.model_folder:
            keys = ModelKeys(unchecked=self._why_unchecked(check_model))
            return keys, self._write(self.names(keys), threading.Event())
        with ModelKeysProcess(self.opened.model_folder) as process:
            return self._write_while_asking(process)

    def _why_unchecked(self, check_model: bool) -> str | None:
        if self.stem == "adapter_model":
            return None
        return "there is no config.json beside the checkpoint" if check_model else "switched off"

    def _write_while_asking(self, process: ModelKeysProcess) -> tuple[ModelKeys, list[Shard]]:
        """Start with the names of the checkpoint; the answer, seconds later, rarely changes them."""
        names = self.names(ModelKeys())
        question = _Question(process, names, self)
        try:
            shards = self._write(names, question.stop)
        except Stopped:
            shards = None
        keys = question.answer()
        if shards is None or self.names(keys) != names:
            shards = self._write(self.names(keys), threading.Event())
        return keys, shards

    def names(self, keys: ModelKeys) -> dict[str, str]:
        """Name in the files -> name in the checkpoint."""
        return names_to_write(list(self.opened.zero.tensors), self.opened.zero.shared, keys)

    def _write(self, names: dict[str, str], stop: threading.Event) -> list[Shard]:
        zero = self.opened.zero
        tensors = {name: replace(zero.tensors[stored], name=name) for name, stored in names.items()}
        aliases = {} if self.opened.model_folder else zero.shared
        limit = self.max_shard_bytes if self.stem == "model" else sys.maxsize  # PEFT reads one file
        shards = plan_shards(tensors, self.dtype, limit, aliases, self.stem)
        self.folder.require_room(shards)
        writer = ShardWriter(self.folder.work, self.workers, stop)
        with progress_bar(self.progress, sum(shard.num_bytes for shard in shards)) as writer.advance:
            kept = writer.write(shards)
        self.notes = [f"kept from an earlier run, after comparing them: {', '.join(kept)}"] if kept else []
        if writer.overflow:
            self.notes.append(_overflow_note(writer.overflow))
        return shards


class _Question:
    """Waits for the child on a thread and stops the writer when its work turns out to be in vain."""

    def __init__(self, process: ModelKeysProcess, names: dict[str, str], job: ExportJob):
        self.stop = threading.Event()
        self._process, self._names, self._job = process, names, job
        self._keys: ModelKeys | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        try:
            self._keys = self._process.result()
            names = self._job.names(self._keys)
            if not self._keys.unchecked:
                tensors = self._job.opened.zero.tensors
                shapes = {name: tensors[stored].shape for name, stored in names.items()}
                audit(self._keys, shapes, self._job.opened.model_folder / "config.json")
            if names != self._names:
                self.stop.set()
        except Exception as error:
            self._error = error
            self.stop.set()

    def answer(self) -> ModelKeys:
        """The model's keys. Raises UsageError, and leaves nothing behind, when the weights are not the model's."""
        self._thread.join()
        if self._error:
            self._job.folder.discard()
            raise self._error
        return self._keys


def _overflow_note(overflow: dict[str, int]) -> str:
    worst = sorted(overflow, key=overflow.get, reverse=True)[:3]
    return (
        f"{sum(overflow.values()):,} values are too large for fp16 and became infinite, in {', '.join(worst)}"
        f"{' and more' if len(overflow) > 3 else ''}: export in bf16 instead"
    )
