"""Verdicts of DeepSpeed 0.19.8 on CPU ranks, written down, against ours: no false alarm, nothing missed.

A trial with `surroundings` was refused for a reason outside the config.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerotune.ds_config import Context, check, has_errors

FILE = Path(__file__).resolve().parents[2] / "cases" / "engine_trials.jsonl"
TRIALS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial["name"])
def test_verdict(trial):
    known = {name: trial[name] for name in ("training_args", "client_optimizer", "zero_init") if name in trial}
    findings = check(trial["config"], Context(trial["entry"], trial["world_size"], **known))
    refused = trial["verdict"] != "accepted" and "surroundings" not in trial
    assert has_errors(findings) == refused, (trial["verdict"], trial.get("error"), [f.message for f in findings])
