"""What pydantic makes of a value of another type (its lax mode), without loading pydantic.

docs.pydantic.dev/latest/concepts/conversion_table/; tests/engine/test_schema.py holds it against the real one.
"""

from __future__ import annotations

_TRUE = {"1", "on", "t", "true", "y", "yes"}
_FALSE = {"0", "off", "f", "false", "n", "no"}


def reads_as(value: object, node: dict) -> tuple[str, object]:
    """("converted", the value it becomes) or ("refused", None) for a schema node's types."""
    types = node.get("type", [])
    for kind in [types] if isinstance(types, str) else types:
        convert = {"integer": _integer, "number": _number, "boolean": _boolean}.get(kind)
        read = convert(value) if convert else None
        if read is not None:
            return "converted", read
    return "refused", None


def _boolean(value: object) -> bool | None:
    if isinstance(value, str):
        word = value.lower()
        return True if word in _TRUE else False if word in _FALSE else None
    return bool(value) if value in (0, 1) and isinstance(value, (int, float)) else None


def _number(value: object) -> float | None:
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _integer(value: object) -> int | None:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        whole, point, zeros = value.strip().partition(".")
        digits = whole.lstrip("+-")
        if digits.isdigit() and not zeros.strip("0") and len(digits) < 4000 and (zeros or not point):
            return int(whole)
    return None
