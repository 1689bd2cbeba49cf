"""Which checkpoints of a run are complete, and which one a run resumes from.

The Trainer writes `checkpoint-STEP/` (DeepSpeed's shards, scheduler, random states, position). Once every rank's part
is on the disk, rank 0 writes MARKER with size and checksum of every file and renames it into place. A folder without a
marker, or with a file missing, of another size or with other content, is not resumed from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from zerotune.checkpointing.completion import MARKER, what_is_damaged, what_is_wrong
from zerotune.errors import UsageError
from zerotune.preflight.named_files import near


def checkpoints(run: Path) -> list[Path]:
    """The checkpoint-STEP folders of a run, oldest step first, complete or not."""
    found = [path for path in run.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name) and path.is_dir()]
    return sorted(found, key=step_of)


def step_of(folder: Path) -> int:
    """The step in the name of a checkpoint-STEP folder."""
    return int(folder.name.removeprefix("checkpoint-"))


def find(wanted: str, run: Path, damaged: Callable[[Path], str | None] = what_is_damaged) -> tuple[Path, list[str]]:
    """The checkpoint to resume from, and what was passed over and why.

    Args:
        wanted: a checkpoint folder, a run's folder, or `true`/`last` for the newest complete one of `run`.
        damaged: reads a checkpoint whose sizes are right, and says what is not as it was written.

    Raises:
        UsageError: no complete checkpoint there; the complete ones that exist are listed.
    """
    if wanted.lower() not in ("true", "last"):
        folder = Path(wanted).expanduser()
        if not folder.is_dir():
            raise UsageError(
                f"--resume_from_checkpoint {wanted}: no such folder.{near(folder, folders_only=True)}{_complete_ones(run)}"
            )
        if (folder / MARKER).exists() or not checkpoints(folder):
            wrong = what_is_wrong(folder) or damaged(folder)
            if wrong:
                others = _complete_ones(folder.parent if checkpoints(folder.parent) else run)
                raise UsageError(f"--resume_from_checkpoint {wanted}: no complete checkpoint: {wrong}.{others}")
            return folder, []
        run = folder
    passed_over = []
    for folder in reversed(checkpoints(run)):
        wrong = what_is_wrong(folder) or damaged(folder)
        if not wrong:
            return folder, passed_over
        passed_over.append(f"{folder.name}: {wrong}")
    detail = f" Passed over: {'; '.join(passed_over)}." if passed_over else ""
    raise UsageError(f"--resume_from_checkpoint {wanted}: no complete checkpoint in {run}.{detail}")


def complete(run: Path) -> list[Path]:
    """The checkpoints of a run whose files are there in their sizes, oldest step first."""
    return [one for one in checkpoints(run) if what_is_wrong(one) is None]


def _complete_ones(run: Path) -> str:
    found = ", ".join(map(str, complete(run)))
    return f" Complete ones: {found}." if found else " No complete checkpoint exists beside it."
