"""Headers and indices of weight files: what is right, and everything that can be wrong with a copied folder."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from zerotune.errors import UsageError
from zerotune.loading.extents import Stored
from zerotune.loading.weight_files import INDEX, SINGLE, read_folder, read_header


def write(path: Path, tensors: dict[str, tuple[str, list[int], int]], cut: int = 0, **header) -> Path:
    """A safetensors file: {name: (dtype, shape, bytes)}; `cut` bytes are missing at its end."""
    entries, at = dict(header), 0
    for name, (dtype, shape, size) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    path.write_bytes((struct.pack("<Q", len(text)) + text + bytes(at))[: 8 + len(text) + at - cut])
    return path


def shard(folder: Path, name: str, key: str) -> None:
    write(folder / name, {key: ("BF16", [2, 3], 12)})


def index(folder: Path, **places: str) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))


def test_a_single_file(tmp_path):
    path = write(tmp_path / SINGLE, {"a": ("BF16", [2, 3], 12), "b": ("F32", [], 4)}, __metadata__={"format": "pt"})
    start = path.stat().st_size - 16
    assert read_folder(tmp_path) == {
        "a": Stored(path, "BF16", (2, 3), start),
        "b": Stored(path, "F32", (), start + 12),
    }


def test_shards(tmp_path):
    shard(tmp_path, "one.safetensors", "a")
    shard(tmp_path, "two.safetensors", "b")
    index(tmp_path, a="one.safetensors", b="two.safetensors")
    assert {name: one.path.name for name, one in read_folder(tmp_path).items()} == {
        "a": "one.safetensors",
        "b": "two.safetensors",
    }


def test_a_truncated_file(tmp_path):
    path = write(tmp_path / SINGLE, {"a": ("BF16", [2, 3], 12)}, cut=5)
    size = path.stat().st_size
    with pytest.raises(UsageError, match=rf"{SINGLE}: truncated, {size} of {size + 5} bytes are there"):
        read_folder(tmp_path)


NOT_HEADERS = [b"{]}[}", b"[1,2]", b'{"a": 3}', b'{"a": {}}']


@pytest.mark.parametrize(
    "content",
    [b"", b"12", b"not a safetensors file at all", *(struct.pack("<Q", len(one)) + one for one in NOT_HEADERS)],
)
def test_files_that_are_something_else(tmp_path, content):
    (tmp_path / SINGLE).write_bytes(content)
    with pytest.raises(UsageError, match="no safetensors file, or damaged"):
        read_folder(tmp_path)


def test_sizes_that_contradict_one_another(tmp_path):
    path = write(tmp_path / "x.safetensors", {"a": ("BF16", [2, 3], 10)})
    with pytest.raises(UsageError, match=r"damaged, a \[2, 3\] of BF16 takes 10 bytes"):
        read_header(path)


def test_a_type_that_cannot_be_loaded(tmp_path):
    path = write(tmp_path / "x.safetensors", {"a": ("F4", [2], 1)})
    with pytest.raises(UsageError, match="a is of type F4"):
        read_header(path)


def test_an_index_that_names_absent_files(tmp_path):
    shard(tmp_path, "one.safetensors", "a")
    index(tmp_path, a="one.safetensors", b="two.safetensors", c="three.safetensors")
    with pytest.raises(UsageError, match=r"names 3 files, and 2 of them are not in the folder: three.*, two"):
        read_folder(tmp_path)


def test_an_index_of_another_model(tmp_path):
    shard(tmp_path, "one.safetensors", "a")
    index(tmp_path, a="one.safetensors", b="one.safetensors")
    with pytest.raises(UsageError, match=r"1 of them are not there: b in one.safetensors"):
        read_folder(tmp_path)


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"weight_map": 3}'])
def test_a_file_that_is_no_index(tmp_path, content):
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(UsageError, match="no weight index"):
        read_folder(tmp_path)


def test_a_folder_without_weights(tmp_path):
    (tmp_path / "README.md").touch()
    with pytest.raises(UsageError, match=r"holds no weights .*It holds: README.md"):
        read_folder(tmp_path)


def test_pickles_are_taken_only_when_allowed(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UsageError, match=r"allow_pickle=True"):
        read_folder(tmp_path)
    with pytest.raises(UsageError, match="truncated or damaged"):
        read_folder(tmp_path, allow_pickle=True)
