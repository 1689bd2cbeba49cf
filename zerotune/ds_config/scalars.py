"""Values of single JSON tokens, and what is wrong with those that only look like JSON."""

from __future__ import annotations

import json
import re

from zerotune.errors import nearest

from .tokens import Token

_PYTHON_WORDS = {"True": True, "False": False, "None": None, "TRUE": True, "FALSE": False, "yes": True, "no": False}
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_NUMBER_LIKE = re.compile(
    r"[+-]?(?:0[xX][0-9a-fA-F]+|[0-9_]*\.?[0-9_]+(?:[eE][+-]?[0-9]+)?|[0-9_]+\.(?:[eE][+-]?[0-9]+)?)\Z"
)
_LITERALS = {"true": True, "false": False, "null": None}


def string_value(token: Token) -> tuple[str, str | None]:
    """The text of a string token, and what is wrong with it (None: nothing)."""
    body = token.text[1:-1]
    if "\\" not in body and body.isprintable():
        return body, None
    try:
        return json.loads(token.text), None
    except ValueError as problem:
        reason = str(problem).partition(":")[0]
        return body, f"bad character or escape in a string ({reason[0].lower()}{reason[1:]})"


def number_value(text: str) -> int | float:
    """An int or a float, as json.loads reads it; very long integers become floats (Python limits their length)."""
    if text.lstrip("-").isdigit() and len(text) < 4000:
        return int(text)
    return float(text)


def literal_value(text: str) -> object:
    return _LITERALS[text]


def word_value(text: str) -> tuple[str, object, str, str]:
    """What a bare word most likely means: (code, value, message, help)."""
    if text in _NOT_FINITE:
        return (
            "not-finite" if text == "NaN" else "infinity",
            _NOT_FINITE[text],
            f"{text} is not JSON",
            "write a number, or leave the key out",
        )
    if text in _PYTHON_WORDS:
        value = _PYTHON_WORDS[text]
        return "python-literal", value, f"{text} is not JSON", f"write {json.dumps(value)}"
    if _NUMBER_LIKE.match(text):
        value = _number_like(text)
        return "number-syntax", value, f"{text} is not a JSON number", f"write {json.dumps(value)}"
    better = nearest(text, _LITERALS, 1, 0.76) or [json.dumps(_short(unquoted(text)))]
    return "bare-word", text, f"{_short(text)} has no quotes", f"write {better[0]}"


def unquoted(word: str) -> str:
    """A word without a typographic quote that has no partner."""
    return word.strip("“”„‘’‚")


def _number_like(text: str) -> int | float:
    digits = text.replace("_", "")
    try:
        if "x" in digits.lower():
            return int(digits, 16)
        return number_value(digits.lstrip("+")) if digits.lstrip("+-").isdigit() else float(digits)
    except ValueError:
        return 0


def _short(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
