"""The raw examples of every rule as trials, and what a GPU said to those that a CPU cannot judge.

python -m tests.engine.rule_trials > trials.jsonl
python -m tests.engine.trials trials.jsonl 6 > verdicts.jsonl           (on a machine with a GPU)
python -m tests.engine.rule_trials --merge trials.jsonl verdicts.jsonl > tests/cases/gpu_verdicts.jsonl
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from zerotune.ds_config.rules import all_rules

# Depends on the program: fp16.auto_cast breaks float inputs, and leaves token ids alone.
BY_PROGRAM = {"ZT417"}


def examples() -> list[dict]:
    """Those that one rank of the installed engine can try."""
    found = []
    for rule in all_rules().values():
        for kind in ("bad", "good"):
            for case in getattr(rule, kind):
                context = dict(case.context)
                if "versions" in context:  # about another engine than the installed one
                    continue
                alone = context.pop("world_size", 1) == 1 and not context.get("zero_init")
                if context.pop("entry", "trainer") == "raw" and alone and isinstance(case.source, dict):
                    found.append({"rule": rule.id, "kind": kind, "config": case.full(), **context})
    return [trial for trial in found if trial["rule"] not in BY_PROGRAM]


def main() -> None:
    if sys.argv[1:2] != ["--merge"]:
        print("\n".join(json.dumps(trial) for trial in examples()))
        return
    trials, verdicts = (Path(name).read_text(encoding="utf-8").splitlines() for name in sys.argv[2:4])
    for trial, verdict in zip(trials, verdicts, strict=True):
        answer = json.loads(verdict)
        print(json.dumps({**json.loads(trial), "verdict": answer["verdict"], "error": answer["error"][:160]}))


if __name__ == "__main__":
    main()
