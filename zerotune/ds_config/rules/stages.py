"""ZT53x: keys that act at other ZeRO stages only, and keys that act nowhere."""

from __future__ import annotations

from ..finding import ERROR, INFO, WARNING
from ..schema import fields
from ..view import MISSING, pointer
from .rule import Hit, case, rule

ZERO = "zero_optimization"
# These have rules of their own, which say more.
OWN_RULES = {
    f"{ZERO}.offload_param",
    f"{ZERO}.offload_optimizer",
    f"{ZERO}.offload_optimizer.ratio",
    f"{ZERO}.offload_optimizer.super_offload",
    f"{ZERO}.offload_optimizer.cpuadam_cores_perc",
    f"{ZERO}.ignore_unused_parameters",
    f"{ZERO}.compute_grad_norm",
}


@rule(
    "ZT530",
    "key-without-effect",
    WARNING,
    keys=tuple(path for path, field in fields().items() if "x-stages" in field.node and path not in OWN_RULES),
    message="{key} does nothing at stage {stage}; it acts at stage {stages}",
    help="delete it, or change the stage",
    source="deepspeed 0.19.8 runtime/engine.py:2633 (_configure_zero_optimizer): what each stage is given",
    bad=[
        case({ZERO: {"stage": 2, "stage3_max_live_parameters": 5}}),
        case({ZERO: {"stage": 3, "round_robin_gradients": True}}),
        case({ZERO: {"stage": 2, "zero_quantized_weights": True}}),
        case({ZERO: {"stage": 1, "zero_hpz_partition_size": 8}}, entry="raw"),
    ],
    good=[
        case({ZERO: {"stage": 3, "stage3_max_live_parameters": 5}}),
        case({ZERO: {"stage": 2, "allgather_bucket_size": 200_000_000}}),
    ],
)
def key_without_effect(view):
    """Accepted and never looked at (c109, c114, e015, e018, e020). A note where the value only repeats the default."""
    if view.stage is None:
        return
    for path, field in fields().items():
        stages = field.node.get("x-stages")
        if not stages or view.stage in stages or path in OWN_RULES or not path.startswith(f"{ZERO}."):
            continue
        value = view.get(path, MISSING)
        if value is MISSING or value is None or value == "auto":
            continue
        facts = {"stage": view.stage, "stages": " or ".join(map(str, stages))}
        severity = INFO if value == field.node.get("default") else WARNING
        yield Hit(pointer(path), facts, at_key=True, severity=severity)


@rule(
    "ZT531",
    "dead-key",
    INFO,
    keys=tuple(path for path, field in fields().items() if "x-dead" in field.node),
    message="{key} is read, but nothing in the engine uses it",
    help="delete it",
    source="deepspeed 0.19.8: no caller of its accessor",
    bad=[case({ZERO: {"allgather_partitions": False}})],
    good=[case({ZERO: {"allgather_partitions": True}})],
)
def dead_key(view):
    """A leftover of older versions. Repeating the default is left alone."""
    for path, field in fields().items():
        if "x-dead" in field.node and view.get(path, MISSING) not in (MISSING, field.node["default"], "auto"):
            yield Hit(pointer(path), at_key=True)


@rule(
    "ZT532",
    "elastic-checkpoint",
    WARNING,
    keys=("zero_optimization.elastic_checkpoint",),
    message="elastic_checkpoint is not passed on at stage 3",
    help='use universal checkpoints: "checkpoint": {{"load_universal": true}}',
    source="deepspeed 0.19.8 runtime/zero/config.py:401",
    bad=[case({ZERO: {"stage": 3, "elastic_checkpoint": True}})],
    good=[case({ZERO: {"stage": 3, "elastic_checkpoint": False}})],
)
def elastic_checkpoint(view):
    """One warning in the log (c118)."""
    if view.stage == 3 and view.flag(f"{ZERO}.elastic_checkpoint"):
        yield Hit(f"/{ZERO}/elastic_checkpoint", at_key=True)


@rule(
    "ZT533",
    "zero-init-below-3",
    ERROR,
    keys=("zero_optimization.stage",),
    message="the model is built under zero.Init, but the config says stage {stage}",
    help="set stage 3, or build the model without zero.Init",
    source="deepspeed 0.19.8 runtime/zero/linear.py:90",
    bad=[case({ZERO: {"stage": 2}}, entry="raw", zero_init=True)],
    good=[case({ZERO: {"stage": 3}}, entry="raw", zero_init=True)],
)
def zero_init_below_3(view):
    """The weights are divided anyway, and the first forward fails on their shapes (e064)."""
    if view.context.zero_init and view.stage in (0, 1, 2):
        yield Hit(f"/{ZERO}/stage", {"stage": view.stage})
