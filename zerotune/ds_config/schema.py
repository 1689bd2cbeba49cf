"""The shipped JSON Schema: every key of DeepSpeed's config, and where a name belongs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .document import join

SCHEMA_FILE = Path(__file__).with_name("deepspeed.schema.json")


@cache
def schema() -> dict:
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Field:
    """One key of the schema: dotted path, its node, the node of its block."""

    path: str
    node: dict
    block: dict

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def where(self) -> str:
        """The block it belongs to; empty for the top level."""
        return self.path.rpartition(".")[0]


@cache
def fields() -> dict[str, Field]:
    """Every key of every block by dotted path, in the schema's order."""
    found: dict[str, Field] = {}
    _collect(schema(), "", found)
    return found


def _collect(block: dict, path: str, found: dict[str, Field]) -> None:
    for name, node in block.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        found[here] = Field(here, node, block)
        _collect(node, here, found)


@cache
def homes() -> dict[str, tuple[str, ...]]:
    """Key name -> the blocks that have it, for keys written in the wrong block."""
    found: dict[str, list[str]] = {}
    for field in fields().values():
        if "x-alias-of" not in field.block and not field.path.startswith("bfloat16."):
            found.setdefault(field.name, []).append(field.where)
    return {name: tuple(blocks) for name, blocks in found.items()}


def is_filled(path: str, entry: str) -> bool:
    """Whether `entry` (trainer, accelerate) replaces "auto" at this path. Plain DeepSpeed replaces none."""
    if path == "steps_per_print" and entry in ("trainer", "accelerate"):
        return True  # overwritten, whatever it is
    field = fields().get(path)
    return field is not None and entry in field.node.get("x-auto", ())


@dataclass(frozen=True)
class Violation:
    """Where a config breaks the schema.

    kind: the schema's keyword: additionalProperties, type, enum, minimum, exclusiveMinimum ... , pattern, not.
    node: the schema node that was broken; reader: "pydantic" or "plain", who reads the value.
    """

    kind: str
    pointer: str
    value: object
    node: dict
    reader: str


def violations(config: dict) -> list[Violation]:
    """All of them. jsonschema is loaded here, since it takes as long as everything else together."""
    from jsonschema.validators import Draft202012Validator

    found = []
    for error in Draft202012Validator(schema()).iter_errors(config):
        path = [*error.absolute_path]
        pointer = ""
        for part in path:
            pointer = join(pointer, part)
        if error.validator == "additionalProperties":
            known = error.schema["properties"]
            for name in error.instance:
                if name not in known:
                    found.append(
                        Violation("unknown", join(pointer, name), error.instance[name], error.schema, _reader(path))
                    )
        else:
            found.append(Violation(error.validator, pointer, error.instance, error.schema, _reader(path[:-1])))
    return found


def _reader(block_path: list) -> str:
    """Who reads the values of a block: the nearest block that says so."""
    node = schema()
    reader = node["x-reader"]
    for part in block_path:
        node = node.get("properties", {}).get(part, {}) if isinstance(part, str) else {}
        reader = node.get("x-reader", reader)
    return reader
