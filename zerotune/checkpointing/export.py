"""A ZeRO checkpoint on disk -> sharded safetensors that plain transformers loads. Needs no torch, no GPU, no ranks.

The weights are streamed from the ranks' files into a working folder inside OUT, checked there, and only then
moved to their names, so that OUT never holds half a model and an earlier model is replaced only by a whole one.
"""

import os
import resource
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from zerotune.checkpointing.adapter import adapter_only, is_adapter, merged
from zerotune.checkpointing.checkpoint_folder import OpenedCheckpoint, open_checkpoint
from zerotune.checkpointing.element_types import checked_dtype
from zerotune.checkpointing.export_checks import check_written
from zerotune.checkpointing.model_card import write_companions
from zerotune.checkpointing.model_keys import ModelKeys, ModelKeysProcess, audit, names_to_write
from zerotune.checkpointing.output_folder import OutputFolder
from zerotune.checkpointing.progress import progress_bar
from zerotune.checkpointing.shard_plan import Shard, index_json, parse_size, plan_shards
from zerotune.checkpointing.shard_writer import ShardWriter, Stopped
from zerotune.errors import UsageError

MAX_WORKERS = 32


@dataclass(frozen=True)
class ExportReport:
    """What an export did.

    Attributes:
        out: the model folder.
        keys: weights and buffers written.
        bytes: of all safetensors files.
        files: names of the safetensors files.
        seconds: wall time.
        peak: bytes, largest resident size of this process so far plus that of the key-checking child.
        notes: sentences worth showing: which checkpoint was taken, what could not be checked, fp16 overflow.
    """

    out: Path
    keys: int
    bytes: int
    files: tuple[str, ...]
    seconds: float
    peak: int
    notes: tuple[str, ...]


def export_checkpoint(
    checkpoint: Path,
    out: Path,
    *,
    dtype: str = "bf16",
    max_shard_size: str | int = "5GB",
    workers: int | None = None,
    progress: bool = True,
    tag: str | None = None,
    overwrite: bool = False,
    check_model: bool = True,
    merge_adapter: bool = False,
    base_model: Path | None = None,
) -> ExportReport:
    """Write the model of a DeepSpeed ZeRO checkpoint as safetensors with config, tokenizer and model card.

    In fp32 the weights equal DeepSpeed's `zero_to_fp32` bit for bit (stages 1, 2, 3); frozen weights, which
    zero_to_fp32 leaves out at stage 1, are included. bf16 and fp16 are those values rounded to nearest even.

    Args:
        checkpoint: checkpoint-N/ of the HF Trainer, DeepSpeed's global_stepN/, or an output folder of a run.
        out: created if needed; must be empty, or hold an export that was cut off, unless `overwrite`.
        dtype: "bf16", "fp16" or "fp32". Integer and boolean buffers keep their type.
        max_shard_size: "5GB", "500MB", "2GiB" or bytes.
        workers: threads; by default the CPU cores this process may use, at most 32.
        progress: show a bar when stderr is a terminal.
        tag: DeepSpeed's tag, instead of what `latest` says.
        overwrite: replace the model in `out`; other files there stay.
        check_model: compare names and shapes with the model that config.json describes.
        merge_adapter: for a LoRA run, add the adapter to its base model and write the whole; by default the adapter
            alone is written, in PEFT's format.
        base_model: folder of the base model, instead of the one that adapter_config.json names.

    Raises:
        UsageError: the input or `out` is wrong; nothing was deleted.
        KeyboardInterrupt: finished shards stay in `out` for the next call.
    """
    started = time.monotonic()
    checkpoint, out = Path(checkpoint), Path(out)
    checked_dtype(dtype)
    max_shard_bytes = parse_size(max_shard_size)
    workers = workers or min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    opened, stem = _what_to_write(open_checkpoint(checkpoint, tag), merge_adapter, base_model)
    folder = OutputFolder(out, overwrite, sources=(opened.zero.folder, opened.companions, opened.model_folder))
    job = _Job(opened, folder, dtype, max_shard_bytes, workers, progress, stem)
    keys, shards = job.run(check_model)
    check_written(folder.work, shards)
    num_parameters = sum(slot.source.num_elements for shard in shards for slot in shard.slots)
    write_companions(opened, folder.companions, dtype, num_parameters)
    files = [shard.filename for shard in shards]
    folder.publish(files, index_json(shards) if len(shards) > 1 else None)
    return ExportReport(
        out=out,
        keys=sum(len(shard.slots) for shard in shards),
        bytes=sum(shard.num_bytes for shard in shards),
        files=tuple(files),
        seconds=time.monotonic() - started,
        peak=_peak_bytes(),
        notes=(*opened.notes, *_unchecked(keys), *job.notes),
    )


def _what_to_write(
    opened: OpenedCheckpoint, merge_adapter: bool, base_model: Path | None
) -> tuple[OpenedCheckpoint, str]:
    """The checkpoint with the tensors to write, and the stem of the files' names."""
    if not is_adapter(opened):
        if merge_adapter:
            raise UsageError(f"{opened.zero.folder}: not a LoRA checkpoint, there is nothing to merge.")
        return opened, "model"
    if merge_adapter:
        return merged(opened, base_model), "model"
    return adapter_only(opened), "adapter_model"


@dataclass
class _Job:
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

    def __init__(self, process: ModelKeysProcess, names: dict[str, str], job: _Job):
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


def _unchecked(keys: ModelKeys) -> list[str]:
    return [f"the keys were not compared with a model: {keys.unchecked}"] if keys.unchecked else []


def _overflow_note(overflow: dict[str, int]) -> str:
    worst = sorted(overflow, key=overflow.get, reverse=True)[:3]
    return (
        f"{sum(overflow.values()):,} values are too large for fp16 and became infinite, in {', '.join(worst)}"
        f"{' and more' if len(overflow) > 3 else ''}: export in bf16 instead"
    )


def _peak_bytes() -> int:
    """Linux counts ru_maxrss in KiB."""
    return sum(resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
