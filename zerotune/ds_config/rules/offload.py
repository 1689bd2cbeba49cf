"""ZT5xx: offload of optimizer states and weights."""

from __future__ import annotations

from ..finding import ERROR, WARNING
from .rule import Hit, case, rule

ZERO = "/zero_optimization"


def zero(**block) -> dict:
    return {"zero_optimization": block}


@rule(
    "ZT501",
    "offload-param-below-3",
    WARNING,
    keys=("zero_optimization.offload_param",),
    message="offload_param does nothing at stage {stage}: the weights are offloaded at stage 3 only",
    help="set stage 3, or delete offload_param",
    source="deepspeed 0.19.8: only runtime/zero/stage3.py reads it",
    bad=[case(zero(stage=2, offload_param={"device": "cpu"}))],
    good=[
        case(zero(stage=3, offload_param={"device": "cpu"})),
        case(zero(stage=2, offload_param={"device": "none"})),
    ],
)
def offload_param_below_3(view):
    """Accepted and ignored (b043, b044)."""
    if view.stage in (0, 1, 2) and view.device("offload_param") in ("cpu", "nvme"):
        yield Hit(f"{ZERO}/offload_param", {"stage": view.stage}, at_key=True)


@rule(
    "ZT502",
    "nvme-without-path",
    ERROR,
    keys=("zero_optimization.offload_param.nvme_path", "zero_optimization.offload_optimizer.nvme_path"),
    message="{which} goes to nvme, but nvme_path is missing",
    help='add "nvme_path": "/a/folder/on/a/local/nvme/disk"',
    source="deepspeed 0.19.8 runtime/swap_tensor/partitioned_param_swapper.py, optimizer_utils.py",
    bad=[
        case(zero(stage=3, offload_optimizer={"device": "nvme"})),
        case(zero(stage=3, offload_param={"device": "nvme"})),
    ],
    good=[
        case(zero(stage=3, offload_optimizer={"device": "nvme", "nvme_path": "/local_nvme"})),
        case(zero(stage=2, offload_optimizer={"device": "nvme"})),
    ],
)
def nvme_without_path(view):
    """An assertion for the weights, a bare TypeError for the states (b053, b055). Below stage 3 nothing goes there."""
    for which in ("offload_optimizer", "offload_param"):
        path = view.get(f"zero_optimization.{which}.nvme_path")
        if view.stage == 3 and view.device(which) == "nvme" and path is None:
            yield Hit(f"{ZERO}/{which}/device", {"which": which})


@rule(
    "ZT503",
    "nvme-below-3",
    WARNING,
    keys=("zero_optimization.offload_optimizer.device",),
    message="at stage {stage} the states go to the CPU, not to nvme",
    help='set stage 3, or write "cpu"',
    source="deepspeed 0.19.8 runtime/zero/stage_1_and_2.py",
    bad=[case(zero(stage=2, offload_optimizer={"device": "nvme", "nvme_path": "/local_nvme"}))],
    good=[case(zero(stage=3, offload_optimizer={"device": "nvme", "nvme_path": "/local_nvme"}))],
)
def nvme_below_3(view):
    """Any device but none is taken as cpu, and nvme_path is ignored (b052)."""
    if view.stage in (1, 2) and view.device("offload_optimizer") == "nvme":
        yield Hit(f"{ZERO}/offload_optimizer/device", {"stage": view.stage})
