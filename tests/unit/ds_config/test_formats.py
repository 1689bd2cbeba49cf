"""JSON, SARIF and GitHub annotations, and the choice of rules."""

from __future__ import annotations

import json

import pytest

from zerotune.ds_config import check
from zerotune.ds_config.formats import as_github, as_json, as_sarif
from zerotune.ds_config.selection import choose

TEXT = (
    '{"zero_optimization": {"stage": 7},\n "gradient_cliping": 1, "steps_per_print": NaN, "train_batch_size": "auto"}'
)
RESULTS = [("ds: 100%,.json", check(TEXT)), ("clean.json", [])]


def test_json_is_strict_json():
    text = as_json(RESULTS)
    assert "NaN," not in text
    files = json.loads(text)["files"]
    assert [file["path"] for file in files] == ["ds: 100%,.json", "clean.json"]
    assert {"rule", "slug", "severity", "line", "column", "value", "message", "help", "fix", "source"} <= set(
        files[0]["findings"][0]
    )


def test_sarif_has_a_rule_and_a_place_for_every_result():
    (run,) = json.loads(as_sarif(RESULTS, "1.2.3"))["runs"]
    known = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert len(run["results"]) == len(RESULTS[0][1])
    for result in run["results"]:
        assert result["ruleId"] in known
        assert result["level"] in ("error", "warning", "note")
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "ds%3A%20100%25%2C.json"
        region = place["region"]
        assert region["startLine"] in (1, 2) and region["endColumn"] > region["startColumn"]


def test_github_escapes():
    lines = as_github(RESULTS).splitlines()
    assert len(lines) == len(RESULTS[0][1])
    assert all("file=ds%3A 100%25%2C.json" in line for line in lines)
    assert lines[0].startswith("::error ")
    assert any(line.startswith("::notice ") or line.startswith("::warning ") for line in lines)


@pytest.mark.parametrize(
    ("select", "ignore", "expected"),
    [
        ([], [], None),
        (["ZT112"], [], {"ZT112"}),
        (["out-of-range"], [], {"ZT112"}),
        (["ZT1"], ["ZT112"], {"ZT102"}),
        (["zt102", "ZT112"], [], {"ZT102", "ZT112"}),
    ],
)
def test_choose(select, ignore, expected):
    found = RESULTS[0][1]
    kept = {finding.rule for finding in choose(found, select, ignore)}
    assert kept == (expected or {finding.rule for finding in found})


def test_a_name_without_rule_is_itself_a_finding():
    kept = choose(RESULTS[0][1], ["ZT112"], ["ofload-param"])
    assert [finding.rule for finding in kept] == ["ZT099", "ZT112"]
    assert "offload-param" in kept[0].help
