"""From the keys of each release to one table: what a key is, and in which version it changed."""

from __future__ import annotations

import json
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

from constants import UNKNOWN
from elsewhere import read_elsewhere
from follow import Key, read_keys, refused_keys
from sources import Sources

# Blocks that went and whose other keys were handed on to whoever used them, so none is unknown.
OPEN = ("amp", "curriculum_learning", "progressive_layer_drop", "*.layer_reduction", "*.different_groups", "*.params")
# Successors whose names are not alike.
RENAMED = {"aio.thread_count": "aio.intra_op_parallelism"}
WORDS = Path(__file__).with_name("words.json")
TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}


def read_release(sources: Sources) -> dict[str, dict]:
    """Every key of one DeepSpeed: path -> facts, as in the table. {"refused": true} for one it raises on."""
    keys = {path: facts_of(key) for path, key in read_keys(sources).items()}
    for path, default in read_elsewhere(sources).items():
        keys.setdefault(path, facts_of(Key(default)))
    for path in refused_keys(sources):
        keys[path] = {"refused": True}
    return dict(sorted(keys.items()))


def facts_of(key: Key) -> dict:
    """default, types, bounds; model: a pydantic class reads it, so unknown neighbours are refused."""
    facts = {name: value for name, value in key.facts.items() if name != "class"}
    if "class" in key.facts:
        facts["model"] = True
    elif key.default is not UNKNOWN and UNKNOWN not in _parts(key.default):
        facts["default"] = key.default
    return dict(sorted(facts.items()))


def _parts(value: object) -> list:
    return [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []


def merge(releases: dict[str, dict[str, dict]], described: set[str]) -> dict:
    """The table.

    Args:
        releases: version -> its keys, oldest first.
        described: keys that the schema has a sentence for; the others get theirs from words.json.

    Raises:
        ValueError: a key that went and came back, or one that nobody has described.
    """
    versions, words = list(releases), json.loads(WORDS.read_text(encoding="utf-8"))
    paths = sorted({path for keys in releases.values() for path in keys})
    table = {path: history(path, releases) for path in paths}
    for path, entry in table.items():
        if path not in described:
            entry["description"] = sentence(path, words)
            kind = TYPES.get(type(entry.get("default")))
            if kind:
                entry.setdefault("types", [kind])
            if any(fnmatchcase(path, pattern) for pattern in OPEN):
                entry["open"] = True
    for path in paths:
        block = path.rpartition(".")[0]
        if "description" in table.get(block, {}):
            table[block]["block"] = True
    renamed(table)
    return {"versions": versions, "keys": table}


def history(path: str, releases: dict[str, dict[str, dict]]) -> dict:
    """One key: the facts of the last version that read it; since, removed, refused; `was` for older facts."""
    versions = list(releases)
    read = [version for version in versions if path in releases[version] and not refuses(releases[version], path)]
    refused = [version for version in versions if refuses(releases[version], path)]
    entry: dict = {}
    if read:
        first, last = versions.index(read[0]), versions.index(read[-1])
        if read != versions[first : last + 1]:
            raise ValueError(f"{path} went and came back: {', '.join(read)}")
        entry = dict(releases[read[-1]][path])
        if first:
            entry["since"] = read[0]
        if last + 1 < len(versions):
            entry["removed"] = versions[last + 1]
        changes = changed(path, read, releases)
        if changes:
            entry["was"] = changes
    if refused:
        entry["refused"] = refused[0]
    return entry


def refuses(keys: dict[str, dict], path: str) -> bool:
    return keys.get(path, {}).get("refused") is True


def changed(path: str, read: list[str], releases: dict[str, dict[str, dict]]) -> list[dict]:
    """Older facts, newest first: {"below": version, fact: old value}; null where there was none.

    A default or type on one side only says that the reader saw less there, not that it changed.
    """
    found = []
    for old, new in pairwise(read):
        before, after = releases[old][path], releases[new][path]
        facts = {name: before.get(name) for name in sorted({*before, *after}) if before.get(name) != after.get(name)}
        for name in ("default", "types"):
            if name in facts and not (name in before and name in after):
                del facts[name]
        if facts:
            found.insert(0, {"below": new, **facts})
    return found


def sentence(path: str, words: dict[str, str]) -> str:
    """The hand-written meaning, by path or by pattern."""
    found = words.get(path) or next((text for pattern, text in words.items() if fnmatchcase(path, pattern)), None)
    if not found:
        raise ValueError(f"{path} has no sentence in {WORDS.name}")
    return found


def renamed(table: dict[str, dict]) -> None:
    """A key that went in the version that brought its successor, which stands beside it with the same default."""
    for path, entry in table.items():
        block, _, name = path.rpartition(".")
        for other, candidate in table.items():
            where, _, new = other.rpartition(".")
            alike = RENAMED.get(path) == other or SequenceMatcher(None, name, new).ratio() > 0.75
            same = where == block and candidate.get("default") == entry.get("default")
            if "removed" in entry and same and alike and candidate.get("since") == entry["removed"]:
                entry["renamed-to"] = other
