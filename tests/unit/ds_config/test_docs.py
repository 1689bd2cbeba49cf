"""The generated pages are fresh, and ds_configs/README.md explains every number."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from zerotune.ds_config import resolve, template_names
from zerotune.ds_config.checking import check
from zerotune.ds_config.schema import fields

ROOT = Path(__file__).resolve().parents[3]


def load_generator():
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_fresh():
    assert load_generator().stale() == [], "run: python docs/generate.py"


def test_check_shows_a_stale_page(tmp_path):
    generator = load_generator()
    (tmp_path / "rules.md").write_text(generator.rules_page() + "an edit by hand\n")
    lines = generator.stale(tmp_path)
    assert "-an edit by hand" in lines
    assert "+++ docs/keys.md (fresh)" in lines


def numbers(node, path=""):
    for key, value in node.items():
        here = f"{path}.{key}".lstrip(".")
        if isinstance(value, dict):
            yield from numbers(value, here)
        elif isinstance(value, (int, float)) and key not in ("stage", "enabled"):
            yield key, value


def test_readme_explains_every_template_and_every_number():
    readme = (ROOT / "ds_configs" / "README.md").read_text(encoding="utf-8")
    for name in template_names():
        assert f"| `{name}` |" in readme
        assert name == "stage3_nvme" or f"--ds {name}\n" in readme
        for key, value in numbers(resolve(name).config):
            row = next((line for line in readme.splitlines() if line.startswith("| `") and key in line), None)
            assert row, f"{name}: {key} is not explained"
            text = str(value).lower() if isinstance(value, bool) else f"{value:,}"
            assert text in row, f"{name}: {key} {value} is not in {row}"


def test_templates_hold_known_keys_only():
    for name in template_names():
        for path in paths(resolve(name).config):
            assert path in fields(), f"{name}: {path}"
        assert check(resolve(name)) == []


def paths(node, path=""):
    for key, value in node.items():
        here = f"{path}.{key}".lstrip(".")
        yield here
        if isinstance(value, dict):
            yield from paths(value, here)
