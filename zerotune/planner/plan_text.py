"""A plan for eyes and for programs."""

from __future__ import annotations

from .plan import ERROR_BAND, LEFT_OUT, Plan, amount, duration, rooms
from .run import Run


def as_text(plan: Plan, tokens: float | None = None) -> str:
    """Verdict first, then the worst GPU moment by term, every phase, the step by term, disk, and what isn't known."""
    lines = [headline(plan), "", *_worst(plan), "", *_phases(plan), "", *_step(plan, tokens), "", *_disk(plan)]
    return "\n".join([*lines, "", f"error band: {ERROR_BAND}", f"left out: {'; '.join(LEFT_OUT)}"])


def headline(plan: Plan) -> str:
    run, verdict = plan.run, plan.verdict
    fits = "does not fit" if not verdict.fits else "fits, barely" if verdict.near else "fits"
    about = f"{run.shapes.name} ({run.shapes.num_params / 1e9:.2f}B) on {run.cluster}"
    rest = f"{run.precision}, {run.seq} x {run.micro_batch}" + (", recompute" if run.recompute else "")
    return f"{fits}: {about}, {stage(run)}, {rest}\n  {verdict.why}"


def briefly(plan: Plan) -> list[str]:
    """The plan in three lines, for a job's log."""
    verdict, step, run = plan.verdict, plan.step, plan.run
    fits = "fits" if verdict.fits else "does not fit"
    close = ", within the error band" if verdict.near else ""
    needs = "; ".join(
        f"{amount(one.needed)} of {amount(one.there)} of {one.whose} ({one.where})" for one in rooms(plan)
    )
    guess = ", a rough guess on a CPU" if run.cluster.device.is_cpu else ""
    speed = f"{duration(step.seconds)} a step, {step.tokens_per_s:,.0f} tokens/s, bound by {step.bound_by}{guess}"
    return [
        f"{fits}{close}: {run.shapes.num_params / 1e9:.3g}B on {run.cluster}, {stage(run)}",
        f"needs {needs or 'an unknown amount'}",
        f"{speed}; {amount(plan.checkpoint_bytes)} of disk a checkpoint",
    ]


def shortage(plan: Plan, rank: int) -> str:
    """Which memory is too small, and what fills it on one rank, by term."""
    room = next(one for one in rooms(plan) if one.short and not one.near)
    peak, share = plan.gpu_worst, ""
    if room.host:
        peak = next(one for one in plan.host if one.phase == plan.host_worst[0])
        share = f", one of {plan.run.cluster.per_node} on a node,"
    there = f"{amount(room.needed)} needed, {amount(room.there)} there, and the plan is {room.band:.0%} off at most"
    return "\n".join([f"{room} ({there}). Rank {rank}{share} would hold", *_rows(peak.terms)])


def stage(run: Run) -> str:
    """Stage and what is offloaded where, in words."""
    moved = (("optimizer", run.zero.offload_optimizer), ("weights", run.zero.offload_param))
    words = [f"stage {run.zero.stage}", *(f"{word} on {where}" for word, where in moved if where != "none")]
    return ", ".join([*words, str(run.degrees)] if str(run.degrees) else words)


def _rows(terms, width: int = 34) -> list[str]:
    return [f"    {term.name:<{width}}{amount(term.num_bytes):>12}" for term in terms]


def _worst(plan: Plan) -> list[str]:
    worst, lines = plan.gpu_worst, []
    if not plan.run.cluster.device.is_cpu:
        lines = [
            f"GPU, worst moment: {worst.phase}, {worst.moment}: {amount(worst.num_bytes)} a rank",
            *_rows(worst.terms),
        ]
    phase, _ = plan.host_worst
    peak = next(one for one in plan.host if one.phase == phase)
    lines += [f"host, worst phase: {phase}: {amount(peak.num_bytes)} on rank 0", *_rows(peak.terms)]
    return lines


def _phases(plan: Plan) -> list[str]:
    device, host = plan.run.cluster.device, plan.run.cluster.node_bytes
    limit = 0 if device.is_cpu else device.memory_bytes
    lines = [f"{'phase':<14}{'GPU a rank':>12}{'host rank 0':>13}{'host a node':>13}"]
    for gpu_peak, host_peak in zip(plan.gpu, plan.host, strict=True):
        sizes = (gpu_peak.num_bytes, host_peak.num_bytes, plan.node_host[gpu_peak.phase])
        lines.append(f"{gpu_peak.phase:<14}{amount(sizes[0]):>12}{amount(sizes[1]):>13}{amount(sizes[2]):>13}")
    lines.append(f"{'there is':<14}{amount(limit):>12}{'':>13}{amount(host) if host else 'unknown':>13}")
    return lines


def _step(plan: Plan, tokens: float | None) -> list[str]:
    step = plan.step
    lines = [f"step: {duration(step.seconds)}, {step.tokens_per_s:,.0f} tokens/s over all ranks"]
    lines += [f"    {term.name:<34}{duration(term.seconds):>12}  {_lane(term.lane)}" for term in step.terms]
    if tokens:
        lines.append(f"    {tokens:,.0f} tokens take {duration(plan.wall_s(tokens))}")
    return lines


def _lane(lane: str) -> str:
    return "after the others" if lane == "after" else f"[{lane}] at the same time as other lanes"


def _disk(plan: Plan) -> list[str]:
    how = "background" if plan.run.background_save else "foreground"
    disk = f"{amount(plan.checkpoint_bytes)} a checkpoint, {amount(plan.export_bytes)} the exported model"
    return [f"disk: {disk}; saving in the {how}"]


def as_dict(plan: Plan, tokens: float | None = None) -> dict:
    """Numbers in bytes and seconds, for --format json."""
    verdict, run = plan.verdict, plan.run
    made = {
        "fits": verdict.fits,
        "near": verdict.near,
        "why": verdict.why,
        "model": run.shapes.name,
        "parameters": run.shapes.num_params,
        "trainable": run.shapes.num_trainable,
        "gpus": str(run.cluster),
        "stage": run.zero.stage,
        "device_bytes": run.cluster.device.memory_bytes,
        "gpu": {peak.phase: _peak(peak) for peak in plan.gpu},
        "host": {peak.phase: {**_peak(peak), "node_bytes": plan.node_host[peak.phase]} for peak in plan.host},
        "step_s": plan.step.seconds,
        "tokens_per_s": plan.step.tokens_per_s,
        "step_terms": [
            {"name": term.name, "seconds": term.seconds, "lane": term.lane, "function": term.function}
            for term in plan.step.terms
        ],
        "checkpoint_bytes": plan.checkpoint_bytes,
        "export_bytes": plan.export_bytes,
        "error_band": ERROR_BAND,
        "left_out": list(LEFT_OUT),
    }
    return made | ({"tokens": tokens, "wall_s": plan.wall_s(tokens)} if tokens else {})


def _peak(peak) -> dict:
    terms = [{"name": term.name, "bytes": term.num_bytes, "function": term.function} for term in peak.terms]
    return {"moment": peak.moment, "bytes": peak.num_bytes, "terms": terms}
