"""Fields of pydantic config classes, read from the syntax tree."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from constants import UNKNOWN, Constants
from sources import Definition, Sources

BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
JSON_TYPES = {"bool": "boolean", "int": "integer", "float": "number", "str": "string", "list": "array"}
JSON_TYPES |= {
    "tuple": "array",
    "dict": "object",
    "List": "array",
    "Tuple": "array",
    "Dict": "object",
    "Path": "string",
}
JSON_TYPES |= {"None": "null", "NoneType": "null", "Literal": "string"}


@dataclass
class Entry:
    """A field: default, facts (types, bounds, alias-of, deprecated-for), and its own class when it is a block."""

    default: object = UNKNOWN
    facts: dict = field(default_factory=dict)
    model: Definition | None = None


def is_model(sources: Sources, found: object) -> bool:
    """Derived from pydantic's BaseModel, at any distance."""
    if not isinstance(found, Definition) or not isinstance(found.node, ast.ClassDef):
        return False
    names = {base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "") for base in found.node.bases}
    return "BaseModel" in names or any(is_model(sources, base) for base in bases(sources, found))


def bases(sources: Sources, found: Definition) -> list[Definition]:
    named = [sources.find(found.module, base.id) for base in found.node.bases if isinstance(base, ast.Name)]
    return [base for base in named if isinstance(base, Definition) and isinstance(base.node, ast.ClassDef)]


def model_fields(sources: Sources, constants: Constants, found: Definition) -> dict[str, Entry]:
    """Every JSON name: field names, and aliases beside them (populate_by_name)."""
    entries: dict[str, Entry] = {}
    for base in bases(sources, found):
        entries |= model_fields(sources, constants, base)
    for node in found.node.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id != "model_config":
            entry, alias = _entry(sources, constants, found.module, node)
            entries[node.target.id] = entry
            if alias:
                entries[alias] = Entry(entry.default, {**entry.facts, "alias-of": node.target.id}, entry.model)
    return entries


def _entry(sources: Sources, constants: Constants, module: str, node: ast.AnnAssign) -> tuple[Entry, str | None]:
    types, model = annotation(sources, module, node.annotation)
    entry, alias = Entry(facts={"types": sorted(types)} if types else {}, model=model), None
    if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "Field":
        words = {word.arg: word.value for word in node.value.keywords}
        default = node.value.args[0] if node.value.args else words.get("default")
        if default is not None:
            entry.default = constants.value(module, default)
        elif isinstance(words.get("default_factory"), ast.Lambda):
            entry.default = constants.value(module, words["default_factory"].body)
        _facts(constants, module, words, entry.facts)
        alias = constants.value(module, words["alias"]) if "alias" in words else None
    elif node.value is not None:
        entry.default = constants.value(module, node.value)
    return entry, alias


def _facts(constants: Constants, module: str, words: dict[str, ast.expr], facts: dict) -> None:
    for name, keyword in BOUNDS.items():
        if name in words:
            facts[keyword] = constants.value(module, words[name])
    extra = words.get("json_schema_extra")
    if isinstance(extra, ast.Dict):
        words = {
            **words,
            **{constants.value(module, key): item for key, item in zip(extra.keys, extra.values, strict=True)},
        }
    if "deprecated" in words and constants.value(module, words["deprecated"]):
        facts["deprecated"] = True
        if "new_param" in words:
            facts["deprecated-for"] = constants.value(module, words["new_param"])


def annotation(sources: Sources, module: str, node: ast.expr) -> tuple[set[str], Definition | None]:
    """JSON types of an annotation, and the class when one of them is a block."""
    if isinstance(node, ast.BinOp):
        sides = [annotation(sources, module, side) for side in (node.left, node.right)]
        return sides[0][0] | sides[1][0], sides[0][1] or sides[1][1]
    if isinstance(node, ast.Subscript):
        name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        if name in ("Optional", "Union"):
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            read = [annotation(sources, module, part) for part in parts]
            types = set().union(*(types for types, _ in read)) | ({"null"} if name == "Optional" else set())
            return types, next((model for _, model in read if model), None)
        return {JSON_TYPES[name]} if name in JSON_TYPES else set(), None
    if isinstance(node, ast.Constant):
        return {"null"} if node.value is None else set(), None
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return _class_or_type(sources, module, name)


def _class_or_type(sources: Sources, module: str, name: str) -> tuple[set[str], Definition | None]:
    if name in JSON_TYPES:
        return {JSON_TYPES[name]}, None
    found = sources.find(module, name)
    if isinstance(found, Definition) and isinstance(found.node, (ast.Assign, ast.AnnAssign)):
        return annotation(sources, found.module, found.node.value)  # PassName = Literal[...]
    if is_model(sources, found):
        return {"object"}, found
    if isinstance(found, Definition) and isinstance(found.node, ast.ClassDef):
        names = {getattr(base, "id", "") for base in found.node.bases}
        if "Enum" in names:
            return {"integer" if "int" in names else "string"}, None
    return set(), None
