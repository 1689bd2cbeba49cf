"""Which line of a JSON or JSON Lines file is broken: the reader counts rows, from 0 and anew in every block it reads."""

from __future__ import annotations

import json
from pathlib import Path


def first_of(paths: list[Path]) -> str | None:
    """The first broken line of the files, in words; None when every line is JSON."""
    return next((fault for path in paths if (fault := _fault(path))), None)


def _fault(path: Path) -> str | None:
    with path.open(encoding="utf-8", errors="replace") as file:
        if path.suffix.lower() == ".json" and file.read(1) == "[":
            return _parsed(path, path.read_text(encoding="utf-8", errors="replace"), 1)
        file.seek(0)
        lines = (_parsed(path, line.rstrip(), number) for number, line in enumerate(file, 1) if line.strip())
        return next((fault for fault in lines if fault), None)


def _parsed(path: Path, text: str, first_line: int) -> str | None:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        return f"{path}, line {line}, column {error.colno}: cannot be read as json: {error.msg}"
    return None
