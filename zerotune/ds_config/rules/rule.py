"""What a rule is: a row of facts and one pure predicate.

One text feeds the terminal, `explain`, JSON and docs/rules.md; the examples are the rule's tests. Ids are never
reused: a rule that goes leaves a gap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ..finding import Fix

# What the examples of a rule are laid over, so that a row shows only what matters.
BASES = {
    "raw": {"train_micro_batch_size_per_gpu": 1},
    "accelerate": {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}},
    "trainer": {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "zero_optimization": {"stage": 2},
    },
}


@dataclass(frozen=True)
class Case:
    """An example: a config (or a text) and the context it is checked in."""

    source: object
    context: dict

    def full(self) -> object:
        """The example laid over the smallest config that runs with its entry point; texts stay as they are."""
        if not isinstance(self.source, dict):
            return self.source
        return _overlay(BASES[self.context.get("entry", "trainer")], self.source)


def case(source: object, **context) -> Case:
    return Case(source, context)


def _overlay(base: dict, over: dict) -> dict:
    """`over` on `base`; ... as a value takes a key away."""
    merged = {key: value for key, value in base.items() if over.get(key) is not ...}
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = _overlay(merged[key], value)
        elif value is not ...:
            merged[key] = value
    return merged


@dataclass(frozen=True)
class Hit:
    """One place where a rule holds.

    facts: fill the {} of the rule's message and help.
    at_key: point at the key instead of the value.
    severity: only when it differs from the rule's.
    span: offsets in the text, for problems of the text itself.
    """

    pointer: str = ""
    facts: dict = field(default_factory=dict)
    at_key: bool = False
    severity: str | None = None
    fix: Fix | None = None
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Rule:
    """One row.

    find: predicate over a View; yields the places where the rule holds.
    keys: dotted keys it is about, for docs and search.
    message: what is wrong; help: what to do. Both may hold {facts}.
    why: what the engine does and what that costs, for `explain`.
    source: file and line or address, with the version it was checked on.
    bad, good: examples; the rule reports each bad one and no good one.
    """

    id: str
    slug: str
    severity: str
    keys: tuple[str, ...]
    message: str
    help: str
    why: str
    source: str
    bad: tuple[Case, ...]
    good: tuple[Case, ...]
    find: Callable[[object], Iterator[Hit]] = field(repr=False)


RULES: dict[str, Rule] = {}
# Names of engine trials, "(b043, b044)": for us, and for tests/cases/engine_trials.jsonl, not for users.
_TRIALS = re.compile(r" \([a-f]\d{2,3}(?:(?:, | to | and )[a-f]\d{2,3})*\)")


def rule(id: str, slug: str, severity: str, *, keys, message, help, source, bad, good):
    """Decorator that makes a row of a predicate; its docstring is the row's `why`."""

    def register(find):
        if id in RULES:
            raise ValueError(f"rule id {id} is used twice: {RULES[id].slug} and {slug}")
        why = _TRIALS.sub("", " ".join((find.__doc__ or "").split()))
        RULES[id] = Rule(id, slug, severity, tuple(keys), message, help, why, source, tuple(bad), tuple(good), find)
        return find

    return register
