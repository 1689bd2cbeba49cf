"""A picture of a plan: memory of each phase by term, against what the device has."""

from __future__ import annotations

from pathlib import Path

from zerotune.errors import UsageError

from .plan import Plan
from .plan_text import stage

GIB = 2**30


def plot(plan: Plan, path: Path) -> None:
    """Write stacked bars of one GPU and of one node's host memory.

    Raises:
        UsageError: matplotlib isn't there, or the file can't be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install 'zerotune[plot]'") from None
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    run = plan.run
    if run.cluster.device.is_cpu:
        _bars(figure.subplots(), plan.host, None, "host memory of rank 0")
    else:
        left, right = figure.subplots(1, 2)
        _bars(left, plan.gpu, run.cluster.device.memory_bytes, f"one GPU ({run.cluster.device.name})")
        _bars(right, plan.host, None, "host memory of rank 0")
    figure.suptitle(f"{run.shapes.name} on {run.cluster}, {stage(run)}, {run.seq} x {run.micro_batch}")
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as problem:
        raise UsageError(f"--plot {path} can't be written: {problem}") from None


def _bars(axes, peaks, limit: int | None, title: str) -> None:
    import matplotlib

    phases = [peak.phase.replace(" ", "\n") for peak in peaks]
    names = list(dict.fromkeys(term.name for peak in peaks for term in peak.terms))
    colours = matplotlib.colormaps["tab20"]
    bottoms = [0.0] * len(peaks)
    for place, name in enumerate(names):
        heights = [sum(term.num_bytes for term in peak.terms if term.name == name) / GIB for peak in peaks]
        axes.bar(phases, heights, bottom=bottoms, label=name, color=colours(place % 20))
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    if limit:
        axes.axhline(limit / GIB, color="black", linestyle="--", linewidth=1, label="the device's memory")
    axes.set(title=title, ylabel="GiB")
    axes.legend(fontsize=6.5, loc="upper right", ncols=3, framealpha=1)
    axes.set_ylim(0, 1.5 * max([*bottoms, (limit or 0) / GIB]))
