"""From what the user typed after --ds to the text of one config."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from zerotune.errors import UsageError, nearest

# Keys that only accelerate's own file has, as YAML or as JSON.
_ACCELERATE = re.compile(r"^[ \t]*[{,]?[ \t]*[\"']?(?:deepspeed_config|distributed_type)[\"']?[ \t]*:", re.MULTILINE)
# Real configs have a few kilobytes; the largest found in public repositories has 20.
MAX_BYTES = 1 << 20
PIPE_WAIT_MS = 700


@dataclass(frozen=True)
class ResolvedConfig:
    """One config as it stands on disk.

    name: the template's name, or the path as the user wrote it.
    config: the parsed dict; empty when the text is no JSON object (check() says why).
    """

    name: str
    path: Path
    text: str
    config: dict = field(repr=False)


def is_yaml(name: str, text: str) -> bool:
    """By the file's suffix; accelerate's own file, which may be JSON too, by its keys."""
    return name.lower().endswith((".yaml", ".yml")) or bool(_ACCELERATE.search(text))


def resolve(name_or_file: str) -> ResolvedConfig:
    """Find a template by name, or read a file. Doesn't judge what is in it.

    Raises:
        UsageError: no such template or file (nearest ones named), a folder, unreadable, binary or too big.
    """
    name = str(name_or_file)
    path = template_path(name) or Path(name).expanduser()
    text = read_text(path, name)
    return ResolvedConfig(name, path, text, _parsed(text))


def template_names() -> list[str]:
    """Names of the shipped templates, in the order of growing savings and cost."""
    return sorted(path.stem for path in template_dir().glob("*.json"))


@cache
def template_dir() -> Path:
    """ds_configs/ of a checkout, else zerotune/templates/ of an installed wheel (setup.cfg maps one to the other)."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package.parent / "ds_configs", package / "templates"):
        if next(folder.glob("stage*.json"), None):
            return folder
    raise FileNotFoundError(f"neither {package.parent / 'ds_configs'} nor {package / 'templates'} holds templates")


def template_path(name: str) -> Path | None:
    """The file of a template; None when there is no template of this name. A file of the same name wins."""
    try:
        if Path(name).is_file():
            return None
    except (OSError, ValueError):  # too long a name, a zero byte: read_text says so
        return None
    stem = name.removesuffix(".json")
    return template_dir() / f"{stem}.json" if stem in template_names() else None


def read_text(path: Path, name: str) -> str:
    """The text of a config file, or a UsageError that says why there is none."""
    try:
        if path.is_dir():
            raise UsageError(f"{name} is a folder, not a config file{_inside(path)}")
        data = read_pipe(path, name) if path.is_fifo() else read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(not_found(name, path)) from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise UsageError(f"{name} can't be read: {reason}") from None
    return decode(data, name)


def read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def read_pipe(path: Path, name: str) -> bytes:
    """A named pipe, as a shell makes of <(command). One that nobody writes to would keep a plain read for ever."""
    import os
    import select

    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
        waiting = select.poll()
        waiting.register(pipe, select.POLLIN)
        if not waiting.poll(PIPE_WAIT_MS):
            raise UsageError(f"{name} is a pipe and nothing has written to it in {PIPE_WAIT_MS} ms; use - or a file")
        os.set_blocking(pipe.fileno(), True)
        return pipe.read(MAX_BYTES + 1)


def decode(data: bytes, name: str) -> str:
    """UTF-8 text of at most MAX_BYTES, or a UsageError."""
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES >> 20} MiB: that is no DeepSpeed config")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UsageError(f"{name} is UTF-16; save it as UTF-8")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as problem:
        kind = "is binary" if b"\x00" in data else f"is not UTF-8 (byte {problem.start})"
        raise UsageError(f"{name} {kind}: a DeepSpeed config is JSON text in UTF-8") from None
    if "\x00" in text:
        raise UsageError(f"{name} is binary: a DeepSpeed config is JSON text in UTF-8")
    return text


def not_found(name: str, path: Path) -> str:
    """The message for a name that is neither template nor file."""
    if path.is_symlink():
        return f"{name} is a link to {path.readlink()}, which doesn't exist"
    choices = template_names()
    looks_like_file = path.suffix in (".json", ".hjson") or len(path.parts) > 1
    if looks_like_file and path.parent.is_dir():
        close = nearest(path.name, sorted(entry.name for entry in path.parent.glob("*.json"))[:500])
        choices_text = f"in {path.parent}/: {', '.join(close)}" if close else ""
    elif looks_like_file:
        return f"{name} doesn't exist, nor does its folder {path.parent}"
    else:
        choices_text = f"nearest: {', '.join(nearest(name, choices))}" if nearest(name, choices) else ""
    hint = choices_text or f"templates: {', '.join(choices)}"
    kind = "is no file" if looks_like_file else "is neither a template nor a file"
    return f"{name} {kind} ({hint}). `zerotune-config list` shows the templates"


def _inside(folder: Path) -> str:
    names = sorted(path.name for path in folder.glob("*.json"))
    if not names:
        return ""
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return f"; it holds {', '.join(names[:8])}{more}"


def _parsed(text: str) -> dict:
    import json

    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        from .parser import parse

        config = parse(text).value
    return config if isinstance(config, dict) else {}
