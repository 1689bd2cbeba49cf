"""Which checkpoints of a run are complete, which are kept, and which one a run resumes from.

The Trainer writes `checkpoint-STEP/` (DeepSpeed's shards, scheduler, random states, position). Once every rank has
written its part, rank 0 writes MARKER with the size of every file and renames it into place. A folder without a
marker, or with a file missing or of another size, is not resumed from.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from transformers import TrainerCallback

from zerotune.checkpointing.completion import MARKER, what_is_wrong, write_marker
from zerotune.errors import UsageError
from zerotune.preflight.named_files import near


def checkpoints(run: Path) -> list[Path]:
    """The checkpoint-STEP folders of a run, oldest step first, complete or not."""
    found = [
        (int(match[1]), path)
        for path in run.glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name))
    ]
    return [path for _, path in sorted(found) if path.is_dir()]


def find(wanted: str, run: Path) -> tuple[Path, list[str]]:
    """The checkpoint to resume from, and what was passed over and why.

    Args:
        wanted: a checkpoint folder, a run's folder, or `true`/`last` for the newest complete one of `run`.

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
            wrong = what_is_wrong(folder)
            if wrong:
                others = _complete_ones(folder.parent if checkpoints(folder.parent) else run)
                raise UsageError(f"--resume_from_checkpoint {wanted}: no complete checkpoint: {wrong}.{others}")
            return folder, []
        run = folder
    passed_over = []
    for folder in reversed(checkpoints(run)):
        wrong = what_is_wrong(folder)
        if not wrong:
            return folder, passed_over
        passed_over.append(f"{folder.name}: {wrong}")
    detail = f" Passed over: {'; '.join(passed_over)}." if passed_over else ""
    raise UsageError(f"--resume_from_checkpoint {wanted}: no complete checkpoint in {run}.{detail}")


def complete(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest step first."""
    return [one for one in checkpoints(run) if what_is_wrong(one) is None]


def _complete_ones(run: Path) -> str:
    found = ", ".join(map(str, complete(run)))
    return f" Complete ones: {found}." if found else " No complete checkpoint exists beside it."


class Checkpoints(TrainerCallback):
    """Marks every checkpoint complete when all ranks are done, then deletes the oldest beyond `limit`.

    Args:
        limit: complete checkpoints kept (save_total_limit), None for all; the best one is kept too.
        wait_for_all: barrier over the ranks.
    """

    def __init__(self, limit: int | None, wait_for_all: Callable[[], None]):
        self.limit, self.wait_for_all = limit, wait_for_all

    def on_save(self, args, state, control, **kwargs):
        self.wait_for_all()
        if state.is_world_process_zero:
            run = Path(args.output_dir)
            write_marker(run / f"checkpoint-{state.global_step}", args.world_size, state.global_step)
            self._delete_old(run, keep=state.best_model_checkpoint)

    def _delete_old(self, run: Path, keep: str | None) -> None:
        if self.limit is None or self.limit < 1:  # transformers: no limit
            return
        for folder in checkpoints(run)[: -self.limit]:
            if keep is None or folder != Path(keep):
                # The marker goes first: a deletion that is cut short must not leave a folder that looks complete.
                (folder / MARKER).unlink(missing_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
