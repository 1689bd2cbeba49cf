"""Other configs every day: the validator's verdict against a real engine's.

The benchmark prints every disagreement with the smallest config that shows it; the seed is the date, so a failure can
be repeated with the line that is printed.
"""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("deepspeed")

ROOT = Path(__file__).resolve().parents[2]
CASES = 150


@pytest.mark.slow
@pytest.mark.timeout(1800)  # the first test of a session waits for the operators
def test_no_config_divides_validator_and_engine():
    seed = datetime.date.today().strftime("%Y%m%d")
    command = [sys.executable, "benchmarks/validator_agreement.py", "--n", str(CASES), "--seed", seed, "--jobs", "2"]
    print("+", *command[1:])
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=dict(os.environ), timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert f"configs {CASES}, seed {seed}, disagreements 0" in done.stdout
