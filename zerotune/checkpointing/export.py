"""A ZeRO checkpoint on disk -> sharded safetensors that plain transformers loads. Needs no torch, no GPU, no ranks.

The weights are streamed from the ranks' files into a working folder inside OUT, checked there, and only then
moved to their names, so that OUT never holds half a model and an earlier model is replaced only by a whole one.
"""

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

from zerotune.checkpointing.adapter import adapter_only, is_adapter, merged
from zerotune.checkpointing.checkpoint_folder import OpenedCheckpoint, open_checkpoint
from zerotune.checkpointing.element_types import checked_dtype
from zerotune.checkpointing.export_checks import check_written
from zerotune.checkpointing.export_job import ExportJob
from zerotune.checkpointing.model_card import write_companions
from zerotune.checkpointing.model_keys import ModelKeys
from zerotune.checkpointing.output_folder import OutputFolder
from zerotune.checkpointing.shard_plan import index_json, parse_size
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
    job = ExportJob(opened, folder, dtype, max_shard_bytes, workers, progress, stem)
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


def _unchecked(keys: ModelKeys) -> list[str]:
    return [f"the keys were not compared with a model: {keys.unchecked}"] if keys.unchecked else []


def _peak_bytes() -> int:
    """Linux counts ru_maxrss in KiB."""
    return sum(resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
