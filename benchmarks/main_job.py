"""Run the main job on this machine in several forms and write down what it printed.

    python benchmarks/main_job.py --csv benchmarks/results/main_job.csv            on a GPU
    python benchmarks/main_job.py --quick --csv /tmp/main_job.csv                  on CPU, tiny models, smoke test

Each row: the median over the logged records after the first two, of a whole `train.py` job under the deepspeed
launcher: tokens/s over all ranks, MFU (6 N + 6 L h s, dense bf16 peak), peak device memory, host memory.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
LLAMA_1B = (
    "hidden_size=2048,intermediate_size=5632,num_hidden_layers=22,num_attention_heads=32,num_key_value_heads=4,"
    "tie_word_embeddings=false"
)
TINY = "hidden_size=64,intermediate_size=128,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=2"
COMMON = ("--report_to", "none", "--logging_steps", "5", "--overwrite_output_dir")
BIG = ("--config_overrides", LLAMA_1B, "--vocab_size", "32000", "--max_seq_length", "2048", "--save_strategy", "no")
# name -> flags; --export False where only speed is asked for
VARIANTS = {
    "default job, stage3_offload": ("--ds", "stage3_offload"),
    "1.1B, stage2, 2048 x 8": (
        "--ds",
        "stage2",
        *BIG,
        "--max_steps",
        "40",
        "--export",
        "False",
        "--eval_strategy",
        "no",
    ),
    "1.1B, stage3_offload, 2048 x 8": ("--ds", "stage3_offload", *BIG, "--max_steps", "30", "--eval_strategy", "no"),
    "1.1B, stage2, 2048 x 16, Liger": (
        *("--ds", "stage2", *BIG, "--max_steps", "40", "--export", "False", "--eval_strategy", "no"),
        *("--use_liger_kernel", "--per_device_train_batch_size", "16"),
    ),
    "default model, stage2, fp16": ("--ds", "stage2", "--fp16", "--max_steps", "40", "--export", "False"),
    "default model, stage1, fp32": ("--ds", "stage1", "--bf16", "False", "--max_steps", "20", "--export", "False"),
    "default model, stage3": ("--ds", "stage3", "--max_steps", "40", "--export", "False"),
}
QUICK = ("--config_overrides", TINY, "--max_seq_length", "64", "--max_steps", "20", "--vocab_size", "1024")


def run(name: str, flags: tuple[str, ...], num_gpus: int, folder: Path, limit_s: int) -> dict:
    """One job in processes of its own; returns its row, with `error` set when it failed."""
    out = folder / "".join(char if char.isalnum() else "_" for char in name)
    launcher = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(num_gpus)]
    command = [*launcher, str(REPO / "zerotune" / "train.py"), *COMMON, *flags, "--output_dir", str(out)]
    print(f"== {name}\n{' '.join(command)}", flush=True)
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=REPO, start_new_session=True)
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        code = f"over {limit_s} s"
        os.killpg(process.pid, signal.SIGKILL)  # the launcher's children too: they hold the port and the GPU
    row = {"variant": name, "ranks": num_gpus, "job_s": round(time.monotonic() - started, 1), "exit_code": code}
    return row | (_medians(out) if code == 0 else {})


def _medians(out: Path) -> dict:
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steady = [row for row in records if "loss" in row][2:]
    keys = ("tokens_per_s", "all_tokens_per_s", "mfu", "device_peak_gib", "host_rss_gib")
    medians = {key: statistics.median(row[key] for row in steady) for key in keys if steady and key in steady[0]}
    results = json.loads((out / "train_results.json").read_text())
    kept = {key: results[key] for key in ("steps", "train_loss", "eval_loss", "train_seconds") if key in results}
    return medians | kept


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--csv", type=Path, required=True)
    flags.add_argument("--folder", type=Path, default=Path("/tmp/zerotune_main_job"))
    flags.add_argument("--num_gpus", type=int, default=1)
    flags.add_argument("--limit_s", type=int, default=200, help="for each job")
    flags.add_argument("--quick", action="store_true", help="tiny models, two variants")
    flags.add_argument("--only", help="variants whose name contains this")
    given = flags.parse_args()
    chosen = {name: flags for name, flags in VARIANTS.items() if not given.only or given.only in name}
    if given.quick:
        chosen = {f"quick, {ds}": ("--ds", ds, *QUICK) for ds in ("stage2", "stage3_offload")}
    rows = []
    for name, options in chosen.items():
        rows.append(run(name, options, given.num_gpus, given.folder, given.limit_s))
        print(json.dumps(rows[-1]), flush=True)
        write(given.csv, rows)


def write(path: Path, rows: list[dict]) -> None:
    """Write all rows so far, with versions, device and date in each."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    about = {"date": datetime.date.today().isoformat(), "device": device}
    about |= {name: version(name) for name in ("torch", "deepspeed", "transformers")}
    columns = list(dict.fromkeys(key for row in rows for key in row)) + list(about)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(row | about for row in rows)


if __name__ == "__main__":
    main()
