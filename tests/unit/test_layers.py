"""The house's rules: who may import whom, and what the light layers must never load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "zerotune"
# Lower number: nearer the ground. A layer imports only lower ones and itself (DESIGN: ds_config <- planner <-
# launching, preflight <- training, loading, checkpointing, reporting <- train.py; nothing imports commands).
LAYERS = {
    "__init__": 0,
    "errors": 0,
    "ds_config": 1,
    "planner": 2,
    "launching": 3,
    "preflight": 3,
    "training": 4,
    "loading": 4,
    "checkpointing": 4,
    "reporting": 4,
    "train": 5,
    "commands": 6,
    "cli": 7,
}
# Peers that may not import each other would be on one number; these four share one by the design.
SAME_LEVEL_ALLOWED = {"training", "loading", "checkpointing", "reporting"}
HEAVY = ("torch", "deepspeed", "transformers", "pydantic", "accelerate", "datasets", "numpy")
LIGHT = ("zerotune.ds_config", "zerotune.cli", "zerotune.planner")


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Names of the zerotune layers that a file imports, wherever in the file."""
    inside = ("zerotune", *path.relative_to(PACKAGE).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = list(inside[: len(inside) - node.level + 1]) if node.level else []
            base = ".".join(start + ([node.module] if node.module else []))
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("zerotune.")}
    return {name for name in found if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()}


def files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "templates" not in path.parts)


def test_every_file_is_in_a_known_layer():
    assert {layer_of(path) for path in files()} <= set(LAYERS)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_down(path):
    own = layer_of(path)
    for other in imports_of(path) - {own}:
        same = own in SAME_LEVEL_ALLOWED and other in SAME_LEVEL_ALLOWED
        assert LAYERS[other] < LAYERS[own] or same, f"{own} may not import {other}"
        assert own == "cli" or other != "commands"


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_nothing_heavy(module):
    if not any((PACKAGE.parent / module.replace(".", "/")).with_suffix(suffix).exists() for suffix in ("", ".py")):
        pytest.skip(f"{module} is not there yet")
    program = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent, timeout=60
    )
    assert done.returncode == 0, done.stderr
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded.isdisjoint(HEAVY)


def test_a_whole_check_loads_nothing_heavy():
    program = (
        "import sys; from zerotune.cli import run; code = run(['validate', 'stage3', '--entry', 'trainer']);"
        "print(code, *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=PACKAGE.parent, timeout=60
    )
    last = done.stdout.splitlines()[-1].split()
    assert last[0] == "0"
    assert {name.split(".")[0] for name in last[1:]}.isdisjoint(HEAVY)
