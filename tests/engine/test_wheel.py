"""An installed wheel holds the templates and the schema, and works far from any checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.jobs import REPO

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    out, source = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("source") / "zerotune"
    shutil.copytree(REPO, source, ignore=shutil.ignore_patterns(".*", "build", "runs", "*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(source)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    with zipfile.ZipFile(next(out.glob("zerotune-*.whl"))) as wheel:
        wheel.extractall(out / "site")
    return out / "site"


def run(installed, code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    ended = subprocess.run([sys.executable, "-c", code], cwd="/", env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_every_template_is_found_and_valid(installed):
    code = (
        "import zerotune; from zerotune.ds_config import check, resolve, template_names\n"
        "print(zerotune.__file__)\n"
        "for name in template_names(): print(name, check(resolve(name)))"
    )
    first, *lines = run(installed, code).splitlines()
    assert first.startswith(str(installed))
    names = sorted(path.stem for path in (REPO / "ds_configs").glob("*.json"))
    assert sorted(lines) == [f"{name} []" for name in names]


def test_the_schema_is_there(installed):
    assert '"zero_optimization"' in run(installed, "from zerotune.cli import main; main(['schema'])")


def test_train_answers_before_it_imports_torch(installed):
    code = "from zerotune import train; train.main(['--ds', 'stage9'])"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], cwd="/", env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "stage9" in ended.stderr
    assert " torch\n" not in ended.stderr
