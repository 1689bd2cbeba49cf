"""Checks the log of public configs again: python tests/cases/replay_public.py FOLDER

FOLDER/REPO/PATH are the files of public.tsv, fetched by whoever replays; they are not committed. Each is judged with
the entry of its row and the versions below. Prints rows that no longer hold; exit code 1 when there are any.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

LOG = Path(__file__).with_name("public.tsv")
VERSIONS = "deepspeed=0.19.8,transformers=5.24.0,accelerate=1.15.0,tensorboard=2.20,wandb=0.22"


def rows() -> list[dict[str, str]]:
    with LOG.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def judged(files: list[Path], entry: str) -> list[tuple[str, str]]:
    """Verdict and error rules of each file: clean (notes at most), warnings or errors."""
    options = ["validate", "--entry", entry, "--versions", VERSIONS, "--format", "json"]
    run = subprocess.run(["zerotune-config", *options, *map(str, files)], capture_output=True, text=True)
    verdicts = []
    for file in json.loads(run.stdout)["files"]:
        found = {finding["severity"] for finding in file["findings"]}
        worst = next((kind for kind in ("error", "warning") if kind in found), None)
        rules = sorted({finding["rule"] for finding in file["findings"] if finding["severity"] == "error"})
        verdicts.append((f"{worst}s" if worst else "clean", " ".join(rules)))
    return verdicts


def changed(folder: Path) -> list[str]:
    """Rows whose file is missing or judged otherwise than they say."""
    groups, lines = defaultdict(list), []
    for row in rows():
        if (folder / row["repo"] / row["path"]).is_file():
            groups[row["entry"]].append(row)
        else:
            lines.append(f"{row['repo']}/{row['path']}: not in {folder}")
    for entry, group in groups.items():
        files = [folder / row["repo"] / row["path"] for row in group]
        for row, verdict in zip(group, judged(files, entry), strict=True):
            logged = (row["verdict"], row["error_rules"])
            if logged != verdict:
                lines.append(f"{row['repo']}/{row['path']}: logged {logged}, now {verdict}")
    return lines


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/cases/replay_public.py FOLDER")
    differences = changed(Path(sys.argv[1]))
    print("\n".join(differences) or f"{len(rows())} rows hold")
    sys.exit(bool(differences))
