"""The launch files: clean for shellcheck, and with the flags that train.py knows."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.jobs import REPO

FILES = sorted([*(REPO / "launch").glob("*.sh"), *(REPO / "launch").glob("*.sbatch")])


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path):
    ended = subprocess.run(["shellcheck", path], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_user_arguments_and_names_are_handed_on_quoted(path):
    text = path.read_text()
    assert '"$@"' in text
    assert '--ds "$template"' in text


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_default_template_exists(path):
    name = re.search(r"TEMPLATE:-(\w+)", path.read_text())[1]
    assert (REPO / "ds_configs" / f"{name}.json").is_file()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_everything_to_edit_stands_at_the_top(path):
    top, marker, rest = path.read_text().partition("# ---- nothing to edit below ----")
    assert marker
    for flag in ("--max_steps", "--per_device_train_batch_size", "--max_seq_length", "--bf16"):
        assert flag not in rest
    if "70b" in top:  # a model of this size fits with these only
        assert "--bf16 --activation_checkpointing" in top
        assert '"${training[@]}" "$@"' in rest
