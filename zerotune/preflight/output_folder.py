"""Is the output folder ours to write, and is there room for what the run will write?"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from zerotune.errors import UsageError

FINISHED = "train_results.json"
# What a run writes at the top of its folder. Any of SIGNS says that a run made the folder, so that the rest is its own.
SIGNS = (FINISHED, "metrics.jsonl", "ds_config.json")
OWN_FILES = (*SIGNS, "all_results.json", "eval_results.json")
OWN_FOLDERS = ("model", "wandb", "export_shards")
CHECKPOINT = re.compile(r"checkpoint-\d+(\.old)?")


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
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--output_dir {folder} is a file. Name a folder.")
        if folder.is_dir() and not resuming:
            _refuse_foreign(folder)
            if not overwrite:
                _refuse_run(folder)
        _require_writable(folder)
    except OSError as error:
        raise UsageError(f"--output_dir {folder} cannot be used: {error.strerror}.") from error


def _refuse_run(folder: Path) -> None:
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


def _refuse_foreign(folder: Path) -> None:
    """Somebody else's model/ or checkpoint-5/ must be neither replaced by the export nor deleted."""
    foreign = [path.name for path in own_paths(folder) if path.name not in OWN_FILES]
    if foreign and not _made_by_a_run(folder):
        raise UsageError(
            f"--output_dir {folder} holds {', '.join(sorted(foreign)[:4])} and no sign of a run ({', '.join(SIGNS)}), so "
            "it may be yours and is not replaced. Name another folder."
        )


def _made_by_a_run(folder: Path) -> bool:
    saved = (path / "trainer_state.json" for path in folder.glob("checkpoint-*"))
    return any((folder / name).is_file() for name in SIGNS) or any(path.is_file() for path in saved)


def own_paths(folder: Path) -> list[Path]:
    """What bears the name of something that a run writes."""
    names = (*OWN_FILES, *OWN_FOLDERS)
    return [path for path in folder.iterdir() if path.name in names or CHECKPOINT.fullmatch(path.name)]


def _require_writable(folder: Path) -> None:
    existing = _nearest_existing(folder)
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UsageError(f"--output_dir {folder} cannot be written: {existing}: {error.strerror}.") from error


def _nearest_existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder


def prepare(folder: Path, overwrite: bool, resuming: bool) -> None:
    """Create the folder; with `overwrite`, delete what a run left in it (its own files only, links not followed)."""
    if overwrite and not resuming and folder.is_dir():
        for path in own_paths(folder):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    folder.mkdir(parents=True, exist_ok=True)


def bytes_to_free(folder: Path, overwrite: bool, resuming: bool) -> int:
    """Bytes that `prepare` will delete."""
    if resuming or not overwrite or not folder.is_dir():
        return 0
    kept = [path for path in own_paths(folder) if not path.is_symlink()]
    files = [file for path in kept for file in (path.rglob("*") if path.is_dir() else [path])]
    return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())


def checkpoint_bytes(num_parameters: int, sixteen_bit: bool) -> int:
    """Bytes of one sharded checkpoint: weights, fp32 masters and two Adam moments, over all ranks.

    Measured with DeepSpeed 0.19.8: 16-bit runs 2 + 12 bytes a parameter, fp32 runs 4 + 12.
    """
    return num_parameters * (14 if sixteen_bit else 16)


def kept_for_ever(max_steps: int, save_keep_every: int | None, keeps_best: bool) -> int:
    """Checkpoints that stay beyond the limit, as far as the flags tell (with epochs the steps are not known yet)."""
    milestones = max_steps // save_keep_every if save_keep_every and max_steps > 0 else 0
    return milestones + keeps_best


def run_bytes(
    num_parameters: int, sixteen_bit: bool, save_total_limit: int | None, export: bool, beyond: int = 0
) -> tuple[int, str]:
    """Bytes that the run has on disk at its fullest, and the sum in words.

    Args:
        beyond: checkpoints that stay beyond the limit.

    A checkpoint is deleted only after its successor is complete, so one more than the limit is there for a while.
    Without a limit the first two are counted: how many more will come depends on flags that the user may stop early.
    """
    each = checkpoint_bytes(num_parameters, sixteen_bit)
    limited = save_total_limit is not None and save_total_limit > 0  # as transformers reads it
    count = save_total_limit + 1 + beyond if limited else 2
    exported = 4 * num_parameters * export
    return count * each + exported, f"{count} checkpoints of {size(each)}" + (" and the export" if export else "")


def require_room(folder: Path, needed: int, what: str, freed: int = 0) -> None:
    """Compare what the run will write with the free space of its disk, before anything is deleted.

    Args:
        freed: bytes that the run will delete first.

    Raises:
        UsageError: less is free than needed.
    """
    free = shutil.disk_usage(_nearest_existing(folder)).free + freed
    if free < needed:
        raise UsageError(
            f"--output_dir {folder}: {size(free)} free, {size(needed)} needed ({what}). "
            "Free some space, name a folder on another disk, or lower --save_total_limit."
        )


def size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"
