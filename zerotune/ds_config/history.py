"""Which keys a DeepSpeed version has: the newest schema taken back to it by the table of changes.

deepspeed.history.json is written by docs/deepspeed_keys from the released packages. It is loaded only for a version
that isn't the newest, or when a key is unknown.
"""

from __future__ import annotations

import copy
import json
import re
from functools import cache
from pathlib import Path

HISTORY_FILE = Path(__file__).with_name("deepspeed.history.json")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


@cache
def numbers(version: str) -> tuple[int, ...]:
    """0.19.8+cu12 -> (0, 19, 8); 0.19.1rc1 -> (0, 19, 1)."""
    parts = version.split("+")[0].split(".")[:3]
    found = [re.match(r"\d+", part) for part in parts]
    return tuple(int(part.group()) for part in found if part)


@cache
def table() -> dict[str, dict]:
    """Dotted path -> facts of the last version that reads the key, with since, removed, refused, renamed-to, was."""
    return _file()["keys"]


@cache
def versions() -> list[str]:
    """Those that the table knows, oldest first."""
    return _file()["versions"]


@cache
def _file() -> dict:
    return json.loads(HISTORY_FILE.read_text(encoding="utf-8"))


def nearest_listed(version: str) -> str:
    """The version itself, else the last one before it, else the oldest."""
    earlier = [listed for listed in versions() if numbers(listed) <= numbers(version)]
    return earlier[-1] if earlier else versions()[0]


def before(version: str, other: str) -> bool:
    return numbers(version) < numbers(other)


def reads(entry: dict, version: str) -> bool:
    """Whether a version reads the key as a key."""
    never = "refused" in entry and "removed" not in entry
    late = "since" in entry and before(version, entry["since"])
    gone = "removed" in entry and not before(version, entry["removed"])
    return not (never or late or gone)


def dated(path: str, version: str) -> dict | None:
    """The entry of a key that this version doesn't read, though another one does."""
    entry = table().get(path)
    return entry if entry and not reads(entry, version) and ("since" in entry or "removed" in entry) else None


def facts_at(entry: dict, version: str) -> dict:
    """The facts as they were; a fact that wasn't there is None."""
    facts = {name: value for name, value in entry.items() if name != "was"}
    for change in entry.get("was", ()):  # newest first
        if before(version, change["below"]):
            facts |= {name: value for name, value in change.items() if name != "below"}
    return facts


def schema_at(version: str, newest: dict) -> dict:
    """The schema of a listed version: `newest` with every change after it undone."""
    made = copy.deepcopy(newest)
    made["x-deepspeed"] = version
    made["$id"] = f"urn:zerotune:deepspeed-config:{version}"
    made["description"] = made["description"].replace(newest["x-deepspeed"], version)
    for path, entry in table().items():
        _take_back(made, path, entry, version)
    return made


def _take_back(made: dict, path: str, entry: dict, version: str) -> None:
    where, _, name = path.rpartition(".")
    block = _node(made, where)
    if block is None or ("refused" in entry and not before(version, entry["refused"])):
        return
    keys = block.setdefault("properties", {})
    if not reads(entry, version):
        keys.pop(name, None)
        return
    if "removed" in entry:
        keys[name] = _old_node(entry)
    if name in keys and "was" in entry:
        _overlay(keys[name], facts_at(entry, version))


def _node(schema: dict, path: str) -> dict | None:
    for part in path.split(".") if path else ():
        schema = schema.get("properties", {}).get(part)
        if schema is None:
            return None
    return schema


def _old_node(entry: dict) -> dict:
    """A key that the newest version no longer has."""
    node = {name: entry[name] for name in ("default", *BOUNDS) if name in entry}
    types = entry.get("types", [])
    if types:
        node["type"] = types[0] if len(types) == 1 else types
    node |= {"description": entry["description"], "deprecated": True, "x-until": entry["removed"]}
    if entry.get("block"):
        node["type"] = "object"
        node |= {"x-unknown": "ignored", "x-reader": "plain"}
        if not entry.get("open"):
            node["additionalProperties"] = False
    return node


def _overlay(node: dict, facts: dict) -> None:
    """Older default, bounds and types; a block that no pydantic class read ignored what it didn't know."""
    if "default" in facts:
        node["default"] = facts["default"]
    for name in BOUNDS:
        if facts.get(name) is not None:
            node[name] = facts[name]
        elif name in facts:
            node.pop(name, None)
    if "model" in facts and not facts["model"]:
        node |= {"x-unknown": "ignored", "x-reader": "plain"}
        node.pop("x-class", None)
