"""What the planner says and what a GPU then shows, over a matrix of models, templates, lengths and batches.

    python benchmarks/plan_vs_measured.py --csv benchmarks/results/plan_vs_measured.csv       on a machine with GPUs
    python benchmarks/plan_vs_measured.py --csv FILE --compare                                anywhere, no GPU needed
    python benchmarks/plan_vs_measured.py --cpu --csv FILE                                    two ranks on the CPU
    python benchmarks/plan_vs_measured.py --quick                                             on CPU, smoke test

Every run is a real HF Trainer with a shipped template, in processes of its own; random weights, full rows of random
tokens, six steps. Recorded: the allocator's peaks over the steps after the second and their parts, the whole device's
use, the rank's own memory on the host, the median step and its parts. Every third case of the lists is held out: no
constant of the planner was fitted to it.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import time
from pathlib import Path

from plan_matrix import CASE, CPU, ONE_GPU, QUICK, REPO, TWO_GPUS, case_of, config_of, held_out, shape_of
from plan_measuring import Ranks, build_operators

sys.path.insert(0, str(REPO))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="append the rows here; with --compare, read them")
    parser.add_argument("--compare", action="store_true", help="hold today's planner against the rows of --csv")
    parser.add_argument("--plot", type=Path, help="draw the rows of --csv, predicted against measured, into this file")
    parser.add_argument("--quick", action="store_true", help="two tiny models on CPU")
    parser.add_argument("--cpu", action="store_true", help="the runs for two CPU ranks, in fp32")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--only", help="templates with this text in their name")
    parser.add_argument("--skip-done", type=Path, help="leave out cases with numbers in this file")
    parser.add_argument("--case-limit", type=float, default=100, help="seconds for one case")
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no run after this many seconds")
    options = parser.parse_args()
    if options.compare:
        return compare(options.csv)
    if options.plot:
        return plot(options.csv, options.plot)
    if options.cpu:
        options.ranks = 2
    cases = QUICK if options.quick else CPU if options.cpu else ONE_GPU if options.ranks == 1 else TWO_GPUS
    began = time.monotonic()
    cases = [case for case in cases if options.only is None or options.only in case[1]]
    if options.skip_done and options.skip_done.exists():
        done = {case_of(row) for row in read(options.skip_done)}
        cases = [case for case in cases if (*case, options.ranks) not in done]
    build_operators(cpu_adam=any("offload" in case[1] for case in cases))
    coming = [Ranks(case, options.ranks) for case in cases[:1]]
    for number, case in enumerate(cases):
        if time.monotonic() - began > options.limit:
            print(f"out of time before {case}")
            break
        # the next case's processes import their libraries while this one runs
        coming += [Ranks(case, options.ranks) for case in cases[number + 1 : number + 2]]
        row = dict(zip(CASE, case, strict=True)) | coming.pop(0).run(options.case_limit)
        print(f"{time.monotonic() - began:.0f} s", json.dumps(row), flush=True)
        if options.csv:
            append(options.csv, row)
    for left in coming:
        left.end()
    return 0


FIELDS = (*CASE, "ranks", "step_s", "gpu_allocated", "gpu_reserved", "gpu_device", "host_rss", "host_max_rss")
FIELDS += ("host_load_peak", "host_step_peak", "host_save_peak")
FIELDS += ("gpu_between", "gpu_forward", "gpu_after_forward", "gpu_backward", "gpu_step")
FIELDS += ("forward_s", "backward_s", "optimizer_s", "device", "date", "versions", "error")


def read(path: Path) -> list[dict]:
    """Rows that hold numbers."""
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["step_s"]]


def append(path: Path, row: dict) -> None:
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def compare(path: Path) -> int:
    """Print predicted against measured; every third row is held out of any fitting."""
    rows = read(path)
    ratios: dict[str, list[float]] = {}
    print(f"{'run':58} {'GPU (CPU: host) plan':>9} {'seen':>7} {'off':>7} {'host off':>9} {'step off':>9}")
    for row in rows:
        found = ratios_of(row)
        kind = "held out" if held_out(row) else "seen"
        for name, (planned, measured) in found.items():
            ratios.setdefault(f"{name}, {kind}", []).append(planned / measured - 1)
        case = f"{row['ranks']} x {' '.join(row[key] for key in CASE)}"
        first, off = next(iter(found.values())), [f"{planned / seen - 1:+9.1%}" for planned, seen in found.values()]
        print(f"{case:58} {first[0] / 2**30:9.2f} {first[1] / 2**30:7.2f} {' '.join(off)}")
    for name, values in sorted(ratios.items()):
        middle = statistics.median(abs(value) for value in values)
        print(f"{name}: median {middle:.1%} off, from {min(values):+.1%} to {max(values):+.1%}, {len(values)} runs")
    return 0


def plot(path: Path, picture: Path) -> int:
    """Three panels, one dot a run; held-out runs are hollow."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    rows = [(held_out(row), ratios_of(row)) for row in read(path) if row["device"] != "CPU"]
    titles = {"gpu": ("GPU peak [GiB]", 2**30), "host": ("host memory [GiB]", 2**30), "step": ("step [s]", 1)}
    for axes, (name, (title, unit)) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        for held, label in ((False, "seen"), (True, "held out")):
            planned, measured = zip(*(found[name] for is_held, found in rows if is_held == held), strict=True)
            x, y = [value / unit for value in measured], [value / unit for value in planned]
            axes.scatter(x, y, s=24, facecolors="none" if held else "tab:blue", edgecolors="tab:blue", label=label)
        ends = [bound(axes.get_xlim() + axes.get_ylim()) for bound in (min, max)]
        ends[0] = min(value / unit for _, found in rows for value in found[name]) * 0.9
        axes.plot(ends, ends, color="gray", linewidth=0.8)
        axes.set(title=title, xlabel="measured", ylabel="predicted", xscale="log", yscale="log")
        ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if ends[0] <= tick <= ends[1]]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.legend()
    figure.savefig(picture, dpi=80)
    return 0


def ratios_of(row: dict) -> dict[str, tuple[float, float]]:
    """Planned and measured: allocator's peak and host memory [bytes], step [s]."""
    from zerotune.planner.hardware import parse_gpus
    from zerotune.planner.host_phases import host_peak
    from zerotune.planner.memory import gpu_peak
    from zerotune.planner.models import read_model
    from zerotune.planner.run import Run, zero_of
    from zerotune.planner.timing import step_time

    shapes = read_model(shape_of(row["model"], int(row["seq"])), row["model"])
    liger, cpu = row["liger"] == "True", row["device"] == "CPU"
    planned = Run(
        shapes,
        parse_gpus(f"{row['ranks']}x{row['device'].removeprefix('NVIDIA ')}"),
        zero_of(config_of(row["template"]), shapes),
        precision="fp32" if cpu else "bf16",
        seq=int(row["seq"]),
        micro_batch=int(row["micro_batch"]),
        recompute=row["recompute"] == "True",
        fused_loss=liger,
        fused_kernels=liger,
        from_scratch=True,
    )
    host = host_peak(planned, "steady step").num_bytes
    if cpu:
        phases = {"load": "host_load_peak", "steady step": "host_step_peak", "save": "host_save_peak"}
        return {f"CPU {at}": (host_peak(planned, at).num_bytes, float(row[key])) for at, key in phases.items()}
    return {
        "gpu": (gpu_peak(planned, "steady step", allocated_only=True).num_bytes, float(row["gpu_allocated"])),
        "host": (host, float(row["host_rss"])),
        "step": (step_time(planned).seconds, float(row["step_s"])),
    }


if __name__ == "__main__":
    sys.exit(main())
