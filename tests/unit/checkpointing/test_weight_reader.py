"""Ranges of weights that lie in pieces, in several files, or in another memory order."""

import numpy as np
import pytest

from zerotune.checkpointing import shard_writer, weight_reader
from zerotune.checkpointing.shard_plan import Slot, plan_shards
from zerotune.checkpointing.shard_writer import ShardWriter
from zerotune.checkpointing.torch_archive import StoredTensor
from zerotune.checkpointing.weight_reader import RangeReader, converted_chunks
from zerotune.checkpointing.weights import Piece, SourceTensor
from zerotune.errors import UsageError

VALUES = np.arange(20, dtype=np.float32)


@pytest.fixture
def source(tmp_path):
    """20 numbers: 3, 10 and 7 of them in two files, with other bytes around them."""
    (tmp_path / "a").write_bytes(b"pad!" + VALUES[:3].tobytes() + b"rest" + VALUES[13:].tobytes())
    (tmp_path / "b").write_bytes(VALUES[3:13].tobytes() + b"rest")
    pieces = (
        Piece(tmp_path / "a", "F32", 4, 3),
        Piece(tmp_path / "b", "F32", 0, 10),
        Piece(tmp_path / "a", "F32", 20, 7),
    )
    return SourceTensor("w", (4, 5), pieces)


@pytest.mark.parametrize(("first", "last"), [(0, 20), (0, 1), (2, 4), (3, 13), (12, 14), (19, 20), (7, 7)])
def test_a_range_gives_its_elements_once_and_in_order(source, monkeypatch, first, last):
    monkeypatch.setattr(weight_reader, "CHUNK_ELEMENTS", 4)
    at = first
    for start, data, overflow in converted_chunks(RangeReader(), Slot("w", source, "F32", 0), first, last):
        values = data.view(np.float32)
        assert start == at and overflow == 0 and len(values) <= 4
        np.testing.assert_array_equal(values, VALUES[start : start + len(values)])
        at += len(values)
    assert at == last


def test_a_transposed_tensor_becomes_row_major(tmp_path):
    (tmp_path / "a").write_bytes(b"12345678" + VALUES[:12].tobytes())
    stored = StoredTensor(tmp_path / "a", "F32", 8, (3, 4), (1, 3))
    slot = Slot("w", SourceTensor("w", (3, 4), (), strided=stored), "F32", 0)
    ((_, data, _),) = converted_chunks(RangeReader(), slot, 0, 12)
    np.testing.assert_array_equal(data.view(np.float32).reshape(3, 4), VALUES[:12].reshape(4, 3).T)


@pytest.mark.parametrize("workers", [1, 5])
def test_many_small_tasks_fill_every_file(source, tmp_path, monkeypatch, workers):
    from safetensors.numpy import load_file

    monkeypatch.setattr(shard_writer, "TASK_ELEMENTS", 3)
    tensors = {name: SourceTensor(name, source.shape, source.pieces) for name in "pqr"}
    shards = plan_shards(tensors, "fp32", 100)
    written = []
    ShardWriter(tmp_path, workers, advance=written.append).write(shards)
    assert sum(written) == 3 * 20 * 4 and max(written) <= 12
    for shard in shards:
        ((_, array),) = load_file(tmp_path / shard.filename).items()
        np.testing.assert_array_equal(array.reshape(-1), VALUES)
    assert not [*tmp_path.glob("*.partial")]


def test_a_file_that_ends_early_is_named(source, tmp_path):
    (tmp_path / "b").write_bytes(b"short")
    with pytest.raises(UsageError, match=r"b: truncated, 40 bytes were expected"):
        [*converted_chunks(RangeReader(), Slot("w", source, "F32", 0), 0, 20)]
