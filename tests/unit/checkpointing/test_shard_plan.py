"""The layout of safetensors files, read back by the safetensors library."""

from pathlib import Path

import pytest

from zerotune.checkpointing.shard_plan import index_json, parse_size, plan_shards
from zerotune.checkpointing.weights import Piece, SourceTensor
from zerotune.errors import UsageError


def tensor(name, *shape, dtype="F32"):
    number = 1
    for size in shape:
        number *= size
    return SourceTensor(name, shape, (Piece(Path("x"), dtype, 0, number),))


def plan(*tensors, dtype="bf16", limit="1KB"):
    return plan_shards({each.name: each for each in tensors}, dtype, parse_size(limit))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GB", 5 * 10**9),
        ("500 MB", 5 * 10**8),
        ("2GiB", 2 << 30),
        ("1.5kb", 1500),
        ("7", 7),
        (12, 12),
        ("3G", 3 * 10**9),
    ],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "0", "-1GB", "5XB", "1.2.3GB"])
def test_wrong_sizes(text):
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


def test_a_new_file_begins_where_the_limit_would_be_passed():
    shards = plan(tensor("a", 300), tensor("b", 250), tensor("c", 5), tensor("huge", 9000), tensor("d", 1))
    assert [[slot.name for slot in shard.slots] for shard in shards] == [["a"], ["b", "c"], ["huge"], ["d"]]
    assert [shard.filename for shard in shards] == [f"model-0000{i}-of-00004.safetensors" for i in (1, 2, 3, 4)]


def test_one_file_has_the_plain_name():
    assert [shard.filename for shard in plan(tensor("a", 3))] == ["model.safetensors"]


def test_the_safetensors_library_reads_the_header(tmp_path):
    from safetensors import safe_open

    (shard,) = plan(tensor("a", 3, 2), tensor("count", 4, dtype="I64"), tensor("empty", 0, 5), limit="1MB")
    path = tmp_path / shard.filename
    path.write_bytes(shard.header.ljust(shard.num_bytes, b"\0"))
    with safe_open(path, "numpy") as file:
        found = {
            name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()) for name in list(file.keys())
        }
    assert found == {"a": ("BF16", [3, 2]), "count": ("I64", [4]), "empty": ("BF16", [0, 5])}
    assert len(shard.header) % 8 == 0


def test_index_counts_bytes_and_parameters():
    import json

    index = json.loads(index_json(plan(tensor("a", 300), tensor("b", 400))))
    assert index["metadata"] == {"total_parameters": 700, "total_size": 1400}
    assert index["weight_map"]["b"] == "model-00002-of-00002.safetensors"
