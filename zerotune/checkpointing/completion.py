"""When a checkpoint folder is one: its completion marker, written last, lists every file with its size.

Imports nothing heavy: the exporter asks it too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

MARKER = "zerotune_checkpoint.json"


def write_marker(folder: Path, world_size: int, step: int) -> None:
    """List every file of `folder` with its size, in a marker that appears at once or not at all."""
    files = {
        path.relative_to(folder).as_posix(): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MARKER
    }
    partial = folder / (MARKER + ".partial")
    with partial.open("w") as file:
        json.dump({"step": step, "world_size": world_size, "files": files}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / MARKER)


def what_is_wrong(folder: Path) -> str | None:
    """None for a complete checkpoint, else the first reason why it is none."""
    try:
        files = json.loads((folder / MARKER).read_text())["files"]
    except FileNotFoundError:
        return f"it was not finished ({MARKER} is absent)"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MARKER} cannot be read"
    for name, size in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, not {size}"
    return None


def world_size_of(folder: Path) -> int:
    """Number of ranks that wrote a complete checkpoint."""
    return json.loads((folder / MARKER).read_text())["world_size"]
