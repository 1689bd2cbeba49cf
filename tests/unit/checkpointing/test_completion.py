"""A checkpoint is one when its marker says so, and every file is as it was written."""

from __future__ import annotations

import json
import zlib

import pytest

from zerotune.checkpointing import completion, saving
from zerotune.errors import UsageError

SHARD = "global_step20/zero_pp_rank_0_optim_states.pt"


def write(folder, content=b"x" * 4096):
    (folder / "global_step20").mkdir(parents=True)
    (folder / SHARD).write_bytes(content)
    (folder / "latest").write_text("global_step20")
    completion.write_marker(folder, world_size=2, step=20, crc32={SHARD: zlib.crc32(content)})
    return folder


@pytest.fixture
def run(tmp_path):
    """A run with complete checkpoints at steps 20 and 40."""
    for step in (20, 40):
        write(tmp_path / f"checkpoint-{step}")
    return tmp_path


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[1000] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "has 4095 bytes, not 4096": lambda folder: truncate(folder / SHARD),
    "is damaged": lambda folder: flip(folder / SHARD),
    "is missing": lambda folder: (folder / SHARD).unlink(),
    "was not finished": lambda folder: (folder / completion.MARKER).unlink(),
    "cannot be read": lambda folder: truncate(folder / completion.MARKER),
}


def test_a_complete_one_is_the_newest(run):
    assert saving.find("last", run) == (run / "checkpoint-40", [])
    assert completion.world_size_of(run / "checkpoint-40") == 2


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_damaged_one_is_passed_over_with_the_reason(run, reason):
    DAMAGE[reason](run / "checkpoint-40")
    found, passed_over = saving.find("last", run)
    assert found == run / "checkpoint-20"
    assert len(passed_over) == 1 and passed_over[0].startswith("checkpoint-40: ") and reason in passed_over[0]


@pytest.mark.parametrize("reason", DAMAGE)
def test_a_damaged_one_asked_for_by_name_is_refused(run, reason):
    DAMAGE[reason](run / "checkpoint-40")
    with pytest.raises(UsageError, match=f"{reason}.*Complete ones: .*checkpoint-20"):
        saving.find(str(run / "checkpoint-40"), run)


def test_files_of_two_runs_are_told_apart(run, tmp_path_factory):
    other = write(tmp_path_factory.mktemp("other") / "checkpoint-40", b"y" * 4096)
    (run / "checkpoint-40" / SHARD).write_bytes((other / SHARD).read_bytes())
    assert saving.find("last", run)[0].name == "checkpoint-20"


def test_markers_without_checksums_stay_readable(run):
    marker = run / "checkpoint-40" / completion.MARKER
    content = json.loads(marker.read_text())
    del content["crc32"]
    marker.write_text(json.dumps(content))
    assert saving.find("last", run)[0].name == "checkpoint-40"


def test_each_rank_reads_its_share(run):
    folder = run / "checkpoint-40"
    flip(folder / SHARD)
    assert sum(completion.what_is_damaged(folder, rank, 3) is not None for rank in range(3)) == 1


def test_shares_are_even_and_whole():
    sizes = {f"file{number}": number for number in range(100)}
    parts = completion.shares(sizes, 4)
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    loads = [sum(sizes[name] for name in part) for part in parts]
    assert max(loads) - min(loads) <= 99


def test_checksums_are_those_of_the_files(run):
    content = json.loads((run / "checkpoint-20" / completion.MARKER).read_text())
    assert set(content["files"]) == set(content["crc32"]) == {SHARD, "latest"}
    for name, value in content["crc32"].items():
        assert value == zlib.crc32((run / "checkpoint-20" / name).read_bytes())
