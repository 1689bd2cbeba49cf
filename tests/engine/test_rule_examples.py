"""Every raw example of every rule on a real engine: an error-level finding is refused there, anything else runs.

One process on one CPU rank, a fork per example. Examples that need several ranks or a GPU are left to others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deepspeed")

from tests.engine.rule_trials import examples
from tests.engine.trials import CPU_CANNOT_SHOW
from zerotune.ds_config import Context, check
from zerotune.ds_config.finding import ERROR

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory) -> list[tuple[dict, dict]]:
    trials = examples()
    path = tmp_path_factory.mktemp("trials") / "trials.jsonl"
    path.write_text("".join(json.dumps(trial) + "\n" for trial in trials))
    command = [sys.executable, "-m", "tests.engine.trials", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=900)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(trials), done.stderr[-2000:]
    return list(zip(trials, answers, strict=True))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_engine_agrees_with_every_example(verdicts):
    wrong = []
    for trial, answer in verdicts:
        context = {name: trial[name] for name in ("client_optimizer", "nodes", "versions", "model") if name in trial}
        errors = [f.rule for f in check(trial["config"], Context("raw", 1, **context)) if f.severity == ERROR]
        refused = answer["verdict"] != "accepted"
        if refused != bool(errors) and not any(text in answer["error"] for text in CPU_CANNOT_SHOW):
            wrong.append(
                f"{trial['rule']} {trial['kind']}: {answer['verdict']} {answer['error'][:120]}; errors {errors}"
            )
    assert wrong == []
