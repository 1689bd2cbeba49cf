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
