"""TrainingArguments as people have them: flags, a launch line or script, a JSON or YAML file. Loads no transformers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zerotune.errors import UsageError

from .context import TRAINING_DEFAULTS
from .launch_line import Launch, read_launch
from .shell import UNKNOWN

_WORDS = {"true": True, "false": False, "none": None}
_CALLERS = re.compile(rf"{UNKNOWN}[@*](:\d+)?")  # "$@", "${@:2}": whatever the caller adds
_TRUTH = {"1": True, "0": False, "yes": True, "no": False, "y": True, "n": False, "t": True, "f": False}


@dataclass(frozen=True)
class Flags:
    """values: by name. unknown: names whose value only the shell could tell, with the variable it hangs on."""

    values: dict[str, object]
    unknown: dict[str, str]


def parse_flags(text: str) -> dict[str, object]:
    """Values by name, of flags alone or of a launch line.

    Raises:
        UsageError: quotes that are not closed, or a value of the wrong kind for a flag that we know.
    """
    return read_flags(read_launch(text)).values


def read_flags(launch: Launch) -> Flags:
    """The script's words as argparse pairs them. Several values of one flag become a list."""
    values: dict[str, object] = {}
    unknown: dict[str, str] = {}
    for name, words in _pairs(launch.words):
        hidden = next((word.partition(UNKNOWN)[2] for word in words if UNKNOWN in word), None)
        values.pop(name, None)
        unknown.pop(name, None)
        if hidden is not None:
            unknown[name] = hidden
        elif not words:
            positive = name.removeprefix("no_")
            switched_off = positive != name and isinstance(TRAINING_DEFAULTS.get(positive), bool)
            values[positive if switched_off else name] = not switched_off
        else:
            read = [read_value(name, word) for word in words]
            values[name] = read[0] if len(read) == 1 else read
    return Flags(values, unknown)


def _pairs(words: list[str]) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            found.append((name.replace("-", "_"), [value] if equals else []))
        elif found and not _CALLERS.fullmatch(word):
            found[-1][1].append(word)
    return found


def read_mapping(values: dict, where: str) -> dict[str, object]:
    """TrainingArguments of a JSON or YAML file. YAML 1.1 reads 1e-4 as a text; what it means is plain."""
    return {name: read_value(name, value, where) if isinstance(value, str) else value for name, value in values.items()}


def read_value(name: str, word: str, where: str = "--training-args: --") -> object:
    """A text as the flag's type; as it stands for flags that we don't compare."""
    default = TRAINING_DEFAULTS.get(name)
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        if isinstance(default, bool):
            return _TRUTH[word.lower()]
        if isinstance(default, int):
            return int(word) if name != "warmup_steps" or word.lstrip("-").isdigit() else float(word)
        if isinstance(default, float):
            return float(word)
    except (ValueError, KeyError):
        kind = "true or false" if isinstance(default, bool) else "a number"
        raise UsageError(f"{where}{name} {word[:60]} is not {kind}") from None
    return word
