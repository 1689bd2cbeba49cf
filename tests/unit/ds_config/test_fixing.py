"""Edits leave everything else as it stands, and a fixed config has no such finding."""

from __future__ import annotations

import json

import pytest

from zerotune.ds_config import Context, check
from zerotune.ds_config.edits import apply
from zerotune.ds_config.finding import Fix
from zerotune.ds_config.fixing import diff, fix
from zerotune.ds_config.parser import parse
from zerotune.ds_config.rules import all_rules

TEXT = """{
  "b": 1,
  "a": {"x": [1, 2], "y": "z"},
  "empty": {},
  "last": null
}
"""


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (Fix("set", "/b", 2), TEXT.replace('"b": 1', '"b": 2')),
        (Fix("set", "/a/x", "auto"), TEXT.replace("[1, 2]", '"auto"')),
        (Fix("set", "/new", True), TEXT.replace("null", 'null,\n  "new": true')),
        (Fix("set", "/a/new", 0), TEXT.replace('"z"', '"z", "new": 0')),
        (Fix("set", "/empty/new", 0), TEXT.replace("{},", '{"new": 0},')),
        (Fix("set", "/made/new", 0), TEXT.replace("null", 'null,\n  "made": {"new": 0}')),
        (Fix("remove", "/b"), TEXT.replace('"b": 1,\n  ', "")),
        (Fix("remove", "/last"), TEXT.replace(',\n  "last": null', "")),
        (Fix("remove", "/a/y"), TEXT.replace(', "y": "z"', "")),
        (Fix("rename", "/b", "c"), TEXT.replace('"b"', '"c"')),
        (
            Fix("move", "/b", "/a/b"),
            TEXT.replace('"b": 1,\n  ', "").replace('"y": "z"', '"y": "z", "b": 1'),
        ),
        (Fix("text", "", "7", span=(9, 10)), TEXT.replace('"b": 1', '"b": 7')),
    ],
    ids=lambda value: f"{value.action} {value.pointer}" if isinstance(value, Fix) else "",
)
def test_edits(edit, expected):
    assert apply(TEXT, edit) == expected
    assert parse(expected).problems == []


@pytest.mark.parametrize(
    "edit", [Fix("remove", "/no"), Fix("rename", "/no", "x"), Fix("move", "/b", "/last"), Fix("set", "/b/c", 1)]
)
def test_edits_that_cannot_be_made(edit):
    assert apply(TEXT, edit) is None


def test_only_member():
    assert apply('{ "a": 1 }', Fix("remove", "/a")) == "{}"


def fixable():
    for rule in all_rules().values():
        for number, case in enumerate(rule.bad):
            found = check(case.full(), Context(**case.context))
            if any(finding.rule == rule.id and finding.fix for finding in found):
                yield pytest.param(rule, case, id=f"{rule.id}-{number}")


@pytest.mark.parametrize(("rule", "case"), list(fixable()))
def test_a_fixed_config_has_no_such_finding(rule, case):
    source = case.full()
    text = source if isinstance(source, str) else json.dumps(source, indent=2)
    context = Context(**case.context)
    after = fix(text, context, unsafe=True)
    assert after.applied
    assert rule.id not in {finding.rule for finding in check(after.text, context)}
    assert fix(after.text, context, unsafe=True).text == after.text


def test_syntax_is_repaired_and_order_kept():
    text = '{\n  \'zero_optimization\': {\'stage\': 2,},  \n  "fp16": {"enabled": False}\n  "train_batch_size": "auto"\n}\n'
    after = fix(text, Context())
    assert json.loads(after.text) == {
        "zero_optimization": {"stage": 2},
        "fp16": {"enabled": False},
        "train_batch_size": "auto",
    }
    assert len(after.text.splitlines()) == len(text.splitlines())


def test_typographic_quotes_become_straight_ones():
    text = "{“zero_optimization”: {„stage“: 2}, “train_batch_size”: ‘auto’}"
    assert json.loads(fix(text, Context()).text) == {"zero_optimization": {"stage": 2}, "train_batch_size": "auto"}


def test_comments_stay_unless_json_needs_them_gone():
    text = '{\n  // why\n  "zero_optimization": {"stage": "2"}, # note\n  "train_batch_size": 8, "gradient_clipping": 1\n}\n'
    after = fix(text, Context(entry="raw"))
    assert after.text == text.replace('"2"', "2")


def test_unsafe_fixes_only_when_asked():
    text = '{"zero_optimization": {"stage": 2}, "offload_optimizer": {"device": "cpu"}, "train_batch_size": "auto"}'
    assert fix(text, Context()).text == text
    fixed = json.loads(fix(text, Context(), unsafe=True).text)
    assert fixed["zero_optimization"] == {"stage": 2, "offload_optimizer": {"device": "cpu"}}


def test_diff():
    assert diff('{"a": 1}\n', '{"a": 2}\n', "ds.json").splitlines()[-2:] == ['-{"a": 1}', '+{"a": 2}']
