"""ZT1xx, second part: values of the wrong type or out of range."""

from __future__ import annotations

import json
import math
from functools import cache

from zerotune.errors import nearest

from ..document import split
from ..finding import ERROR, WARNING, Fix
from ..pydantic_reading import reads_as
from ..reading import CONVERTED, REFUSED, SLEEPING, UNCHECKED, contradicts, reading
from ..schema import fields
from ..view import pointer
from .key_advice import older
from .rule import Hit, case, rule

PYDANTIC = "deepspeed 0.19.8 runtime/config_utils.py (pydantic models), runtime/config.py (plain values)"
NAMES = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "array": "a list",
    "object": "a block {...}",
    "null": "null",
}
# Read by validators that refuse booleans; rule ZT407 reports them.
STRICT_SCALES = {"/fp16/loss_scale", "/fp16/loss_scale_window", "/fp16/min_loss_scale"}


def wanted(node: dict) -> str:
    """'a whole number or "auto"'."""
    types = node.get("type", [])
    types = [types] if isinstance(types, str) else types
    if node.get("pattern") == "^auto$":
        types = [kind for kind in types if kind != "string"]
    words = [NAMES[kind] for kind in types] + (['"auto"'] if node.get("pattern") == "^auto$" else [])
    return " or ".join(words)


def named(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    kinds = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "a block", type(None): "null"}
    return kinds[type(value)]


def mistyped(view):
    """Violations of type that the engine sees. "auto" has rules of its own."""
    for violation in view.violations:
        if violation.kind in ("type", "pattern") and violation.value != "auto" and not unread(view, violation):
            yield violation


def unread(view, violation) -> bool:
    """Values that never reach anyone: arguments of something that isn't built, keys that are overwritten."""
    at, value = violation.pointer, violation.value
    client = view.raw and view.context.client_optimizer
    if at.startswith("/optimizer/params"):
        return view.get("optimizer.type") is None or bool(client)
    if at == "/scheduler/params/warmup_num_steps" and isinstance(value, float):  # ZT624 reports it
        return True
    if at.startswith("/scheduler/params"):
        unbuilt = view.raw and view.get("optimizer.type") is None and not client
        return view.get("scheduler.type") is None or unbuilt
    if at == "/steps_per_print":
        return not view.raw
    if at == "/bfloat16":
        return view.get("bf16") is not None
    if at == "/data_types/buffer_dtype":  # ZT408 reports it
        return True
    # Tested with `in`, and for truth.
    return (at == "/timers" and isinstance(value, (str, list))) or (at == "/expert_parallel" and not value)


def is_block(node: dict) -> bool:
    return "properties" in node


@rule(
    "ZT110",
    "wrong-type",
    ERROR,
    keys=(),
    message="{key} is {value} ({named}); it must be {wanted}",
    help="{todo}",
    source=PYDANTIC,
    bad=[
        case({"zero_optimization": {"stage": 2, "reduce_bucket_size": [1]}}),
        case({"gradient_clipping": "1.0"}, entry="raw"),
        case({"train_micro_batch_size_per_gpu": "2"}, entry="raw"),
        case({"zero_optimization": {"stage": 3, "sub_group_size": 1.5}}),
    ],
    good=[case({"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}})],
)
def wrong_type(view):
    """Pydantic blocks refuse it when parsing; other values fail later, often only at the first step (a085)."""
    for violation in mistyped(view):
        if is_block(violation.node) or reading(violation)[0] != REFUSED:
            continue
        facts = {"named": named(violation.value), "wanted": wanted(violation.node)}
        facts["todo"] = without_quotes(violation.value, violation.node) or f"write {facts['wanted']}"
        if violation.pointer == "/fp16/loss_scale" and violation.value == "dynamic":
            facts["todo"] = "write 0: the scale is dynamic then"
        yield Hit(violation.pointer, facts, severity=WARNING if never_read(view, violation.pointer) else None)


def never_read(view, pointer: str) -> bool:
    """Stage 1 divides by the factor only when reduce_scatter is off; others refuse a text at the first step.
    Older versions read the precision blocks only where they are on, and took one rank for a world that they could not
    divide."""
    if pointer == "/sequence_parallel_size":
        return view.raw and older(view.deepspeed, "0.19.3")
    if pointer.startswith(("/fp16/", "/bf16/")):
        return older(view.deepspeed, "0.17.1") and not view.enabled(pointer.split("/")[1])
    scatter = view.flag("zero_optimization.reduce_scatter", True)
    return pointer == "/gradient_predivide_factor" and view.stage == 1 and scatter


def without_quotes(value: object, node: dict) -> str | None:
    """Advice for a number or boolean in quotes; 2e8 and 1_000 are whole numbers too."""
    if not isinstance(value, str):
        return None
    kind, read = reads_as(value, node)
    if kind != "converted" and "integer" in node.get("type", ()):
        number = reads_as(value.replace(",", ""), {"type": "number"})[1]
        read = int(number) if number is not None and number.is_integer() else None
    return None if read is None else f"write {json.dumps(read)}, without quotes"


@rule(
    "ZT111",
    "converted-value",
    WARNING,
    keys=(),
    message="{key} is {value} ({named}); it {effect}",
    help="write {better}",
    source=PYDANTIC,
    bad=[case({"zero_optimization": {"stage": "2"}}), case({"bf16": {"enabled": "true"}}, entry="raw")],
    good=[case({"zero_optimization": {"stage": 2}})],
)
def converted_value(view):
    """Pydantic blocks convert texts and numbers; the Trainer's comparisons and other tools do not (a077, a082)."""
    for violation in mistyped(view):
        verdict, read = reading(violation)
        if verdict != CONVERTED or is_block(violation.node) or violation.pointer in STRICT_SCALES:
            continue
        better = {True: "true", False: "false"}.get(read, read) if isinstance(read, bool) else read
        effect = "counts as true: any text does" if contradicts(violation.value, read) else f"is read as {better}"
        fix = None if contradicts(violation.value, read) else Fix("set", violation.pointer, read, safe=True)
        better = "false" if fix is None else better
        yield Hit(violation.pointer, {"named": named(violation.value), "better": better, "effect": effect}, fix=fix)


@rule(
    "ZT112",
    "out-of-range",
    ERROR,
    keys=(),
    message="{key} is {value}; it must be {bound}",
    help="write a number {bound}",
    source=PYDANTIC,
    bad=[
        case({"zero_optimization": {"stage": 4}}),
        case({"zero_optimization": {"stage": 2, "reduce_bucket_size": 0}}),
        case({"train_batch_size": 0}, entry="raw"),
    ],
    good=[case({"zero_optimization": {"stage": 3, "sub_group_size": 0}})],
)
def out_of_range(view):
    """Bounds of the engine's own classes, and assertions about the batch (a078, a081)."""
    words = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "above", "exclusiveMaximum": "below"}
    for violation in view.violations:
        if violation.kind in words and violation.pointer != "/data_parallel_size":
            facts = {"bound": f"{words[violation.kind]} {violation.node[violation.kind]}"}
            yield Hit(violation.pointer, facts, severity=WARNING if never_read(view, violation.pointer) else None)
    yield from not_a_number(view, words)
    # Numbers in quotes pass the schema's bounds, and pydantic reads them.
    for violation in mistyped(view):
        verdict, read = reading(violation)
        for kind, word in words.items():
            if verdict == CONVERTED and kind in violation.node and not within(read, kind, violation.node[kind]):
                yield Hit(violation.pointer, {"bound": f"{word} {violation.node[kind]}"})


@cache
def bounded() -> tuple[tuple[str, str], ...]:
    """Keys with a bound, and its keyword."""
    kinds = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    found = ((path, [kind for kind in kinds if kind in field.node]) for path, field in fields().items())
    return tuple((path, bounds[0]) for path, bounds in found if bounds)


def not_a_number(view, words: dict[str, str]):
    """NaN is in no range, but passes comparisons with bounds."""
    for path, kind in bounded():
        value = view.get(path)
        if isinstance(value, float) and math.isnan(value):
            yield Hit(pointer(path), {"bound": f"{words[kind]} {fields()[path].node[kind]}"})


def within(number: float, kind: str, bound: float) -> bool:
    tests = {
        "minimum": number >= bound,
        "maximum": number <= bound,
        "exclusiveMinimum": number > bound,
        "exclusiveMaximum": number < bound,
    }
    return tests[kind]


@rule(
    "ZT113",
    "not-a-choice",
    ERROR,
    keys=("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"),
    message="{key} is {value}; it must be one of {choices}",
    help="write {better}",
    source=PYDANTIC,
    bad=[case({"zero_optimization": {"offload_optimizer": {"device": "CPU"}}})],
    good=[case({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})],
)
def not_a_choice(view):
    """Names from a fixed list (a083, a084)."""
    for violation in view.violations:
        if violation.kind == "enum" and violation.value != "auto":
            choices = {choice: f'"{choice}"' for choice in violation.node["enum"] if choice is not None}
            same = [choice for choice in choices if choice.lower() == str(violation.value).lower()]
            likely = same or nearest(str(violation.value), choices, 1, 0.8) or [c for c in choices if c != "auto"]
            facts = {"choices": ", ".join(choices.values())}
            facts["better"] = " or ".join(choices[choice] for choice in likely)
            if same:
                facts["better"] += "; the case of the letters counts"
            yield Hit(violation.pointer, facts, fix=Fix("set", violation.pointer, same[0]) if same else None)


@rule(
    "ZT114",
    "not-a-block",
    ERROR,
    keys=("bf16", "fp16", "zero_optimization", "optimizer", "scheduler"),
    message="{key} is {value} ({named}); it must be a block {{...}}",
    help="write it like {example}",
    source=PYDANTIC,
    bad=[case({"bf16": True}), case({"zero_optimization": 2}, entry="raw"), case({"fp16": None}, entry="raw")],
    good=[case({"bf16": {"enabled": True}}), case({"bf16": None}, entry="raw")],
)
def not_a_block(view):
    """A value or null where a block belongs is a TypeError in the parser (a038, a039, a091 to a094)."""
    for violation in mistyped(view):
        if is_block(violation.node):
            name = split(violation.pointer)[-1]
            first = next(iter(violation.node["properties"]), "key")
            facts = {"named": named(violation.value), "example": f'"{name}": {{"{first}": ...}}'}
            yield Hit(violation.pointer, facts)
    # Plain blocks take no "auto" either; pydantic ones drop it. ZT203 has those of the top level.
    for violation in view.violations:
        inner = violation.reader == "plain" and violation.pointer.count("/") > 1
        asleep = violation.pointer in ("/optimizer/params", "/scheduler/params", "/autotuning/arg_mappings")
        if not (view.raw and inner and violation.value == "auto") or asleep:
            continue
        if "object" in violation.node.get("type", ()):
            yield Hit(violation.pointer, {"named": "a text", "example": "{...}"})


@rule(
    "ZT115",
    "sleeping-type",
    WARNING,
    keys=tuple(name for name in SLEEPING if "." not in name),
    message="{key} is {value} ({named}); it should be {wanted}",
    help="write {wanted}; the engine does not check it before the feature is used",
    source="deepspeed 0.19.8: these blocks are plain dicts",
    bad=[case({"flops_profiler": {"profile_step": "2"}})],
    good=[case({"flops_profiler": {"profile_step": 2}})],
)
def sleeping_type(view):
    """Blocks that are read without any check; a wrong value shows when the feature runs."""
    for violation in mistyped(view):
        if not is_block(violation.node) and reading(violation)[0] == UNCHECKED:
            yield Hit(violation.pointer, {"named": named(violation.value), "wanted": wanted(violation.node)})
