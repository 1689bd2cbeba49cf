"""Which devices, how many, and how they are linked."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path

from zerotune.ds_config.resolve import read_text
from zerotune.errors import UsageError, nearest

from .device_rows import ALIASES, DEVICES, Device

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
MOST, MOST_BYTES = 10**6, 2**60


@dataclass(frozen=True)
class Cluster:
    """`nodes` equal machines of `per_node` devices. host_bytes: memory of one node; None = unknown."""

    device: Device
    nodes: int = 1
    per_node: int = 1
    host_bytes: int | None = None

    @property
    def world(self) -> int:
        return self.nodes * self.per_node

    @property
    def node_bytes(self) -> int | None:
        """Host memory of a node; ranks without a GPU share the CPU's."""
        return self.device.memory_bytes if self.host_bytes is None and self.device.is_cpu else self.host_bytes

    def __str__(self) -> str:
        node = f"{self.per_node}x{self.device.name}"
        return f"{self.nodes}x{node}" if self.nodes > 1 else node


def parse_gpus(text: str, rows: Path | None = None, host_ram: str | None = None) -> Cluster:
    """`2x8xA100-80GB` (nodes x GPUs x device), `8xH100`, `A100-80GB`, or `local`.

    Args:
        rows: JSON file with devices of the user's own: {"name": {"memory_gib": ..., ...}}.
        host_ram: memory of one node, "1TB", "256GiB"; None = unknown.

    Raises:
        UsageError: no such device (nearest ones named), counts of 0 or below, no number where one belongs.
    """
    devices = DEVICES | (user_rows(rows) if rows else {})
    if text.strip().lower() == "local":
        from .this_machine import local

        cluster = local()
    else:
        *counts, name = re.split(r"\s*[x*]\s*(?=\S)", text.strip(), maxsplit=_counts(text))
        numbers = [_count(text, count) for count in counts]
        nodes, per_node = numbers if len(numbers) == 2 else [1, *numbers, 1][:2]
        cluster = Cluster(find_device(name, devices), nodes, per_node)
    given = parse_bytes(host_ram, "--host-ram") if host_ram else cluster.host_bytes
    return replace(cluster, host_bytes=given)


def _counts(text: str) -> int:
    """How many leading `NUMBER x` there are: a device's own name may hold an x."""
    return len(re.match(r"(?:\s*-?[\d.]+\s*[xX*]\s*){0,2}", text).group().lower().replace("*", "x").split("x")) - 1


def _count(text: str, count: str) -> int:
    if not count.isdigit() or not 0 < int(count) <= MOST:
        raise UsageError(f"--gpus {text}: {count!r} is no number of devices; write 8xH100, or 2x8xA100-80GB")
    return int(count)


def find_device(name: str, devices: dict[str, Device] = DEVICES) -> Device:
    """A row by its name, whatever its case.

    Raises:
        UsageError: unknown; the nearest names are listed.
    """
    known = {key.lower(): key for key in [*devices, *ALIASES]}
    plain = name.strip().lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-")
    key = known.get(plain) or known.get(plain.removesuffix("-sxm")) or known.get(re.sub(r"(\d)gib$", r"\1gb", plain))
    if key is None:
        close = nearest(plain, [*devices, *ALIASES]) or list(devices)
        raise UsageError(f"--gpus: no device {name!r} in the table; nearest: {', '.join(close)}, or local")
    return devices.get(key) or devices[ALIASES[key]]


def user_rows(path: Path) -> dict[str, Device]:
    """Rows from a JSON file. What a row leaves out comes from the row named by its "like", else from A100-80GB.

    Raises:
        UsageError: no JSON, an unknown field, a number that is none.
    """
    try:
        table = json.loads(read_text(path, str(path)))
    except ValueError as problem:
        raise UsageError(f"{path} is no JSON: {problem}") from None
    if not isinstance(table, dict) or not all(isinstance(row, dict) for row in table.values()):
        raise UsageError(f'{path}: write {{"my-gpu": {{"memory_gib": 24, "bf16": 100}}}}')
    return {name: _user_row(name, row, path) for name, row in table.items()}


def _user_row(name: str, row: dict, path: Path) -> Device:
    base = find_device(row.get("like", "A100-80GB"))
    allowed = [field.name for field in fields(Device) if field.name != "name"]
    values = {key: value for key, value in row.items() if key != "like"}
    for key, value in values.items():
        if key not in allowed:
            close = nearest(key, allowed) or allowed
            raise UsageError(f"{path}: {name} has no field {key!r}; nearest: {', '.join(close)}")
        if key != "source" and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            raise UsageError(f"{path}: {key} of {name} is {value!r}, which must be a number of 0 or more")
    return replace(base, **{"source": str(path), **values, "name": name})


def parse_bytes(text: str, flag: str) -> int:
    """1TB = 10^12, 1TiB = 2^40, 1T and 1TB are the same.

    Raises:
        UsageError: no number, an unknown unit, zero or less.
    """
    found = re.fullmatch(r"\s*(-?[\d.]+(?:e\d+)?)\s*([a-z]*)\s*", text.lower())
    unit = found.group(2).removesuffix("b") if found else ""
    if not found or found.group(1).count(".") > 1 or unit not in UNITS:
        close = nearest(unit, [key + "b" for key in UNITS if key]) if found else []
        hint = f"; nearest unit: {', '.join(close)}" if close else ""
        raise UsageError(f"{flag} {text!r} is no amount of memory; write 512GB or 1TiB{hint}")
    amount = float(found.group(1)) * UNITS[unit]
    if not 1 <= amount < MOST_BYTES:
        raise UsageError(f"{flag} {text!r} must be above 0, and no more than a machine can have")
    return int(amount)
