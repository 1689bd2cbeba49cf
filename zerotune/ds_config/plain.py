"""A dict from Python or YAML as a document: the same facts as a text's, without places."""

from __future__ import annotations

from .document import Document, Problem, join
from .parser import MAX_DEPTH

_PLAIN = (str, int, float, bool, type(None))


def document_of_dict(source: object) -> Document:
    """Copy plain data out of any object; what JSON can't hold becomes a problem."""
    document = Document()
    document.value = _copy(source, "", 0, frozenset(), document.problems)
    return document


def _copy(value: object, pointer: str, depth: int, above: frozenset, problems: list[Problem]) -> object:
    if isinstance(value, _PLAIN):
        return value
    if not isinstance(value, (dict, list, tuple)):
        _report(problems, "not-json-value", f"a {type(value).__name__} is no JSON value", "use plain data", pointer)
        return None
    if id(value) in above:
        _report(problems, "nesting", "the value contains itself", "break the cycle", pointer)
        return None
    if depth > MAX_DEPTH:
        _report(
            problems,
            "nesting",
            f"nested more than {MAX_DEPTH} levels deep",
            "a DeepSpeed config needs at most five",
            pointer,
        )
        return None
    above = above | {id(value)}
    if isinstance(value, dict):
        return _copy_dict(value, pointer, depth, above, problems)
    return [_copy(item, join(pointer, number), depth + 1, above, problems) for number, item in enumerate(value)]


def _copy_dict(value: dict, pointer: str, depth: int, above: frozenset, problems: list[Problem]) -> dict:
    made = {}
    for key, item in value.items():
        if not isinstance(key, str):
            _report(problems, "not-json-value", f"the key {key!r} is no text", "put it in quotes", join(pointer, key))
        made[str(key)] = _copy(item, join(pointer, key), depth + 1, above, problems)
    return made


def _report(problems: list[Problem], code: str, message: str, help: str, pointer: str) -> None:
    problems.append(Problem(code, 0, 0, message, help, pointer))
