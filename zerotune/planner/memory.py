"""Terms put together: what a GPU holds at each moment of each phase, and the worst moment of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import activations as act
from . import gpu_terms as gpu
from .run import Run

PHASES = ("load", "first step", "steady step", "evaluation", "save", "export")


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


def terms_of(run: Run, *rows: tuple[str, Callable[[Run], int]]) -> tuple[Term, ...]:
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
    return worst_moment(run, phase, outside)


def worst_moment(run: Run, phase: str, further: tuple) -> Peak:
    peaks = [Peak(phase, moment, terms_of(run, *rows, *further)) for moment, rows in gpu_moments(run, phase).items()]
    return max(peaks, key=lambda peak: peak.num_bytes)


def gpu_peak_bytes(run: Run) -> int:
    """What max_memory_allocated() should show after a few steps."""
    phases = ("load", "first step", "steady step")
    return max(gpu_peak(run, phase, allocated_only=True).num_bytes for phase in phases)
