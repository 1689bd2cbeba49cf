"""Every rule's examples, and what all rules have in common."""

from __future__ import annotations

import re

import pytest

from zerotune.ds_config import Context, check
from zerotune.ds_config.describe import describe_rule
from zerotune.ds_config.finding import ERROR, SEVERITIES
from zerotune.ds_config.rules import all_rules
from zerotune.ds_config.schema import fields

RULES = list(all_rules().values())


def examples(kind: str):
    for rule in RULES:
        for number, case in enumerate(getattr(rule, kind)):
            yield pytest.param(rule, case, id=f"{rule.id}-{number}")


def ids(case) -> set[str]:
    return {finding.rule for finding in check(case.full(), Context(**case.context))}


@pytest.mark.parametrize(("rule", "case"), list(examples("bad")))
def test_bad_is_found(rule, case):
    found = ids(case)
    assert rule.id in found
    assert "ZT000" not in found, "a rule crashed"


@pytest.mark.parametrize(("rule", "case"), list(examples("good")))
def test_good_is_not_found(rule, case):
    found = check(case.full(), Context(**case.context))
    assert rule.id not in {finding.rule for finding in found}
    assert [f.message for f in found if f.severity == ERROR] == [], "a good example must run"


def test_rows_are_complete():
    known = set(fields()) | {key.partition(".")[0] for key in fields()}
    for rule in RULES:
        assert re.fullmatch(r"ZT\d{3}", rule.id)
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.slug), rule.id
        assert rule.severity in SEVERITIES
        assert rule.message and rule.help and rule.why and rule.source, rule.id
        assert rule.bad and rule.good, rule.id
        assert set(rule.keys) <= known, rule.id


def test_rows_can_be_described():
    for rule in RULES:
        text = describe_rule(rule)
        assert rule.why in text and "help:" in text, rule.id


def test_ids_and_slugs_are_unique():
    slugs = [rule.slug for rule in RULES]
    assert len(slugs) == len(set(slugs))
