"""ZT86x: what a config costs on the machine that was named (validate --gpus)."""

from __future__ import annotations

from ..context import Machine
from ..finding import WARNING, Fix
from .rule import Hit, case, rule

ZERO = "/zero_optimization"
OFFLOADED = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
PINNED = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}}
SPARE = Machine("1xH200", spare={"offload_optimizer": "2.1 GiB of 139.8 GiB a GPU, and a step takes 0.1 s, not 0.9 s"})
GIB = 2**30


@rule(
    "ZT861",
    "does-not-fit",
    WARNING,
    keys=("zero_optimization.stage",),
    message="the plan does not fit on {machine}: {shortage}",
    help="zerotune-config plan --model MODEL --gpus {machine} --best lists what fits",
    source="the planner (docs/planner.md)",
    bad=[case({}, machine=Machine("1xT4", "T4 lacks 20.0 GiB in the step (backward)"))],
    good=[case({}, machine=Machine("1xT4"))],
)
def does_not_fit(view):
    """By more than the planner's error band; nearer to the limit nothing is said here."""
    machine = view.context.machine
    if machine and machine.shortage:
        at = f"{ZERO}/stage" if view.has("zero_optimization.stage") else ""
        yield Hit(at, {"machine": machine.name, "shortage": machine.shortage})


@rule(
    "ZT862",
    "offload-with-room",
    WARNING,
    keys=("zero_optimization.offload_optimizer", "zero_optimization.offload_param"),
    message="{key} is not needed on {machine}: without it the plan takes {spare}",
    help="delete it",
    source="the planner (docs/planner.md)",
    bad=[case(OFFLOADED, machine=SPARE)],
    good=[case(OFFLOADED, machine=Machine("1xL4")), case({}, machine=SPARE)],
)
def offload_with_room(view):
    """Offload buys memory with time: weights, gradients and states cross the bus in every step, and the CPU computes
    the update."""
    machine = view.context.machine
    for block, spare in (machine.spare if machine else {}).items():
        at = f"{ZERO}/{block}"
        if view.has(f"zero_optimization.{block}"):
            yield Hit(at, {"machine": machine.name, "spare": spare}, at_key=True, fix=Fix("remove", at, safe=False))


@rule(
    "ZT863",
    "pinned-beyond-memlock",
    WARNING,
    keys=("zero_optimization.offload_optimizer.pin_memory", "zero_optimization.offload_param.pin_memory"),
    message="pin_memory locks {pinned:.1f} GiB of host memory a rank, and a process may lock {memlock:.2f} GiB here",
    help="raise the limit (ulimit -l unlimited; Docker: --ulimit memlock=-1), or write false",
    source="https://github.com/deepspeedai/DeepSpeed/issues/2977",
    bad=[case(PINNED, machine=Machine("local", pinned_bytes=40 * GIB, memlock_bytes=8 * 2**20))],
    good=[case(PINNED, machine=Machine("local", pinned_bytes=40 * GIB))],
)
def pinned_beyond_memlock(view):
    """Where the driver counts page-locked memory against the limit (WSL2, some containers), pinning ends in an
    out-of-memory error with memory to spare."""
    machine = view.context.machine
    if machine is None or machine.memlock_bytes is None or machine.pinned_bytes <= machine.memlock_bytes:
        return
    facts = {"pinned": machine.pinned_bytes / GIB, "memlock": machine.memlock_bytes / GIB}
    for block in ("offload_optimizer", "offload_param"):
        if view.device(block) != "none" and view.has(f"zero_optimization.{block}.pin_memory"):
            yield Hit(f"{ZERO}/{block}/pin_memory", facts)
