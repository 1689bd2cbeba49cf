"""What a launch line, a script or an arguments file says about the run, from the disk to plain values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from zerotune.ds_config.document import Document
from zerotune.ds_config.flags import read_flags, read_mapping
from zerotune.ds_config.launch_line import read_launch
from zerotune.ds_config.parser import parse
from zerotune.ds_config.resolve import read_text
from zerotune.errors import UsageError

MAPPINGS = (".json", ".yaml", ".yml")


@dataclass(frozen=True)
class RunFacts:
    """training_args: by name; unknown: names with a value that nobody can tell; ranks, nodes: of the launcher."""

    training_args: dict[str, object]
    unknown: frozenset = frozenset()
    ranks: int | None = None
    nodes: int | None = None


def run_facts(text: str) -> RunFacts:
    """Of flags, a launch line, or @FILE: a script, or a JSON or YAML file of TrainingArguments.

    Raises:
        UsageError: no such file, no text, words that can't be split, values of the wrong kind.
    """
    if not text.startswith("@"):
        return launched(text, Path())
    path = Path(text[1:]).expanduser()
    if path.suffix.lower() in MAPPINGS:
        return RunFacts(mapping(path))
    return launched(read_text(path, text[1:]), path.parent)


def launched(text: str, folder: Path) -> RunFacts:
    """Of a launch line; files that it names are looked for from here, else beside the script."""
    launch = read_launch(text)
    ranks, nodes = launch.ranks, launch.nodes
    if launch.accelerate_file is not None and (path := found(launch.accelerate_file, folder)):
        facts = accelerate_facts(path)
        nodes = nodes or facts.get("nodes")
        ranks = ranks or facts.get("world_size")
    if launch.arguments_file is not None:
        path = found(launch.arguments_file, folder)
        if path is None:
            raise UsageError(f"--training-args: the line reads {launch.arguments_file}, which isn't there")
        return RunFacts(mapping(path), ranks=ranks, nodes=nodes)
    flags = read_flags(launch)
    for name, variable in flags.unknown.items():
        click.echo(f"zerotune-config: --{name} is taken as unknown: nothing here sets ${variable}", err=True)
    return RunFacts(flags.values, frozenset(flags.unknown), ranks, nodes)


def found(name: str, folder: Path) -> Path | None:
    return next((path for path in (Path(name), folder / name) if path.is_file()), None)


def accelerate_facts(path: Path) -> dict:
    """World size and nodes of accelerate's file."""
    from zerotune.ds_config.yaml_reading import read_yaml

    return read_yaml(read_text(path, str(path))).launch or {}


def mapping(path: Path) -> dict[str, object]:
    """TrainingArguments of a JSON or YAML file, as HfArgumentParser reads them."""
    document = parsed(path, read_text(path, str(path)))
    value = document.value
    problems = [problem for problem in document.problems if problem.code != "duplicate-key"]
    if problems:
        line, column = document.line_column(problems[0].start)
        raise UsageError(f"{path}:{line}:{column}: {problems[0].message}; {problems[0].help}")
    if not isinstance(value, dict):
        raise UsageError(f"{path} holds no names and values of TrainingArguments")
    return read_mapping(value, f"{path}: ")


def parsed(path: Path, text: str) -> Document:
    if path.suffix.lower() == ".json":
        return parse(text)
    from zerotune.ds_config.yaml_reading import parse_yaml

    return parse_yaml(text)
