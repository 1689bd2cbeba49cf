"""From the names on the command line to configs, each in the context that it is checked in."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from zerotune.ds_config import Context, ResolvedConfig, resolve
from zerotune.ds_config.checking import around
from zerotune.ds_config.context import ACCELERATE
from zerotune.ds_config.resolve import MAX_BYTES, decode, is_yaml
from zerotune.errors import UsageError

Pair = tuple[ResolvedConfig, Context]


def sources(name: str, context: Context, entry: str | None) -> Iterator[Pair]:
    """The config of that name; behind accelerate's file also the JSON file that it names.

    Args:
        entry: the entry point that the user typed; None: the file's kind decides.

    Raises:
        UsageError: no such file or template; the JSON file is not there (after the first pair).
    """
    source = read(name)
    launch = launch_of(source, context)
    if launch is None:
        yield source, context
        return
    context = replace(context, entry=entry or ACCELERATE)
    yield source, context
    if launch["config_file"] is not None:
        yield beside(source, launch["config_file"]), around(context, launch)


def last(name: str, context: Context, entry: str | None) -> Pair:
    """The config that the engine gets."""
    return list(sources(name, context, entry))[-1]


def read(name: str) -> ResolvedConfig:
    """A template, a file, or standard input as one config."""
    if not name:
        raise UsageError("the name of a file is empty")
    if name != "-":
        return resolve(name)
    if sys.stdin is None:
        raise UsageError("- reads standard input, and that is closed")
    text = decode(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
    return ResolvedConfig("<stdin>", Path("-"), text, {})


def launch_of(source: ResolvedConfig, context: Context) -> dict | None:
    """What accelerate's file says about the run; None when the source is none."""
    if not is_yaml(source.name, source.text):
        return None
    from zerotune.ds_config.checking import read as parse

    return parse(source, context).launch


def beside(source: ResolvedConfig, name: str) -> ResolvedConfig:
    """The JSON file that accelerate's file names: from the working directory, as accelerate looks, else beside it."""
    here = Path(name)
    path = here if here.is_absolute() or here.exists() else source.path.parent / here
    if not path.exists():
        where = f"{Path.cwd()}" + (f" or {source.path.parent}" if source.name != "<stdin>" else "")
        where = "" if here.is_absolute() else f" in {where}"
        raise UsageError(f"{source.name} names deepspeed_config_file {name}, which isn't there{where}: it is unchecked")
    return resolve(str(path))
