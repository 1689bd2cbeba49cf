"""What the host holds in each phase: on one rank, and on a node."""

from __future__ import annotations

from dataclasses import replace

from . import gpu_terms as gpu
from . import host_terms as host
from .memory import GRADS, WEIGHTS, Peak, terms_of, worst_moment
from .run import Run

AFTER_FIRST_STEP = ("steady step", "evaluation", "save")
HOST_STATES = (
    ("process", host.process_bytes),
    ("16-bit weights", host.host_param_bytes),
    ("blocks left from building", host.host_build_bytes),
    ("fp32 weights", host.host_master_bytes),
    ("fp32 gradients", host.host_grad_bytes),
    ("gradient buffer", host.host_grad_buffer_bytes),
    ("NVMe buffers", host.host_swap_bytes),
)
ON_THE_WAY = ("weights on their way", host.load_bytes)
SNAPSHOT = (
    ("snapshot for saving", host.snapshot_bytes),
    ("snapshot of the 16-bit weights", host.rank_0_snapshot_bytes),
)
HOST_MOMENTS = (("optimizer moments", host.host_optimizer_bytes),)


def host_peak(run: Run, phase: str = "steady step") -> Peak:
    """Host memory of one rank in a phase, the job's rank 0; on CPU ranks what a GPU would hold is in it."""
    moment, rows = host_rows(run, phase)
    if run.cluster.device.is_cpu:
        return _cpu_load(run) if phase == "load" else worst_moment(run, phase, rows)
    return Peak(phase, moment, terms_of(run, *rows))


def _cpu_load(run: Run) -> Peak:
    """Weights beside their flat copy, or later the engine's own; the host buffers of offload come with those."""
    flattening = (WEIGHTS[0], ("until the engine is built", gpu.init_bytes), HOST_STATES[0])
    built = (*WEIGHTS, *HOST_STATES, ("parameters' own partitions", host.unflattened_bytes))
    if run.zero.stage == 3:
        built = (*built, *GRADS, ("until the engine is built", gpu.init_bytes))
    moments = {"flattening": flattening, "engine built": built}
    peaks = [Peak("load", name, terms_of(run, *rows, ON_THE_WAY)) for name, rows in moments.items()]
    return max(peaks, key=lambda peak: peak.num_bytes)


def host_rows(run: Run, phase: str) -> tuple[str, tuple]:
    """Where a phase is worst, and its (name, function) rows."""
    if phase == "load":
        return "engine built", (*HOST_STATES, ON_THE_WAY)
    if phase == "export":
        return "writing a shard", (("one shard", host.export_bytes),)
    rows = (*HOST_STATES, *HOST_MOMENTS)
    if phase == "first step":
        return "optimizer step", rows
    rows = (*rows, *SNAPSHOT)
    if phase == "steady step":
        return "optimizer step", rows
    between = (*rows, ("blocks that malloc keeps", host.malloc_kept_bytes))
    if phase == "evaluation":
        return "forward", between
    return "writing", (*(rows if run.background_save else between), ("largest tensor", host.save_bytes))


def host_peak_bytes(run: Run) -> int:
    """Resident memory of one rank after a few steps."""
    return host_peak(run).num_bytes


def node_host_bytes(run: Run, phase: str) -> int:
    """All ranks of a node; the export is rank 0's work alone."""
    one = host_peak(run, phase).num_bytes
    if phase == "export":
        return one
    alone = host.rank_0_snapshot_bytes(run) if phase in AFTER_FIRST_STEP else 0
    return one * run.cluster.per_node - alone * (run.cluster.per_node - 1)


def settled(run: Run) -> Run:
    """Saving in the background where the node has the memory for it: else the saver itself writes in the foreground
    (checkpointing/background.py)."""
    limit = run.cluster.node_bytes
    if not run.background_save or limit is None:
        return run
    needed = max(node_host_bytes(run, phase) for phase in AFTER_FIRST_STEP)
    return run if needed <= limit else replace(run, background_save=False)
