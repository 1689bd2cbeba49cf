"""When a checkpoint folder is one: its completion marker, written last, lists every file with size and checksum.

Imports nothing heavy: the exporter asks it too. The checksum is CRC-32 as zlib computes it: it finds every burst of
up to 32 wrong bits, and runs at memory speed where SHA-256 and BLAKE2 need several times as long (docs/checkpoints.md).
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

MARKER = "zerotune_checkpoint.json"
READ = 16 << 20


def write_marker(folder: Path, world_size: int, step: int, crc32: Mapping[str, int] | None = None) -> None:
    """List every file of `folder` in a marker that appears at once or not at all, after all else is on the disk.

    Args:
        crc32: checksums known already, by name relative to `folder`; the other files are read for theirs.
    """
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MARKER
    }
    known = crc32 or {}
    content = {
        "step": step,
        "world_size": world_size,
        "files": {name: path.stat().st_size for name, path in files.items()},
        "crc32": {name: known[name] if name in known else checksum(path) for name, path in files.items()},
    }
    for path in (*files.values(), *(one for one in folder.rglob("*") if one.is_dir()), folder, folder.parent):
        flush(path)
    partial = folder / (MARKER + ".partial")
    partial.write_text(json.dumps(content, indent=1))
    flush(partial)
    partial.rename(folder / MARKER)
    flush(folder)


def flush(path: Path) -> None:
    """fsync a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def checksum(path: Path) -> int:
    """CRC-32 of a file's content."""
    found = 0
    with path.open("rb") as file:
        while piece := file.read(READ):
            found = zlib.crc32(piece, found)
    return found


def what_is_wrong(folder: Path) -> str | None:
    """None for a checkpoint whose files are there in their sizes, else the first reason why it is none."""
    try:
        files = _marker(folder)["files"].items()
    except FileNotFoundError:
        return f"it was not finished ({MARKER} is absent)"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MARKER} cannot be read"
    for name, size in files:
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes, not {size}"
    return None


def what_is_damaged(folder: Path, rank: int = 0, world_size: int = 1) -> str | None:
    """Read one rank's share of a complete checkpoint: the first file whose content is not what was written.

    None when the share is as written, and for markers of versions that kept no checksums.
    """
    content = _marker(folder)
    crc32 = content.get("crc32", {})
    for name in shares(content["files"], world_size)[rank]:
        if name in crc32 and checksum(folder / name) != crc32[name]:
            return f"{name} is damaged (its checksum is not the one it was written with)"
    return None


def shares(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Split files into `count` lists of about the same bytes: the largest first, each to the list with least."""
    lists, loads = [[] for _ in range(count)], [0] * count
    for name in sorted(sizes, key=lambda one: (-sizes[one], one)):
        least = loads.index(min(loads))
        lists[least].append(name)
        loads[least] += sizes[name]
    return lists


def world_size_of(folder: Path) -> int:
    """Number of ranks that wrote a complete checkpoint."""
    return _marker(folder)["world_size"]


def _marker(folder: Path) -> dict:
    return json.loads((folder / MARKER).read_text())
