"""ZT5xx: offload of optimizer states and weights."""

from __future__ import annotations

from ..finding import ERROR, WARNING
from .optimizer import built
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
    "ZT504",
    "offload-optimizer-stage-0",
    WARNING,
    keys=("zero_optimization.offload_optimizer",),
    message="offload_optimizer at stage 0 offloads nothing: it only swaps in DeepSpeed's CPU Adam, on the weights as they are",
    help="set stage 1, 2 or 3, or delete offload_optimizer",
    source="deepspeed 0.19.8 runtime/engine.py:1562",
    bad=[case(zero(stage=0, offload_optimizer={"device": "cpu"}))],
    good=[case(zero(stage=1, offload_optimizer={"device": "cpu"}))],
)
def offload_optimizer_stage_0(view):
    """No error; the optimizer becomes DeepSpeedCPUAdam silently (b046)."""
    if view.stage == 0 and view.device("offload_optimizer") in ("cpu", "nvme"):
        yield Hit(f"{ZERO}/offload_optimizer", at_key=True)


@rule(
    "ZT505",
    "partial-offload-stage",
    ERROR,
    keys=("zero_optimization.offload_optimizer.ratio",),
    message="ratio {value} needs stage 3, and this is stage {stage}",
    help="set stage 3, or delete ratio",
    source="deepspeed 0.19.8 runtime/zero/config.py:391",
    bad=[case(zero(stage=2, offload_optimizer={"device": "cpu", "ratio": 0.5}))],
    good=[case(zero(stage=3, offload_optimizer={"device": "cpu", "ratio": 0.5}))],
)
def partial_offload_stage(view):
    """An assertion in the parser (b057)."""
    ratio = view.converted("zero_optimization.offload_optimizer.ratio")
    if view.stage in (0, 1, 2) and ratio is not None and 0 <= ratio < 1:
        yield Hit(f"{ZERO}/offload_optimizer/ratio", {"stage": view.stage})


@rule(
    "ZT506",
    "partial-offload-without-device",
    WARNING,
    keys=("zero_optimization.offload_optimizer.ratio",),
    message="ratio does nothing: the device is none",
    help='add "device": "cpu"',
    source="deepspeed 0.19.8 runtime/zero/stage3.py:316",
    bad=[case(zero(stage=3, offload_optimizer={"ratio": 0.5}))],
    good=[case(zero(stage=3, offload_optimizer={"device": "cpu", "ratio": 0.5}))],
)
def partial_offload_without_device(view):
    """Silently ignored (b059)."""
    ratio = view.converted("zero_optimization.offload_optimizer.ratio")
    if view.stage == 3 and ratio is not None and ratio < 1 and view.device("offload_optimizer") == "none":
        yield Hit(f"{ZERO}/offload_optimizer/ratio")


@rule(
    "ZT507",
    "partial-offload-optimizer",
    ERROR,
    keys=("zero_optimization.offload_optimizer.ratio", "optimizer.type"),
    message="ratio below 1 works with DeepSpeed's CPU Adam only, and this is {name}",
    help="use AdamW without torch_adam, or delete ratio",
    source="deepspeed 0.19.8 runtime/zero/stage3.py:316",
    bad=[
        case({"optimizer": {"type": "Lion", "params": {}},
              **zero(stage=3, offload_optimizer={"device": "cpu", "ratio": 0.5})}),
    ],
    good=[
        case({"optimizer": {"type": "AdamW", "params": {}},
              **zero(stage=3, offload_optimizer={"device": "cpu", "ratio": 0.5})}),
    ],
)  # fmt: skip
def partial_offload_optimizer(view):
    """An assertion when the engine is built (c029)."""
    ratio = view.converted("zero_optimization.offload_optimizer.ratio")
    found = built(view)
    if (
        view.stage == 3
        and ratio is not None
        and ratio < 1
        and view.device("offload_optimizer") in ("cpu", "nvme")
        and found
        and found[2]
        and found[2] not in ("DeepSpeedCPUAdam", "MuonWithAuxAdam")
    ):
        yield Hit(f"{ZERO}/offload_optimizer/ratio", {"name": found[2]})


@rule(
    "ZT508",
    "super-offload-stage",
    WARNING,
    keys=("zero_optimization.offload_optimizer.super_offload",),
    message="super_offload does nothing at stage {stage}",
    help="set stage 3, or delete it",
    source="deepspeed 0.19.8 runtime/engine.py:2749",
    bad=[case(zero(stage=2, offload_optimizer={"device": "cpu", "super_offload": True}))],
    good=[case(zero(stage=3, offload_optimizer={"device": "cpu", "super_offload": True}))],
)
def super_offload_stage(view):
    """Silently ignored (b062)."""
    if view.stage in (0, 1, 2) and view.flag("zero_optimization.offload_optimizer.super_offload"):
        yield Hit(f"{ZERO}/offload_optimizer/super_offload", {"stage": view.stage}, at_key=True)


@rule(
    "ZT510",
    "unused-parameters-offload",
    WARNING,
    keys=("zero_optimization.ignore_unused_parameters",),
    message="ignore_unused_parameters false {does}",
    help="delete it",
    source="deepspeed 0.19.8 runtime/zero/stage_1_and_2.py:1934",
    bad=[case(zero(stage=2, ignore_unused_parameters=False)),
         case(zero(stage=2, ignore_unused_parameters=False, offload_optimizer={"device": "cpu"}))],
    good=[case(zero(stage=2, ignore_unused_parameters=True))],
)  # fmt: skip
def unused_parameters_offload(view):
    """Looked at only where the norm is taken with CPU offload: there one rank stops and the others lose their
    connection; everywhere else it does nothing (c111 to c113, f006, f007)."""
    if view.get("zero_optimization.ignore_unused_parameters") is False:
        stops = view.stage in (1, 2) and view.device("offload_optimizer") != "none"
        does = "stops one rank when a weight has no gradient, and the others hang" if stops else "does nothing here"
        yield Hit(f"{ZERO}/ignore_unused_parameters", {"does": does}, at_key=True)


@rule(
    "ZT511",
    "old-pin-memory",
    WARNING,
    keys=("zero_optimization.cpu_offload_use_pin_memory",),
    message="the value of cpu_offload_use_pin_memory is thrown away: pin_memory stays true",
    help="write pin_memory in the offload block",
    source="deepspeed 0.19.8 runtime/zero/config.py (set_new_param=False)",
    bad=[case(zero(stage=2, cpu_offload=True, cpu_offload_use_pin_memory=False))],
    good=[case(zero(stage=2, offload_optimizer={"device": "cpu", "pin_memory": False}))],
)
def old_pin_memory(view):
    """A warning about the name, and no effect (a072)."""
    if view.get("zero_optimization.cpu_offload_use_pin_memory") is False:
        yield Hit(f"{ZERO}/cpu_offload_use_pin_memory", at_key=True)
