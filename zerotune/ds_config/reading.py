"""What the engine makes of a value of the wrong type: refuses, converts, never looks.

Held against the real parser by tests/engine/test_parser_agreement.py.
"""

from __future__ import annotations

import math

from .document import split
from .pydantic_reading import reads_as
from .schema import Violation

REFUSED = "refused"
CONVERTED = "converted"
UNCHECKED = "unchecked"

# Plain blocks that the engine reads only when their feature is on: a wrong type there stops nothing by itself.
SLEEPING = ("flops_profiler", "activation_checkpointing", "aio", "autotuning", "data_efficiency", "pipeline")
SLEEPING += ("expert_parallel", "data_parallel_size", "checkpoint.writer", "vocabulary_size")
# Combined with `|`, so that only booleans and whole numbers pass (e062).
BITWISE = ("wall_clock_breakdown", "flops_profiler.enabled")
# Batch arithmetic and slices need whole numbers; elsewhere 10.0 and 0.5 do.
WHOLE = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "sequence_parallel_size")
_NO_WORDS = ("false", "no", "off", "0")


def reading(violation: Violation) -> tuple[str, object]:
    """(REFUSED, CONVERTED or UNCHECKED; the value it becomes)."""
    path = ".".join(split(violation.pointer))
    types = violation.node.get("type", [])
    types = [types] if isinstance(types, str) else types
    if violation.kind == "pattern" and "x-auto" not in violation.node:
        return REFUSED, None
    if violation.reader == "pydantic":
        return reads_as(violation.value, violation.node)
    if "boolean" in types:
        return plain_boolean(path, violation.value)
    asleep = path.startswith(SLEEPING)
    if asleep and (types[0] != "object" or path == "autotuning.arg_mappings"):
        # vocabulary_size is used with %, which a text takes for its own operator.
        texts = path == "vocabulary_size" and violation.value and isinstance(violation.value, (str, list, dict))
        return (REFUSED if texts else UNCHECKED), None
    if path == "torch_autocast.lower_precision_safe_modules" and isinstance(violation.value, (str, dict)):
        return UNCHECKED, None
    if types[0] in ("number", "integer"):
        return plain_number(path, violation.value)
    return REFUSED, None


def plain_boolean(path: str, value: object) -> tuple[str, object]:
    """Outside pydantic any value counts by its truth: "false" is on (a088, b041)."""
    if path in BITWISE and not isinstance(value, int):
        return REFUSED, None
    return CONVERTED, bool(value)


def plain_number(path: str, value: object) -> tuple[str, object]:
    """True counts as 1; a fraction is taken where no whole number is needed; texts are never converted."""
    if isinstance(value, bool):
        return CONVERTED, int(value)
    if isinstance(value, float) and path not in WHOLE and not path.startswith("scheduler.") and math.isfinite(value):
        return CONVERTED, value
    return REFUSED, None


def contradicts(value: object, read: object) -> bool:
    """The text says no and the engine reads yes."""
    return isinstance(value, str) and value.strip().lower() in _NO_WORDS and read is True
