"""This machine as a cluster: its GPUs as nvidia-smi or torch names them, else its CPU; and its memory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from zerotune.errors import UsageError

from .device_rows import DEVICES, Device
from .hardware import Cluster, find_device

# Limits of a container: cgroup 2, then 1. Either holds "max" or an absurd number when there is none.
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# fp32 operations of a core in one cycle: two units that multiply and add, over the width of its registers.
LANES = (("avx512f", 64), ("avx2", 32), ("asimd", 16), ("", 8))


def local() -> Cluster:
    """This machine: its GPUs by nvidia-smi, else its CPU.

    Raises:
        UsageError: a GPU that the table doesn't hold.
    """
    found = _nvidia_smi()
    if not found:
        return Cluster(cpu(), 1, 1, host_bytes())
    name, mib = found[0]
    return Cluster(known_device(name, mib), 1, len(found), host_bytes())


def of_ranks(device_name: str | None, device_bytes: int, nodes: int, per_node: int) -> Cluster:
    """The machines of a running job, all like this one.

    Args:
        device_name: as torch names this rank's GPU; None without one.
        device_bytes: memory of that GPU.
        per_node: ranks on each node; without GPUs they share its cores.

    Raises:
        UsageError: a GPU that the table doesn't hold.
    """
    if device_name is None:
        whole = cpu()
        shared = {key: getattr(whole, key) / per_node for key in ("bf16", "fp32", "memory_gbs")}
        return Cluster(replace(whole, **shared), nodes, per_node, host_bytes())
    row = known_device(device_name, device_bytes >> 20)
    return Cluster(replace(row, memory_gib=device_bytes / 2**30), nodes, per_node, host_bytes())


def cpu() -> Device:
    """All cores that this process may use; their peak by the width of their registers and the present clock."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = _read("/proc/cpuinfo") or ""
    flags = next((line.split() for line in text.splitlines() if line.startswith(("flags", "Features"))), [])
    lanes = next(each for flag, each in LANES if flag in flags or not flag)
    clock = re.search(r"cpu MHz\s*:\s*([\d.]+)", text)
    fp32 = cores * lanes * float(clock.group(1) if clock else 2500) / 1e6
    bf16 = fp32 if "avx512_bf16" in flags else fp32 / 2
    memory = (host_bytes() or 2**36) / 2**30
    return replace(DEVICES["CPU"], memory_gib=memory, fp32=fp32, bf16=bf16, source="/proc/cpuinfo")


def host_bytes() -> int | None:
    """Memory that the processes of this machine may have in all: what is built in, or a container's limit."""
    try:
        built_in = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    limits = [_read(path) for path in CGROUP_LIMITS]
    return min([built_in, *(int(text) for text in limits if text and text.strip().isdigit())])


def known_device(name: str, mib: int) -> Device:
    """'NVIDIA A100-SXM4-80GB' -> the row A100-80GB; where the table has sizes, the one that fits.

    Raises:
        UsageError: not in the table.
    """
    for key in ("A100", "H100", "V100", *DEVICES):
        if re.search(rf"\b{key.replace('-', '[ -]')}\b", name, re.IGNORECASE):
            sizes = [row for row in DEVICES.values() if row.name.startswith(key)]
            return min(sizes, key=lambda row: abs(row.memory_gib * 1024 - mib))
    try:
        return find_device(name.split()[-1] if name.split() else name)
    except UsageError:
        raise UsageError(
            f"this machine has {name} ({mib} MiB), which the planner's table doesn't hold; "
            "zerotune-config plan takes its row with --devices FILE"
        ) from None


def _nvidia_smi() -> list[tuple[str, int]]:
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [line.rsplit(",", 1) for line in done.stdout.splitlines() if "," in line] if done.returncode == 0 else []
    return [(name.strip(), int(mib)) for name, mib in rows if mib.strip().isdigit()]


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None
