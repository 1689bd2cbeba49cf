"""Files are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from zerotune.errors import UsageError


def write(path: Path, text: str, force: bool) -> None:
    """A new file beside it, then renamed into place. A file that is there keeps its mode.

    Raises:
        UsageError: it is named -, it exists and `force` is off, it is a folder, or it can't be written.
    """
    if str(path) == "-":
        raise UsageError("- is no file's name; leave -o out to print")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file")
    if path.exists() and not path.is_file():  # a device or a pipe: it must not be replaced by a file
        raise UsageError(f"{path} is no file but a device, a pipe or a socket; name a file, or leave -o out to print")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; --force overwrites it")
    path = path.resolve()  # through a link, to the file that it means
    name = None
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except OSError as problem:
        if name:
            Path(name).unlink(missing_ok=True)
        raise UsageError(f"{path} can't be written: {problem.strerror}") from None


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
