"""The Python source of one DeepSpeed, from a released tar.gz or an installed folder. Nothing is imported or run."""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = "deepspeed"


@dataclass(frozen=True)
class Definition:
    """A function, class or assignment, with the module that it stands in."""

    module: str
    node: ast.AST


class Sources:
    """Modules by dotted name.

    files: path inside the package, "runtime/config.py", to text.
    """

    def __init__(self, files: dict[str, str]):
        self.files = files
        self._modules: dict[str, ast.Module | None] = {}
        self._found: dict[tuple[str, str], Definition | str | None] = {}

    @classmethod
    def of_folder(cls, folder: Path) -> Sources:
        """An installed package: site-packages/deepspeed."""
        return cls({str(path.relative_to(folder)): path.read_text("utf-8") for path in folder.rglob("*.py")})

    @classmethod
    def of_archive(cls, archive: Path) -> Sources:
        """deepspeed-X.tar.gz as released."""
        files = {}
        with tarfile.open(archive) as opened:
            for member in opened:
                inside = member.name.partition(f"/{ROOT}/")[2]
                if inside.endswith(".py") and member.name.count("/") > 1:
                    files[inside] = opened.extractfile(member).read().decode("utf-8")
        return cls(files)

    def module(self, name: str) -> ast.Module | None:
        """The parsed module; None when it is not of this package."""
        if name not in self._modules:
            inside = name.removeprefix(ROOT).lstrip(".").replace(".", "/")
            text = self.files.get(f"{inside}.py") or self.files.get(f"{inside}/__init__.py".lstrip("/"))
            self._modules[name] = ast.parse(text) if text is not None and name.startswith(ROOT) else None
        return self._modules[name]

    def is_folder(self, module: str) -> bool:
        return f"{module.removeprefix(ROOT).lstrip('.').replace('.', '/')}/__init__.py".lstrip("/") in self.files

    def find(self, module: str, name: str) -> Definition | str | None:
        """What a name means in a module: its definition, followed through imports, or the name of a module."""
        key = (module, name)
        if key not in self._found:
            self._found[key] = None  # imports in a circle
            self._found[key] = self._find(module, name)
        return self._found[key]

    def _find(self, module: str, name: str) -> Definition | str | None:
        tree = self.module(module)
        found = None
        for node in statements(tree.body) if tree else ():
            if defines(node, name):
                found = Definition(module, node)
            elif isinstance(node, ast.ImportFrom):
                found = self._imported(module, node, name) or found
        return found

    def _imported(self, module: str, node: ast.ImportFrom, name: str) -> Definition | str | None:
        base = self.absolute(module, node)
        for alias in node.names:
            if alias.name == "*" and not name.startswith("_"):
                return self.find(base, name)
            if (alias.asname or alias.name) == name:
                inner = f"{base}.{alias.name}"
                return self.find(base, alias.name) or (inner if self.module(inner) else None)
        return None

    def absolute(self, module: str, node: ast.ImportFrom) -> str:
        """`from ..x import y` in deepspeed.runtime.config -> deepspeed.x."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        parts = parts[: len(parts) - node.level + (1 if self.is_folder(module) else 0)]
        return ".".join([*parts, *([node.module] if node.module else [])])


def defines(node: ast.stmt, name: str) -> bool:
    """Whether a statement gives a name its meaning."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name == name
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign) and node.value:
        targets = [node.target]
    return any(isinstance(target, ast.Name) and target.id == name for target in targets)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Top-level statements, those inside `if` and `try` too."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, part, []))


def download(version: str, folder: Path) -> Path:
    """The released source package, kept in `folder`. pip builds its metadata, which needs torch installed."""
    archive = folder / f"deepspeed-{version}.tar.gz"
    if not archive.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation"]
        command += ["--no-binary", ":all:", "--dest", str(folder), f"deepspeed=={version}"]
        subprocess.run(command, check=True)
    return archive
