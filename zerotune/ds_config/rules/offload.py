"""ZT5xx: offload of optimizer states and weights."""

from __future__ import annotations

from ..finding import ERROR, INFO, WARNING
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
    "ZT509",
    "nvme-key-without-nvme",
    WARNING,
    keys=("zero_optimization.offload_optimizer.pipeline_read", "zero_optimization.offload_param.max_in_cpu"),
    message="{key} does nothing: the device is {device}",
    help='delete it, or write "device": "nvme"',
    source="deepspeed 0.19.8 runtime/swap_tensor: read for NVMe only",
    bad=[case(zero(stage=3, offload_optimizer={"device": "cpu", "pipeline_read": True})),
         case(zero(stage=3, offload_param={"device": "cpu", "max_in_cpu": 5}))],
    good=[case(zero(stage=3, offload_optimizer={"device": "cpu", "buffer_count": 4}))],
)  # fmt: skip
def nvme_key_without_nvme(view):
    """No effect (b064). Keys that repeat the default, as many published configs do, are left alone."""
    defaults = {
        "offload_optimizer": {"buffer_count": 4, "pipeline_read": False, "pipeline_write": False, "fast_init": False},
        "offload_param": {"buffer_count": 5, "buffer_size": 100_000_000, "max_in_cpu": 1_000_000_000},
    }
    for which, names in defaults.items():
        device = view.device(which)
        for name, default in names.items():
            value = view.get(f"zero_optimization.{which}.{name}", default)
            if view.stage == 3 and device in ("none", "cpu") and value != default and value != "auto":
                yield Hit(f"{ZERO}/{which}/{name}", {"device": device}, at_key=True)


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


@rule(
    "ZT512",
    "aio-without-nvme",
    INFO,
    keys=("aio",),
    message="the aio block does nothing: nothing is offloaded to NVMe",
    help="delete it",
    source="deepspeed 0.19.8 runtime/swap_tensor",
    bad=[case({"aio": {"queue_depth": 32}})],
    good=[case({"aio": {"queue_depth": 32},
                **zero(stage=3, offload_optimizer={"device": "nvme", "nvme_path": "/local_nvme"})})],
)  # fmt: skip
def aio_without_nvme(view):
    """Read, and used by the swappers only."""
    at_stage_3 = view.stage == 3 and "nvme" in (view.device("offload_optimizer"), view.device("offload_param"))
    if view.block("aio") and view.stage is not None and not at_stage_3 and not view.has("checkpoint.writer"):
        yield Hit("/aio", at_key=True)
