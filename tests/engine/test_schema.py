"""The shipped schema against the installed DeepSpeed, transformers and pydantic: keys, defaults, ranges, types.

Fails when either side changes, so that an upgrade of DeepSpeed shows what it brings.
"""

from __future__ import annotations

import importlib
import json
import sys
import typing
from enum import Enum
from pathlib import Path

import pytest

pytest.importorskip("deepspeed")

from zerotune.ds_config.context import TRAINING_DEFAULTS
from zerotune.ds_config.pydantic_reading import reads_as
from zerotune.ds_config.schema import fields, schema

CLASS_BLOCKS = [(path, field.node) for path, field in fields().items() if "x-class" in field.node]
BOUNDS = {"Gt": "exclusiveMinimum", "Ge": "minimum", "Lt": "exclusiveMaximum", "Le": "maximum"}
# The engine checks these in validators, which a field's metadata doesn't show.
VALIDATED = {"fp16.loss_scale": {"minimum"}, "zero_optimization.stage": {"minimum", "maximum"}}
VALIDATED["zero_optimization.zenflow.update_interval"] = {"minimum"}
# Not from JSON, or any value at all.
UNTYPED = {"tensor_parallel.dtype", "tensor_parallel.tp.mpu", "tensor_parallel.tp.tp_group"}
UNTYPED |= {path.replace(".tp.", ".tensor_parallel.") for path in UNTYPED}


def load(name: str):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def class_fields(cls) -> dict[str, object]:
    """Every JSON name of a pydantic class: field names, and aliases beside them (populate_by_name)."""
    names = {}
    for name, info in cls.model_fields.items():
        names[name] = info
        if info.alias:
            names[info.alias] = info
    return names


@pytest.mark.parametrize(("path", "node"), CLASS_BLOCKS, ids=[path for path, _ in CLASS_BLOCKS])
def test_block_has_the_keys_of_its_class(path, node):
    ours = {name for name, child in node["properties"].items() if "x-removed" not in child}
    theirs = set(class_fields(load(node["x-class"])))
    assert ours == theirs


def class_field_cases():
    for path, node in CLASS_BLOCKS:
        for name, info in class_fields(load(node["x-class"])).items():
            yield pytest.param(f"{path}.{name}", node["properties"].get(name, {}), info, id=f"{path}.{name}")


@pytest.mark.parametrize(("path", "node", "info"), list(class_field_cases()))
def test_field_default(path, node, info):
    if path in UNTYPED or "properties" in node or info.default_factory:
        return
    default = info.get_default()
    default = default.value if isinstance(default, Enum) else default
    assert node.get("default") == default


@pytest.mark.parametrize(("path", "node", "info"), list(class_field_cases()))
def test_field_bounds(path, node, info):
    theirs = {
        ours: getattr(item, name.lower())
        for item in info.metadata
        for name, ours in BOUNDS.items()
        if hasattr(item, name.lower())
    }
    ours = {name: node[name] for name in BOUNDS.values() if name in node and name not in VALIDATED.get(path, ())}
    assert ours == theirs


@pytest.mark.parametrize(("path", "node", "info"), list(class_field_cases()))
def test_field_type(path, node, info):
    if path in UNTYPED:
        return
    if path.startswith("zero_optimization.leaf_module."):
        # A validator makes a list of a text; zero/leaf_module_config.py.
        assert node["type"] == ["array", "string"]
        return
    types = {node["type"]} if isinstance(node["type"], str) else set(node["type"])
    if node.get("pattern") == "^auto$" and "x-auto" in node:
        types.discard("string")
    if path == "zero_optimization.leaf_module":
        types.discard("null")  # read by a validator
    assert types == json_types(info.annotation)


def json_types(annotation) -> set[str]:
    """JSON types of a Python annotation."""
    if annotation is type(None):
        return {"null"}
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return {"integer"} if issubclass(annotation, int) else {"string"}
    plain = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}
    plain |= {tuple: "array", Path: "string", typing.Dict: "object"}  # noqa: UP006
    if annotation in plain:
        return {plain[annotation]}
    origin = typing.get_origin(annotation)
    if origin is typing.Union:
        return set().union(*map(json_types, typing.get_args(annotation)))
    if origin is typing.Literal:
        return {"string"}
    return {plain.get(origin, "object")}


def test_top_level_keys_are_those_the_engine_reads():
    """Parse with a dict that writes down every key that is asked for."""
    from deepspeed.runtime.config import DeepSpeedConfig

    class Asked(dict):
        keys_asked: typing.ClassVar[set] = set()

        def __contains__(self, key):
            self.keys_asked.add(key)
            return super().__contains__(key)

        def get(self, key, default=None):
            self.keys_asked.add(key)
            return super().get(key, default)

        def keys(self):
            return Watched(self)

        def __copy__(self):
            return Asked(self)

    class Watched:
        def __init__(self, owner):
            self.owner = owner

        def __contains__(self, key):
            return key in self.owner

    DeepSpeedConfig(Asked({"train_micro_batch_size_per_gpu": 1}))
    asked = {key for key in Asked.keys_asked if isinstance(key, str)}
    # Read elsewhere: deepspeed/__init__.py:543, and config.py:468 when there are ranks; or by editors only.
    elsewhere = {"data_parallel_size", "sequence_parallel_size", "$schema"}
    assert asked - set(schema()["properties"]) == set()
    assert set(schema()["properties"]) - asked - elsewhere == set()


def test_removed_keys():
    from deepspeed.runtime import config

    top = {name for name, node in schema()["properties"].items() if "x-removed" in node}
    zero = {
        name for name, node in schema()["properties"]["zero_optimization"]["properties"].items() if "x-removed" in node
    }
    assert top == set(config._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    assert zero == set(config._REMOVED_ZERO_CONFIG_KEYS)


@pytest.mark.parametrize(
    ("path", "getter"),
    [
        ("gradient_clipping", "get_gradient_clipping"),
        ("steps_per_print", "get_steps_per_print"),
        ("wall_clock_breakdown", "get_wall_clock_breakdown"),
        ("memory_breakdown", "get_memory_breakdown"),
        ("prescale_gradients", "get_prescale_gradients"),
        ("gradient_predivide_factor", "get_gradient_predivide_factor"),
        ("gradient_allreduce_op", "get_gradient_allreduce_op"),
        ("zero_allow_untested_optimizer", "get_zero_allow_untested_optimizer"),
        ("zero_force_ds_cpu_optimizer", "get_zero_force_ds_cpu_optimizer"),
        ("managed_gradient_accumulation", "get_managed_gradient_accumulation"),
        ("dataloader_drop_last", "get_dataloader_drop_last"),
        ("dump_state", "get_dump_state"),
        ("disable_allgather", "get_disable_allgather"),
        ("disable_python_gc", "get_disable_python_gc"),
        ("log_level", "get_log_level"),
        ("train_batch_size", "get_train_batch_size"),
        ("gradient_accumulation_steps", "get_gradient_accumulation_steps"),
    ],
)
def test_top_level_default(path, getter):
    from deepspeed.runtime import config

    assert fields()[path].node["default"] == getattr(config, getter)({})


@pytest.mark.parametrize("block", ["aio", "flops_profiler", "activation_checkpointing", "autotuning"])
def test_plain_block_defaults(block):
    """Plain blocks: the parsed object's attributes are the keys."""
    from deepspeed.runtime.config import DeepSpeedConfig

    config = DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1})
    names = {"aio": "aio_config", "flops_profiler": "flops_profiler_config"}
    names |= {"activation_checkpointing": "activation_checkpointing_config", "autotuning": "autotuning_config"}
    held = getattr(config, names[block])
    held = held if isinstance(held, dict) else vars(held)
    ours = {
        name: node["default"]
        for name, node in schema()["properties"][block]["properties"].items()
        if "default" in node and name in held
    }
    assert ours == {name: held[name] for name in ours}
    assert len(ours) >= 4


def test_training_defaults_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    known = {field.name: field.default for field in transformers.TrainingArguments.__dataclass_fields__.values()}
    assert {name: known[name] for name in TRAINING_DEFAULTS} == TRAINING_DEFAULTS


VALUES = [
    True,
    False,
    0,
    1,
    2,
    -3,
    1.0,
    1.5,
    "3",
    " 3 ",
    "3.0",
    "3.5",
    "5e8",
    "x",
    "",
    "true",
    "Yes",
    "OFF",
    "2",
    None,
    [],
    {},
]


@pytest.mark.parametrize("kind", ["boolean", "integer", "number", "string"])
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_reading_is_pydantics(kind, value):
    """Our copy of pydantic's conversions against the real ones, for values of another JSON type."""
    import jsonschema
    from pydantic import TypeAdapter, ValidationError

    if jsonschema.Draft202012Validator({"type": kind}).is_valid(value):
        return
    python = {"boolean": bool, "integer": int, "number": float, "string": str}[kind]
    try:
        theirs = ("converted", TypeAdapter(python).validate_python(value))
    except ValidationError:
        theirs = ("refused", None)
    assert reads_as(value, {"type": kind}) == theirs


def test_schema_is_valid_and_described():
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(schema())
    assert [path for path, field in fields().items() if not field.node.get("description")] == []
    assert json.dumps(schema())
    assert sys.maxsize == fields()["zero_optimization.stage3_model_persistence_threshold"].node["default"]
