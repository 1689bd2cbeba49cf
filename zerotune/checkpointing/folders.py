"""Checkpoint folders come and go so that what is there is never mistaken for a complete one."""

from __future__ import annotations

import shutil
from pathlib import Path

from zerotune.checkpointing.completion import MARKER


def aside(folder: Path) -> Path:
    """Where an earlier checkpoint of the same step waits until its successor is complete."""
    return folder.with_name(folder.name + ".old")


def set_aside(folder: Path) -> None:
    """Free the name: a complete checkpoint waits aside, what is left of an incomplete one goes."""
    if (folder / MARKER).exists():
        shutil.rmtree(aside(folder), ignore_errors=True)
        folder.rename(aside(folder))
    else:
        remove(folder)


def put_back(folder: Path) -> None:
    """Undo a save that failed: what it wrote goes, and an earlier checkpoint of the step has its name again."""
    remove(folder)
    if aside(folder).exists():
        aside(folder).rename(folder)


def remove(folder: Path) -> None:
    """Delete a checkpoint, its marker first: a deletion that is cut short must not leave one that looks complete."""
    (folder / MARKER).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
