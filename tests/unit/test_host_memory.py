"""A container's limit counts, with the page cache that the kernel would give back."""

from __future__ import annotations

import psutil
import pytest

from zerotune.preflight import host_memory


@pytest.mark.parametrize("files", host_memory.FILES, ids=["cgroup 2", "cgroup 1"])
def test_a_container_has_what_its_limit_leaves(tmp_path, files):
    (tmp_path / "memory").mkdir()
    for name, text in zip(files, ("1000\n", "700\n", f"anon 500\n{files[3]} 150\n"), strict=False):
        (tmp_path / name).write_text(text)
    assert host_memory.free_bytes(tmp_path) == 1000 - 700 + 150


def test_without_a_limit_the_machine_decides(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    assert 0 < host_memory.free_bytes(tmp_path) <= psutil.virtual_memory().total
