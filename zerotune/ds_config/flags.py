"""TrainingArguments as people type them: "--bf16 true --learning_rate 1e-4", without loading transformers."""

from __future__ import annotations

import shlex

from zerotune.errors import UsageError

from .context import TRAINING_DEFAULTS

_WORDS = {"true": True, "false": False, "none": None}


def parse_flags(text: str) -> dict[str, object]:
    """Values by name. Words before the first flag (a script's name) are skipped, lines ending in \\ are joined.

    Raises:
        UsageError: quotes that are not closed, or a value of the wrong kind for a flag that we know.
    """
    try:
        words = shlex.split(text.replace("\\\n", " ").replace("\\\r\n", " "), comments=True)
    except ValueError as problem:
        raise UsageError(f"--training-args can't be split into words: {problem}") from None
    found: dict[str, object] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = _value(name, value) if equals else True
            name = None if equals else name
        elif name is not None:
            found[name] = _value(name, word)
            name = None
    return found


def _value(name: str, word: str) -> object:
    default = TRAINING_DEFAULTS.get(name)
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        if isinstance(default, bool):
            return {"1": True, "0": False, "yes": True, "no": False}[word.lower()]
        if isinstance(default, int):
            return int(word)
        if isinstance(default, float):
            return float(word)
    except (ValueError, KeyError):
        kind = "true or false" if isinstance(default, bool) else "a number"
        raise UsageError(f"--training-args: --{name} {word} is not {kind}") from None
    return word
