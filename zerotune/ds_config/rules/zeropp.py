"""ZT71x: ZeRO++: quantised communication and a second partition per node."""

from __future__ import annotations

from ..finding import ERROR, WARNING, Fix
from .communication import STAGE3, ZERO, raw, zero
from .rule import Hit, rule


@rule(
    "ZT710",
    "quantized-gradients-reduce",
    ERROR,
    keys=("zero_optimization.zero_quantized_gradients", "zero_optimization.reduce_scatter"),
    message="zero_quantized_gradients needs reduce_scatter",
    help="delete reduce_scatter false",
    source=f"{STAGE3}:390",
    bad=[raw(zero(3, zero_quantized_gradients=True, reduce_scatter=False))],
    good=[raw(zero(3, zero_quantized_gradients=True))],
)
def quantized_gradients_reduce(view):
    """An assertion when the engine is built (e021)."""
    scatter = view.flag("zero_optimization.reduce_scatter", True)
    if view.stage == 3 and view.flag("zero_optimization.zero_quantized_gradients") and not scatter:
        yield Hit(f"{ZERO}/zero_quantized_gradients", fix=Fix("set", f"{ZERO}/reduce_scatter", True))


@rule(
    "ZT711",
    "quantized-gradients-one-node",
    WARNING,
    keys=("zero_optimization.zero_quantized_gradients",),
    message="zero_quantized_gradients does nothing on one node",
    help="delete it",
    source=f"{STAGE3}:1928",
    bad=[raw(zero(3, zero_quantized_gradients=True), nodes=1)],
    good=[raw(zero(3, zero_quantized_gradients=True), nodes=2)],
)
def quantized_gradients_one_node(view):
    """It is logged as used, and the norm is bit for bit that of a run without (e019)."""
    if view.stage == 3 and view.context.nodes == 1 and view.flag("zero_optimization.zero_quantized_gradients"):
        yield Hit(f"{ZERO}/zero_quantized_gradients", at_key=True)


@rule(
    "ZT712",
    "hpz-larger-than-world",
    WARNING,
    keys=("zero_optimization.zero_hpz_partition_size",),
    message="zero_hpz_partition_size {value} is more than the {world} ranks: it is cut to {world}",
    help="write the number of GPUs of a node",
    source="deepspeed 0.19.8 utils/groups.py",
    bad=[raw(zero(3, zero_hpz_partition_size=8), world_size=4)],
    good=[raw(zero(3, zero_hpz_partition_size=4), world_size=8)],
)
def hpz_larger_than_world(view):
    """Cut silently (e014, e016)."""
    size, world = view.number("zero_optimization.zero_hpz_partition_size"), view.context.world_size
    if view.stage == 3 and size and world and size > world:
        yield Hit(f"{ZERO}/zero_hpz_partition_size", {"world": world})
