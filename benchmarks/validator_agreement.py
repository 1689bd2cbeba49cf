"""The validator's verdict against a real engine's, on random configs near the rules' borders.

    python benchmarks/validator_agreement.py --n 5000 --seed 7 --jobs 14 --csv benchmarks/results/validator_agreement.csv

A quarter of the configs go through a real HF Trainer, the others through deepspeed.initialize; each in a process of
its own on one CPU rank. Prints every disagreement with the smallest config that still shows it; ends with 1 when there
is one. What a CPU cannot show is counted by its reason (tests/engine/trials.py, CPU_CANNOT_SHOW) and not compared.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.engine.agreement import Tally, ask_engine, compare

PACKAGES = ("deepspeed", "torch", "transformers", "accelerate")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=150, help="configs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--csv", type=Path, help="append a row here")
    parser.add_argument("--limit", type=float, default=float("inf"), help="stop after this many seconds")
    parser.add_argument("--no-shrink", action="store_true", help="print disagreements as drawn")
    parser.add_argument("--log", type=Path, help="write every config and the engine's answer here, a line each")
    parser.add_argument("--replay", type=Path, help="hold the validator against such a file; starts no engine")
    options = parser.parse_args()
    began, shown, tally = time.monotonic(), 0, Tally()
    answers = replayed(options.replay) if options.replay else ask_engine(options.n, options.seed, options.jobs)
    if options.log:
        answers = logged(answers, options.log)
    for tally in compare(answers, not (options.no_shrink or options.replay)):
        for text in tally.disagreements[shown:]:
            print(text, flush=True)
        shown = len(tally.disagreements)
        if time.monotonic() - began > options.limit:
            break
    row = summary(tally, options.seed, time.monotonic() - began)
    print(", ".join(f"{name} {value}" for name, value in row.items()))
    for reason, count in tally.left_out.most_common():
        print(f"  not compared: {count} x {reason!r}")
    if options.csv:
        append(options.csv, row)
    return 1 if tally.disagreements else 0


def logged(answers: Iterable[tuple[dict, dict]], path: Path) -> Iterator[tuple[dict, dict]]:
    with path.open("w", encoding="utf-8") as file:
        for pair in answers:
            print(json.dumps(pair), file=file, flush=True)
            yield pair


def replayed(path: Path) -> Iterator[tuple[dict, dict]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        trial, answer = json.loads(line)
        yield trial, answer


def summary(tally: Tally, seed: int, seconds: float) -> dict:
    by_entry = {f"{entry}_{verdict}": count for (entry, verdict), count in sorted(tally.verdicts.items())}
    return {
        "date": datetime.date.today().isoformat(),
        "configs": tally.verdicts.total(),
        "seed": seed,
        "disagreements": len(tally.disagreements),
        "refused": tally.refused,
        "not_compared": tally.left_out.total(),
        "verdicts": " ".join(f"{name}={count}" for name, count in by_entry.items()),
        "seconds": round(seconds),
        "versions": " ".join(f"{package}={version(package)}" for package in PACKAGES),
    }


def append(path: Path, row: dict) -> None:
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    sys.exit(main())
