"""From a name to a text, and every way this can fail."""

from __future__ import annotations

import json
import os

import pytest

from zerotune.ds_config import resolve, template_names
from zerotune.ds_config.templates import TEMPLATES
from zerotune.errors import UsageError


def test_every_template_resolves_and_has_a_purpose():
    assert set(template_names()) == set(TEMPLATES)
    for name in template_names():
        found = resolve(name)
        assert found.name == name
        assert found.path.is_file()
        assert found.config == json.loads(found.text)


def test_the_eight_templates():
    expected = "stage1 stage1_offload stage2 stage2_offload stage3 stage3_nvme stage3_offload stage3_offload_optimizer"
    assert template_names() == expected.split()


def test_json_suffix_of_a_template_is_accepted():
    assert resolve("stage2.json").config == resolve("stage2").config


def test_a_file_wins_over_a_template_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stage2").write_text('{"mine": 1}')
    assert resolve("stage2").config == {"mine": 1}


def test_a_broken_file_resolves_with_what_could_be_read(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text('{"a": 1,}')
    assert resolve(str(path)).config == {"a": 1}
    path.write_text("[1")
    assert resolve(str(path)).config == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("stag2", "nearest: stage2"),
        ("ZeRO-3-offload", "zerotune-config list"),
        ("no/such/ds.json", "folder no/such"),
        ("xyz", "stage3_offload_optimizer"),
        ("a\x00b", "can't be read"),
        ("x" * 5000, "can't be read"),
        ("", ""),
    ],
)
def test_not_found(name, expected):
    with pytest.raises(UsageError) as caught:
        resolve(name)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_not_found_names_the_nearest_file_of_the_folder(tmp_path):
    (tmp_path / "ds_stage2.json").write_text("{}")
    with pytest.raises(UsageError, match=r"ds_stage2\.json"):
        resolve(str(tmp_path / "ds_stag2.json"))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\x7fELF\x00\x01\x02\xff", "binary"),
        (b"{}\x00", "binary"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16"),
        ('{"ä": 1}'.encode("latin-1"), "not UTF-8"),
        (b" " * ((1 << 20) + 1), "larger than"),
    ],
)
def test_files_that_are_no_text(tmp_path, data, expected):
    path = tmp_path / "ds.json"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=expected):
        resolve(str(path))


def test_a_folder_lists_its_configs(tmp_path):
    (tmp_path / "one.json").write_text("{}")
    with pytest.raises(UsageError, match=r"folder.*one\.json"):
        resolve(str(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        resolve(str(path))


def test_a_huge_file_is_not_read_whole(tmp_path):
    path = tmp_path / "ds.json"
    with path.open("wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(UsageError, match="larger than"):
        resolve(str(path))
