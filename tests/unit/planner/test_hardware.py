"""Clusters as people write them, and rows of their own."""

from __future__ import annotations

import json

import pytest

from zerotune.errors import UsageError
from zerotune.planner.device_rows import ALIASES, DEVICES
from zerotune.planner.hardware import parse_bytes, parse_gpus


@pytest.mark.parametrize(
    ("text", "nodes", "per_node", "device"),
    [
        ("2x8xA100-80GB", 2, 8, "A100-80GB"),
        ("8xH100", 1, 8, "H100-80GB"),
        ("h200", 1, 1, "H200"),
        ("4 x RTX 4090", 1, 4, "RTX-4090"),
        ("2x8xMI300X", 2, 8, "MI300X"),
        ("8xCPU", 1, 8, "CPU"),
    ],
)
def test_clusters(text, nodes, per_node, device):
    cluster = parse_gpus(text)
    assert (cluster.nodes, cluster.per_node, cluster.device.name) == (nodes, per_node, device)
    assert cluster.world == nodes * per_node


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("8xA100-60GB", "A100-80GB"),
        ("0xH100", "'0' is no number of devices"),
        ("-1xH100", "is no number of devices"),
        ("2.5xH100", "is no number of devices"),
        ("2x2x2xH100", "no device '2xH100'"),
        ("", "no device ''"),
    ],
)
def test_wrong_clusters(text, expected):
    with pytest.raises(UsageError, match=expected):
        parse_gpus(text)


def test_every_row_has_a_source_and_every_alias_a_row():
    assert all(row.memory_bytes > 2**30 for row in DEVICES.values())
    assert all(row.source.startswith("https://") for row in DEVICES.values() if not row.is_cpu)
    assert set(ALIASES.values()) <= set(DEVICES)


@pytest.mark.parametrize(
    ("text", "amount"), [("1TB", 10**12), ("1TiB", 2**40), ("512g", 512 * 10**9), ("1.5 GiB", 3 * 2**29)]
)
def test_amounts(text, amount):
    assert parse_bytes(text, "--host-ram") == amount


@pytest.mark.parametrize("text", ["", "many", "-1TB", "0", "1XB", "1.2.3GB", "1e400GB", "1e30"])
def test_wrong_amounts(text):
    with pytest.raises(UsageError, match="--host-ram"):
        parse_bytes(text, "--host-ram")


def test_rows_of_the_users_own(tmp_path):
    path = tmp_path / "devices.json"
    path.write_text(json.dumps({"my-card": {"like": "L4", "memory_gib": 47.5, "source": "its box"}}))
    cluster = parse_gpus("3xmy-card", path, "128GB")
    assert cluster.device.memory_gib == 47.5 and cluster.device.bf16 == DEVICES["L4"].bf16
    assert cluster.host_bytes == 128 * 10**9
    path.write_text(json.dumps({"my-card": {"memory": 47.5}}))
    with pytest.raises(UsageError, match="memory_gib"):
        parse_gpus("my-card", path)
    path.write_text(json.dumps({"my-card": {"memory_gib": "47"}}))
    with pytest.raises(UsageError, match="must be a number"):
        parse_gpus("my-card", path)
