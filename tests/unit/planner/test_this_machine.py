"""The machine that a plan is made on."""

from __future__ import annotations

import os

import pytest

from zerotune.errors import UsageError
from zerotune.planner import this_machine
from zerotune.planner.device_rows import DEVICES
from zerotune.planner.hardware import parse_gpus

PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("name", "mib", "row"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920, "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", 40960, "A100-40GB"),
        ("NVIDIA H200", 143771, "H200"),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX-4090"),
        ("Tesla V100-SXM2-16GB", 16384, "V100-16GB"),
        ("NVIDIA A10G", 23028, "A10"),
        ("Tesla T4", 15360, "T4"),
        ("NVIDIA L40S", 46068, "L40S"),
        ("AMD Instinct MI300X", 196592, "MI300X"),
    ],
)
def test_names_that_drivers_give(name, mib, row):
    assert this_machine.known_device(name, mib) is DEVICES[row]


@pytest.mark.parametrize("name", ["Quadro 9", "NVIDIA RTX A1000", "NVIDIA L40", "NVIDIA GH200 480GB", ""])
def test_a_device_that_the_table_does_not_hold(name):
    with pytest.raises(UsageError, match=rf"this machine has {name} .100 MiB.* --devices FILE"):
        this_machine.known_device(name, 100)


def test_a_container_has_its_limit(tmp_path, monkeypatch):
    (tmp_path / "limit").write_text(f"{2**30}\n")
    (tmp_path / "none").write_text("max\n")
    monkeypatch.setattr(this_machine, "CGROUP_LIMITS", (str(tmp_path / "none"), str(tmp_path / "missing")))
    assert this_machine.host_bytes() == PHYSICAL
    monkeypatch.setattr(this_machine, "CGROUP_LIMITS", (str(tmp_path / "none"), str(tmp_path / "limit")))
    assert this_machine.host_bytes() == 2**30


def test_without_a_gpu_it_is_the_cpu(monkeypatch):
    monkeypatch.setattr(this_machine, "_nvidia_smi", list)
    cluster = parse_gpus("local")
    assert cluster.device.is_cpu and cluster.node_bytes == this_machine.host_bytes()
    assert cluster.device.fp32 > 0


def test_ranks_share_the_cores_of_a_node():
    one, two = this_machine.of_ranks(None, 0, 1, 1), this_machine.of_ranks(None, 0, 1, 2)
    assert two.device.fp32 == pytest.approx(one.device.fp32 / 2, rel=0.5)  # the clock moves between two readings
    assert two.world == 2 and two.node_bytes == one.node_bytes


def test_a_running_job_knows_its_gpus_bytes():
    cluster = this_machine.of_ranks("NVIDIA H200", 150 * 10**9, 2, 8)
    assert cluster.device.memory_bytes == 150 * 10**9 and cluster.device.bf16 == DEVICES["H200"].bf16
    assert (cluster.nodes, cluster.per_node) == (2, 8)
