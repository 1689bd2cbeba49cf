"""The reader of torch.save files must run nothing that a file names, and name what is wrong with it."""

import os
import pickle
import zipfile
from collections import OrderedDict

import pytest

from zerotune.checkpointing.torch_archive import Opaque, StoredTensor, read_archive
from zerotune.errors import UsageError


class Evil:
    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def archive(path, tree, **extra):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(tree, protocol=2))
        for name, data in extra.items():
            file.writestr(f"archive/{name}", data)
    return path


def test_calls_in_the_file_are_not_made(tmp_path):
    evil = Evil()
    evil.path = tmp_path / "made"
    tree = read_archive(archive(tmp_path / "x.pt", {"step": 3, "bad": evil}))
    assert not evil.path.exists()
    assert tree["step"] == 3
    assert isinstance(tree["bad"], Opaque) and tree["bad"].args == (str(evil.path),)


def test_plain_containers_come_back(tmp_path):
    tree = {"a": [1, (2, "x")], "b": OrderedDict(z=1), "c": {1, 2}, "d": None}
    assert read_archive(archive(tmp_path / "x.pt", tree)) == tree


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut off"])
def test_a_damaged_file_is_named_with_its_size(tmp_path, content):
    path = tmp_path / "x.pt"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=rf"x\.pt: truncated or damaged \({len(content)} bytes"):
        read_archive(path)


def test_a_zip_of_something_else(tmp_path):
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("letter.txt", "hello")
    with pytest.raises(UsageError, match=r"not one that torch\.save wrote"):
        read_archive(path)


def test_big_endian_is_refused(tmp_path):
    with pytest.raises(UsageError, match="big-endian"):
        read_archive(archive(tmp_path / "x.pt", {}, byteorder="big"))


@pytest.mark.parametrize(
    ("shape", "stride", "contiguous"),
    [((2, 3), (3, 1), True), ((2, 3), (1, 2), False), ((1, 3), (99, 1), True), ((0, 3), (1, 1), True), ((), (), True)],
)
def test_contiguity_is_torchs(tmp_path, shape, stride, contiguous):
    assert StoredTensor(tmp_path, "F32", 0, shape, stride).contiguous is contiguous
