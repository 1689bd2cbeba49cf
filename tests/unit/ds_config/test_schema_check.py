"""Our part of JSON Schema against the whole: the same findings for values of every type at every key."""

from __future__ import annotations

import math

import pytest

from zerotune.ds_config.schema import fields, schema
from zerotune.ds_config.schema_check import broken

jsonschema = pytest.importorskip("jsonschema")

VALUES = [None, True, False, 0, 1, -1, 4, 0.5, 1.0, -0.5, math.nan, math.inf, 2**80, "auto", "cpu", "", "3"]
VALUES += [[], [0.9, "x"], {}, {"unknown": 1, 3: 4}, {"enabled": "auto"}]


def nested(path: str, value: object) -> dict:
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def theirs(config: dict, version: str | None) -> set:
    found = jsonschema.Draft202012Validator(schema(version)).iter_errors(config)
    return {(error.validator, tuple(error.absolute_path), id(error.schema)) for error in found}


@pytest.mark.parametrize("version", [None, "0.16.4"])
def test_every_key_with_values_of_every_type(version):
    assert len(fields(version)) > 300
    for number, path in enumerate(fields(version)):
        # A quarter of the values at each key: jsonschema takes a second per thousand.
        for value in VALUES[number % 4 :: 4]:
            config = nested(path, value)
            ours = {(keyword, at, id(node)) for keyword, at, _, node in broken(config, schema(version))}
            assert ours == theirs(config, version), (path, value)


def test_the_schema_uses_no_other_keyword():
    known = {"type", "not", "enum", "pattern", "items", "properties", "additionalProperties"}
    known |= {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
    said = {"default", "description", "deprecated", "title", "$schema", "$id"}
    for version in (None, "0.16.0"):
        nodes = [schema(version), *(field.node for field in fields(version).values())]
        used = {keyword for node in nodes for keyword in node if not keyword.startswith("x-")}
        assert used <= known | said
