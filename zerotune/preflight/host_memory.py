"""Host memory that is free now, inside a container's limit too."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
# Limit, use, and the line of `stat` with the page cache that goes when memory is short: cgroup 2, then 1.
FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
)


def free_bytes(cgroups: Path = CGROUPS) -> int:
    """Bytes that this node's processes can still take."""
    rooms = [room for files in FILES if (room := _room(cgroups, *files)) is not None]
    return min([psutil.virtual_memory().available, *rooms])


def _room(cgroups: Path, limit: str, use: str, stat: str, cache: str) -> int | None:
    """What a container may still take; None without a limit."""
    try:
        most, used = (int((cgroups / name).read_text()) for name in (limit, use))
        lines = dict(line.split() for line in (cgroups / stat).read_text().splitlines())
        return most - used + int(lines[cache])
    except (OSError, ValueError, KeyError):
        return None
