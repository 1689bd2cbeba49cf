"""Which DeepSpeed a config is meant for: the one place that decides, for every command."""

from __future__ import annotations

import os
import sys

import click

from zerotune.ds_config.schema import listed, unlisted
from zerotune.errors import UsageError

OPTION = click.option(
    "--deepspeed-version",
    metavar="X",
    help="Keys of this DeepSpeed, as 0.18.9; by default the one installed here, else the newest known.",
)


def chosen(version: str | None, note: bool = True) -> str | None:
    """The version given, else the one installed; None means the newest known. A note on standard error when another
    version's keys stand for it."""
    if version is None:
        version = installed(("deepspeed",)).get("deepspeed")
    elif not well_formed(version):
        raise UsageError(f"--deepspeed-version: {version!r} is no version; write one as 0.18.9")
    if note and unlisted(version):
        click.echo(f"note: DeepSpeed {version} is not in the table of keys; those of {listed(version)} count", err=True)
    return version


def well_formed(version: str) -> bool:
    parts = version.strip().split("+")[0].split(".")
    return len(parts) > 1 and all(part[:1].isdigit() for part in parts[:2])


def installed(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions of packages, from the names of their dist-info folders: importlib.metadata takes 40 ms to load."""
    found: dict[str, str] = {}
    for folder in filter(os.path.isdir, sys.path):
        for entry in (found_in.name for found_in in os.scandir(folder)):
            if entry.endswith(".dist-info"):
                name, _, version = entry.removesuffix(".dist-info").rpartition("-")
                if name.lower() in packages:
                    found.setdefault(name.lower(), version)
    return found
