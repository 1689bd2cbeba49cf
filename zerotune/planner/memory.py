"""Terms put together: what is held at each moment of each phase, and the worst moment of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from . import activations as act
from . import gpu_terms as gpu
from . import host_terms as host
from .run import Run

PHASES = ("load", "first step", "steady step", "evaluation", "save", "export")
AFTER_FIRST_STEP = ("steady step", "evaluation", "save")
GPU, HOST = "gpu", "host"


@dataclass(frozen=True)
class Term:
    """`name`: what it is, in words. `function`: whose docstring has formula and source."""

    name: str
    num_bytes: int
    function: str


@dataclass(frozen=True)
class Peak:
    """The worst moment of a phase in one kind of memory: where it is, and what it is made of."""

    phase: str
    moment: str
    terms: tuple[Term, ...]

    @property
    def num_bytes(self) -> int:
        return sum(term.num_bytes for term in self.terms)


def _terms(run: Run, *rows: tuple[str, Callable[[Run], int]]) -> tuple[Term, ...]:
    made = [Term(name, int(function(run)), function.__name__) for name, function in rows]
    return tuple(term for term in made if term.num_bytes)


WEIGHTS = (
    ("weights", gpu.param_bytes),
    ("second weight partition (hpZ)", gpu.secondary_param_bytes),
    ("fp32 weights", gpu.master_bytes),
    ("cuBLAS workspaces", gpu.workspace_bytes),
)
MOMENTS = (("optimizer moments", gpu.optimizer_bytes),)
LIVE = (("gathered weights", gpu.live_param_bytes),)
GRADS = (("gradients", gpu.grad_partition_bytes),)
REDUCED = (("reduced gradients", gpu.reduced_copy_bytes),)
TO_HOST = (("gradient to the host", gpu.offload_grad_bytes),)
BUCKETS = (("reduce buckets", gpu.reduce_bucket_bytes), *TO_HOST)
OUTSIDE = (
    ("allocator rounding", gpu.rounding_bytes),
    ("CUDA context", gpu.context_bytes),
    ("NCCL buffers", gpu.nccl_bytes),
)


def _between(run: Run) -> tuple:
    """Gradients that outlive a backward pass: stage 3's always, others while micro batches are accumulated."""
    if run.zero.stage == 3 or run.accumulation > 1:
        return GRADS
    return ()


def _kept_buckets(run: Run) -> tuple:
    """Below stage 3 the first gradient's hook makes them (stage_1_and_2.py:2287), after the loss's own peak. In the one
    fp32 run measured the loss held 1 GiB more than its terms, not explained yet: there the buckets stay counted in."""
    return BUCKETS if run.zero.stage == 3 else TO_HOST


def backward_activation_bytes(run: Run) -> int:
    """Activations left when the first bucket is full and the gradient buffer is made: layers free theirs in turn.
    All of them where no buffer is still to come: at stage 3 it is there from the start, offload keeps it on the host."""
    if run.zero.stage == 3 or run.zero.cpu_optimizer or run.cluster.device.is_cpu:  # malloc keeps what is freed there
        return act.activation_bytes(run)
    share = run.zero.reduce_bucket_size / max(1, run.shapes.num_trainable)
    return int(act.activation_bytes(run) * max(0.0, 1.0 - share))


def _step_moments(run: Run, moments: tuple) -> dict[str, tuple]:
    resident = (*WEIGHTS, *moments)
    return {
        "loss": (
            *resident,
            *LIVE,
            *_between(run),
            *(BUCKETS if run.precision == "fp32" else _kept_buckets(run)),
            ("activations", act.activation_bytes),
            ("logits and loss", act.logits_bytes),
        ),
        "first gradient": (
            *resident,
            *LIVE,
            *_between(run),
            *BUCKETS,
            ("activations", act.activation_bytes),
            ("output matrix's gradients", act.first_gradient_bytes),
        ),
        "backward": (
            *resident,
            *LIVE,
            *GRADS,
            *REDUCED,
            *(_between(run) if run.zero.stage == 2 else ()),
            *BUCKETS,
            ("reduce-scatter copy", gpu.reduce_scatter_bytes),
            ("gloo's copy", gpu.gloo_bytes),
            ("gradient in fp32 for the host", gpu.offload_upcast_bytes),
            ("activations", backward_activation_bytes),
            ("recomputed layer", act.recomputed_layer_bytes),
            ("one layer's gradients", act.backward_working_bytes),
        ),
        "optimizer step": (
            *WEIGHTS,
            *MOMENTS,
            *LIVE,
            *GRADS,
            *REDUCED,
            *_kept_buckets(run),
            ("fp32 gradients of the step", gpu.step_grad_bytes),
        ),
    }


def gpu_moments(run: Run, phase: str) -> dict[str, tuple]:
    """Every moment of a phase with its (name, function) rows, allocator's memory only."""
    if phase == "load":
        return {"engine built": (*WEIGHTS, ("until the engine is built", gpu.init_bytes))}
    if phase == "first step":
        return _step_moments(run, ())
    if phase == "steady step":
        return _step_moments(run, MOMENTS)
    between = (*WEIGHTS, *MOMENTS, *_kept_buckets(run), *(GRADS if run.zero.stage == 3 else ()))
    if phase == "evaluation":
        rows = (
            ("logits", act.evaluation_logits_bytes),
            ("one layer's activations", act.backward_working_bytes),
        )
        return {"forward": (*between, *LIVE, *rows)}
    if phase == "save" and run.background_save:  # training goes on
        return _step_moments(run, MOMENTS)
    return {"writing": between} if phase == "save" else {"no GPU used": ()}


def gpu_peak(run: Run, phase: str = "steady step", allocated_only: bool = False) -> Peak:
    """The worst moment of a phase on one GPU; nothing where ranks run on the CPU (`host_peak` has it).

    Args:
        allocated_only: leave out what torch.cuda.max_memory_allocated() doesn't see.
    """
    if run.cluster.device.is_cpu:
        return Peak(phase, "no GPU", ())
    outside = () if allocated_only or phase == "export" else OUTSIDE
    return _worst_moment(run, phase, outside)


def _worst_moment(run: Run, phase: str, further: tuple) -> Peak:
    peaks = [Peak(phase, moment, _terms(run, *rows, *further)) for moment, rows in gpu_moments(run, phase).items()]
    return max(peaks, key=lambda peak: peak.num_bytes)


def gpu_peak_bytes(run: Run) -> int:
    """What max_memory_allocated() should show after a few steps."""
    phases = ("load", "first step", "steady step")
    return max(gpu_peak(run, phase, allocated_only=True).num_bytes for phase in phases)


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
        return _cpu_load(run) if phase == "load" else _worst_moment(run, phase, rows)
    return Peak(phase, moment, _terms(run, *rows))


def _cpu_load(run: Run) -> Peak:
    """Weights beside their flat copy, or later the engine's own; the host buffers of offload come with those."""
    flattening = (WEIGHTS[0], ("until the engine is built", gpu.init_bytes), HOST_STATES[0])
    built = (*WEIGHTS, *HOST_STATES, ("parameters' own partitions", host.unflattened_bytes))
    if run.zero.stage == 3:
        built = (*built, *GRADS, ("until the engine is built", gpu.init_bytes))
    moments = {"flattening": flattening, "engine built": built}
    peaks = [Peak("load", name, _terms(run, *rows, ON_THE_WAY)) for name, rows in moments.items()]
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
