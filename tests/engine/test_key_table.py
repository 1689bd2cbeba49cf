"""The shipped table of keys against the installed DeepSpeed, read by the same reader; it fails when either changes."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from zerotune.ds_config.history import before, facts_at, reads, table, versions

READER = Path(__file__).resolve().parents[2] / "docs" / "deepspeed_keys"


@pytest.fixture(scope="module")
def reader():
    sys.path.insert(0, str(READER))
    try:
        from sources import Sources
        from table import read_release

        yield Sources, read_release
    finally:
        sys.path.remove(str(READER))
        for name in ("constants", "elsewhere", "follow", "models", "running", "sources", "table"):
            sys.modules.pop(name, None)


def shipped(version: str) -> dict[str, dict]:
    """The table's keys and facts for one version, in the form that the reader gives."""
    found = {}
    for path, entry in table().items():
        if "refused" in entry and not before(version, entry["refused"]):
            found[path] = {"refused": True}
        elif reads(entry, version):
            found[path] = {name: value for name, value in facts_at(entry, version).items() if value is not None}
    return found


def test_the_installed_version(reader):
    pytest.importorskip("deepspeed")
    from importlib.metadata import version

    sources, read_release = reader
    installed = version("deepspeed").split("+")[0]
    assert installed in versions(), "add it to docs/deepspeed_keys/__main__.py and run that"
    folder = Path(importlib.util.find_spec("deepspeed").origin).parent
    theirs, ours = read_release(sources.of_folder(folder)), shipped(installed)
    assert set(ours) == set(theirs)
    compare(ours, theirs)


@pytest.mark.skipif(
    "DEEPSPEED_SDISTS" not in os.environ, reason="DEEPSPEED_SDISTS names no folder of deepspeed-X.tar.gz"
)
@pytest.mark.parametrize(
    "version", ["0.16.0", "0.16.5", "0.17.1", "0.18.0", "0.18.9", "0.19.3", "0.19.6", "0.19.7", "0.19.8"]
)
def test_released_versions(reader, version):
    sources, read_release = reader
    theirs = read_release(sources.of_archive(Path(os.environ["DEEPSPEED_SDISTS"]) / f"deepspeed-{version}.tar.gz"))
    ours = shipped(version)
    assert set(ours) == set(theirs)
    compare(ours, theirs)


def compare(ours: dict, theirs: dict) -> None:
    """A default that the reader couldn't tell in an old version is taken to be that of the next."""
    for path, facts in theirs.items():
        for name in ("default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "alias-of", "model"):
            if name == "default" and name not in facts:
                continue
            assert ours[path].get(name) == facts.get(name), (path, name)


SOURCE = {
    "runtime/config.py": """
from pydantic import Field
from .constants import *
from .models import Base
_REMOVED_TOP_LEVEL_CONFIG_KEYS = {"gone": "It went."}
class Inner(Base):
    size: int = Field(LIMIT * 2, ge=1, alias="length")
    old: bool = Field(False, json_schema_extra={"deprecated": True, "new_param": "size"})
def get_scalar_param(d, k, default): return d.get(k, default)
def _reject_removed_config_keys(config):
    for key in _REMOVED_TOP_LEVEL_CONFIG_KEYS:
        if key in config: raise ValueError
class DeepSpeedConfig:
    def __init__(self, config):
        self._param_dict = config
        _reject_removed_config_keys(self._param_dict)
        self.start(self._param_dict)
    def start(self, param_dict):
        self.rate = get_scalar_param(param_dict, RATE, RATE_DEFAULT)
        inner = param_dict.get("inner", {})
        self.inner = Inner(**inner)
        block = param_dict[BLOCK] if BLOCK in param_dict else {}
        for name, value in block["groups"].items():
            self.bits = value.get("bits", 8)
""",
    "runtime/constants.py": "RATE = 'rate'\nRATE_DEFAULT = 1e-3\nBLOCK = 'block'\nLIMIT = 4\n",
    "runtime/models.py": "from pydantic import BaseModel\nclass Base(BaseModel):\n    enabled: bool = False\n",
}


def test_the_reader_on_a_small_package(reader):
    sources, read_release = reader
    keys = read_release(sources({"__init__.py": "", "runtime/__init__.py": "", **SOURCE}))
    assert keys["rate"] == {"default": 1e-3}
    assert keys["gone"] == {"refused": True}
    assert keys["inner"] == {"model": True}
    assert keys["inner.size"] == {"default": 8, "minimum": 1, "types": ["integer"]}
    assert keys["inner.length"]["alias-of"] == "size"
    assert keys["inner.old"]["deprecated-for"] == "size"
    assert keys["inner.enabled"] == {"default": False, "types": ["boolean"]}
    assert keys["block.groups.*.bits"] == {"default": 8}
