"""The shipped JSON Schema: every key of DeepSpeed's config, and where a name belongs."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .document import join
from .history import before, dated, nearest_listed, numbers, schema_at, table
from .schema_check import broken

SCHEMA_FILE = Path(__file__).with_name("deepspeed.schema.json")


def schema(version: str | None = None) -> dict:
    """The schema of a DeepSpeed version; by default of the newest, which also stands for those not known yet."""
    return _schema(listed(version))


@cache
def _schema(version: str) -> dict:
    newest = _newest()
    return newest if version == newest["x-deepspeed"] else schema_at(version, newest)


@cache
def _newest() -> dict:
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


@cache
def listed(version: str | None) -> str:
    """The version whose keys stand for this one. Needs the table of changes only below the newest."""
    newest = _newest()["x-deepspeed"]
    return newest if version is None or not before(version, newest) else nearest_listed(version)


def unlisted(version: str | None) -> bool:
    """Whether another version stands for this one."""
    return version is not None and numbers(listed(version)) != numbers(version)


def read_by(version: str | None, config: dict, path: str = "") -> dict:
    """The config without keys that only other DeepSpeed versions read. The newest one gets it as it is."""
    if listed(version) == schema()["x-deepspeed"]:
        return config
    kept = {}
    for name, value in config.items():
        here = f"{path}.{name}" if path else str(name)
        if not dated(here, listed(version)):
            kept[name] = read_by(version, value, here) if isinstance(value, dict) else value
    return kept


def published(version: str | None = None) -> dict:
    """The schema with x-since and x-default-by-version beside each key, for editors and other tools.

    Raises:
        jsonschema.SchemaError: what was put together is no JSON Schema; a mistake of ours.
    """
    from jsonschema.validators import Draft202012Validator

    made = copy.deepcopy(schema(version))
    found: dict[str, Field] = {}
    _collect(made, "", found)
    for path, field in found.items():
        entry = table().get(path, {})
        if "since" in entry:
            field.node["x-since"] = entry["since"]
        older = {change["below"]: change["default"] for change in entry.get("was", ()) if "default" in change}
        if older:
            field.node["x-default-by-version"] = {f"below {below}": default for below, default in older.items()}
    Draft202012Validator.check_schema(made)
    return made


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


def fields(version: str | None = None) -> dict[str, Field]:
    """Every key of every block by dotted path, in the schema's order."""
    return _fields(listed(version))


@cache
def _fields(version: str) -> dict[str, Field]:
    found: dict[str, Field] = {}
    _collect(_schema(version), "", found)
    return found


def _collect(block: dict, path: str, found: dict[str, Field]) -> None:
    for name, node in block.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        found[here] = Field(here, node, block)
        _collect(node, here, found)


def homes(version: str | None = None) -> dict[str, tuple[str, ...]]:
    """Key name -> the blocks that have it, for keys written in the wrong block."""
    return _homes(listed(version))


@cache
def _homes(version: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for field in _fields(version).values():
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


def violations(config: dict, version: str | None = None) -> list[Violation]:
    """All of them, in the keys of the given DeepSpeed version."""
    found, root = [], schema(version)
    for keyword, path, value, node in broken(config, root):
        pointer = ""
        for part in path:
            pointer = join(pointer, part)
        if keyword == "additionalProperties":
            names = [name for name in value if name not in node["properties"]]
            reader = _reader(root, path)
            found += [Violation("unknown", join(pointer, name), value[name], node, reader) for name in names]
        else:
            found.append(Violation(keyword, pointer, value, node, _reader(root, path[:-1])))
    return found


def _reader(root: dict, block_path: tuple) -> str:
    """Who reads the values of a block: the nearest block that says so."""
    node = root
    reader = node["x-reader"]
    for part in block_path:
        node = node.get("properties", {}).get(part, {}) if isinstance(part, str) else {}
        reader = node.get("x-reader", reader)
    return reader
