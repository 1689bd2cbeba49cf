"""The fastest plans with tensor, sequence or expert parallelism, for programs that run them: train.py runs none of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zerotune.errors import UsageError

from .degrees import Degrees, check_degrees
from .run import Run, Zero
from .search import Candidate, best

SIZES = (2, 4, 8)
# Seen on CPU ranks with DeepSpeed 0.19.8, transformers 5.24, accelerate 1.15.
WHY_NO_COMMAND = {
    "tensor": '"tensor_parallel": {"autotp_size": N} trains under train.py, but the export refuses sliced checkpoints',
    "sequence": 'train.py has no flag for it: accelerate\'s ParallelismConfig(sp_size=N, sp_backend="deepspeed") has',
    "expert": "DeepSpeed 0.19.8 stops with a TypeError under transformers 5.24 (auto_ep_presets/base.py:326)",
}


def kind(degrees: Degrees) -> str | None:
    """Which of the three is above 1."""
    return next((name for name in WHY_NO_COMMAND if getattr(degrees, name) > 1), None)


def options(base: Run) -> Iterator[Degrees]:
    """Every degree inside a node that divides what it shares."""
    for name in WHY_NO_COMMAND:
        for size in SIZES:
            degrees = Degrees(**{name: size})
            try:
                check_degrees(degrees, base.shapes, base.world, base.seq)
            except UsageError:
                continue
            if size <= base.cluster.per_node and not (name == "sequence" and base.masked):
                yield degrees


def accepted(name: str, zero: Zero) -> bool:
    """Does DeepSpeed run it with this template? Tensor parallelism was tried without offload only; of experts under
    stage 3 it can't write every kind of checkpoint (runtime/engine.py:5626)."""
    moved = zero.cpu_optimizer or zero.cpu_params
    return name == "sequence" or (not moved and (name == "tensor" or zero.stage < 3))


def fastest_of_each_kind(base: Run, templates: dict[str, Zero]) -> list[Candidate]:
    """The fastest that fits of each of the three kinds, in order of speed."""
    found: dict[str, Candidate] = {}
    for degrees in options(base):
        name = kind(degrees)
        known = {ds: zero for ds, zero in templates.items() if accepted(name, zero)}
        for one in best(replace(base, degrees=degrees), known)[:1]:
            if name not in found or one.tokens_per_s > found[name].tokens_per_s:
                found[name] = one
    return sorted(found.values(), key=lambda one: -one.tokens_per_s)
