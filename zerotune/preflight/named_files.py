"""Do the files and folders that the flags name exist? Asked before anything heavy is imported."""

from __future__ import annotations

import argparse
from pathlib import Path

from zerotune.errors import UsageError, nearest

DATA_ENDINGS = (".json", ".jsonl", ".csv", ".parquet", ".txt")


def check(argv: list[str]) -> None:
    """Look for every data file and model folder that the command line names.

    Raises:
        UsageError: one of them is not there.
    """
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in CHECKS:
        flags.add_argument(flag, dest=flag, nargs="?")
    for flag, name in vars(flags.parse_known_args(argv)[0]).items():
        if name:
            CHECKS[flag](flag, name)


def require_data(flag: str, name: str) -> None:
    """Refuse a data file or folder that is not there; a name that may be the hub's passes.

    Raises:
        UsageError: `name` looks like a path and nothing is there; its neighbours are named.
    """
    path = Path(name).expanduser()
    if (path.suffix.lower() in DATA_ENDINGS or _looks_local(name)) and not path.exists():
        raise UsageError(f"{flag} {name}: no such file or folder.{near(path)}")


def require_model(flag: str, name: str) -> None:
    """Refuse a model or tokenizer folder that is not there; a name that may be the hub's passes.

    Raises:
        UsageError: `name` looks like a path and no folder is there; its neighbours are named.
    """
    path = Path(name).expanduser()
    if _looks_local(name) and not path.is_dir():
        raise UsageError(f"{flag} {name}: no such folder.{near(path, folders_only=True)}")


def _looks_local(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def near(path: Path, folders_only: bool = False) -> str:
    """A sentence that names what stands beside a missing path under a similar name; empty when nothing does."""
    folder = path.parent
    there = [one.name for one in folder.iterdir() if one.is_dir() or not folders_only] if folder.is_dir() else []
    close = nearest(path.name, there)
    return f" Near it: {', '.join(str(folder / one) for one in close)}." if close else ""


CHECKS = {
    "--dataset_name": require_data,
    "--validation_name": require_data,
    "--model_name_or_path": require_model,
    "--tokenizer_name": require_model,
}
