"""Is the output folder ours to write, and is there room for what the run will write?"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from zerotune.errors import UsageError

FINISHED = "train_results.json"


def choose(template: str, base: Path = Path("runs")) -> Path:
    """A fresh folder runs/TEMPLATE, runs/TEMPLATE-2, ... for a run that named none."""
    number = 1
    while (folder := base / (template if number == 1 else f"{template}-{number}")).exists():
        number += 1
    return folder


def check(folder: Path, overwrite: bool, resuming: bool) -> None:
    """Make sure the folder can take this run; nothing is written or deleted yet.

    Raises:
        UsageError: a finished run or other files are there, or the folder cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--output_dir {folder} is a file. Name a folder.")
    if folder.is_dir() and not overwrite and not resuming:
        _refuse_what_is_there(folder)
    _require_writable(folder)


def _refuse_what_is_there(folder: Path) -> None:
    if (folder / FINISHED).exists():
        raise UsageError(
            f"--output_dir {folder} holds a finished run. Name another folder, or add --overwrite_output_dir to delete it."
        )
    started = sorted(path.name for path in folder.glob("checkpoint-*"))
    if started:
        raise UsageError(
            f"--output_dir {folder} holds checkpoints of an unfinished run ({', '.join(started[-3:])}). Continue it with "
            "--resume_from_checkpoint last, name another folder, or add --overwrite_output_dir to delete it."
        )


def _require_writable(folder: Path) -> None:
    existing = folder
    while not existing.exists():
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UsageError(f"--output_dir {folder} cannot be written: {existing}: {error.strerror}.") from error


def prepare(folder: Path, overwrite: bool, resuming: bool) -> None:
    """Create the folder; with `overwrite`, delete what a run left in it (its own files only)."""
    if overwrite and not resuming and folder.is_dir():
        for path in folder.iterdir():
            if path.name.startswith("checkpoint-") or path.name in {"model", "wandb"}:
                shutil.rmtree(path)
            elif path.name in {FINISHED, "metrics.jsonl", "ds_config.json", "all_results.json", "eval_results.json"}:
                path.unlink()
    folder.mkdir(parents=True, exist_ok=True)


def checkpoint_bytes(num_parameters: int, sixteen_bit: bool) -> int:
    """Bytes of one sharded checkpoint: weights, fp32 masters and two Adam moments, over all ranks.

    Measured with DeepSpeed 0.19.8: 16-bit runs 2 + 12 bytes a parameter, fp32 runs 4 + 12.
    """
    return num_parameters * (14 if sixteen_bit else 16)


def run_bytes(num_parameters: int, sixteen_bit: bool, save_total_limit: int | None, export: bool) -> tuple[int, str]:
    """Bytes that the run has on disk at its fullest, and the sum in words.

    A checkpoint is deleted only after its successor is complete, so one more than the limit is there for a while.
    Without a limit the first two are counted: how many more will come depends on flags that the user may stop early.
    """
    each = checkpoint_bytes(num_parameters, sixteen_bit)
    count = 2 if save_total_limit is None else save_total_limit + 1
    exported = 4 * num_parameters * export
    return count * each + exported, f"{count} checkpoints of {_size(each)}" + (" and the export" if export else "")


def require_room(folder: Path, needed: int, what: str) -> None:
    """Compare what the run will write with the free space of its disk.

    Raises:
        UsageError: less is free than needed.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UsageError(
            f"--output_dir {folder}: {_size(free)} free, {_size(needed)} needed ({what}). "
            "Free some space, name a folder on another disk, or lower --save_total_limit."
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"
