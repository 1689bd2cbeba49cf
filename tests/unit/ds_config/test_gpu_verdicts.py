"""What DeepSpeed 0.19.8 said on an H200 (torch 2.11, 2026-11-30) to the rules' raw examples, those included that a CPU
cannot judge: our error-level findings are the same. tests/engine/rule_trials.py says how the file is made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerotune.ds_config import Context, check
from zerotune.ds_config.finding import ERROR

CASES = Path(__file__).parents[2] / "cases" / "gpu_verdicts.jsonl"
# That machine had no comet_ml, and no launcher that sets CROSS_SIZE.
NOT_THERE = ("No module named 'comet_ml'", "CROSS_SIZE")
VERDICTS = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    "trial",
    [v for v in VERDICTS if not any(text in v["error"] for text in NOT_THERE)],
    ids=lambda v: v["rule"] + "-" + v["kind"],
)
def test_errors_are_what_the_gpu_refused(trial):
    known = {name: trial[name] for name in ("client_optimizer", "nodes", "model") if name in trial}
    findings = check(trial["config"], Context("raw", 1, versions={"deepspeed": "0.19.8"}, **known))
    errors = [finding.rule for finding in findings if finding.severity == ERROR]
    assert bool(errors) == (trial["verdict"] != "accepted"), (errors, trial["error"])
