"""The part of JSON Schema (draft 2020-12) that the shipped schema uses.

jsonschema takes 0.11 s to load, and a whole `validate` may take 0.3 s; it judges the schemas that are handed out
(schema.published), and tests/unit/ds_config/test_schema_check.py holds this module against it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator

# Keyword -> when a number breaks it. NaN breaks none.
BROKEN = {
    "minimum": operator.lt,
    "exclusiveMinimum": operator.le,
    "maximum": operator.gt,
    "exclusiveMaximum": operator.ge,
}


def broken(value: object, node: dict, path: tuple = ()) -> Iterator[tuple[str, tuple, object, dict]]:
    """(keyword, path, value, schema node) for each keyword that the value breaks.

    Keywords that are about another JSON type than the value's hold, as the standard says.
    """
    if not _typed(value, node):
        yield "type", path, value, node
    if "not" in node:
        yield "not", path, value, node
    if "enum" in node and value not in node["enum"]:
        yield "enum", path, value, node
    if isinstance(value, str) and "pattern" in node and not re.search(node["pattern"], value):
        yield "pattern", path, value, node
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for keyword, breaks in BROKEN.items():
            if keyword in node and breaks(value, node[keyword]):
                yield keyword, path, value, node
    if isinstance(value, dict):
        yield from _inside(value, node, path)
    if isinstance(value, list) and "items" in node:
        for index, item in enumerate(value):
            yield from broken(item, node["items"], (*path, index))


def _inside(value: dict, node: dict, path: tuple) -> Iterator[tuple[str, tuple, object, dict]]:
    keys = node.get("properties", {})
    for name, child in keys.items():
        if name in value:
            yield from broken(value[name], child, (*path, name))
    if node.get("additionalProperties") is False and any(name not in keys for name in value):
        yield "additionalProperties", path, value, node


def _typed(value: object, node: dict) -> bool:
    wanted = node.get("type")
    if wanted is None:
        return True
    return any(_is(value, kind) for kind in ([wanted] if isinstance(wanted, str) else wanted))


def _is(value: object, kind: str) -> bool:
    """1.0 is an integer, true is no number."""
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, float):
        return kind == "number" or (kind == "integer" and value.is_integer())
    kinds = {int: ("integer", "number"), str: ("string",), list: ("array",), dict: ("object",), type(None): ("null",)}
    return any(isinstance(value, python) and kind in names for python, names in kinds.items())
