"""ZT4xx: fp16, bf16, autocast and the dtypes of accumulation and communication."""

from __future__ import annotations

import math

from ..finding import ERROR, WARNING, Fix
from ..optimizers import constructor
from .key_advice import older
from .rule import Hit, case, rule

CONFIG = "deepspeed 0.19.8 runtime/config.py"
ENGINE = "deepspeed 0.19.8 runtime/engine.py"
PRECISION = "deepspeed 0.19.8 runtime/precision_config.py"
# runtime/config.py:144 (DtypeEnum): every spelling, and the dtype it stands for.
DTYPES = {
    "fp16": "fp16", "float16": "fp16", "half": "fp16", "torch.float16": "fp16",
    "bf16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16",
    "fp32": "fp32", "float32": "fp32", "float": "fp32", "torch.float32": "fp32",
    "int8": "int8", "torch.int8": "int8",
}  # fmt: skip


def raw(config: dict):
    return case(config, entry="raw")


def bf16(stage: int = 2, **more) -> dict:
    return {"bf16": {"enabled": True, **more}, "zero_optimization": {"stage": stage}}


OFFLOADED = {
    "bf16": {"enabled": True, "bf16_master_weights_and_grads": True},
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
}


@rule(
    "ZT401",
    "two-precisions",
    ERROR,
    keys=("fp16.enabled", "bf16.enabled"),
    message="fp16 and bf16 are both on",
    help="switch one of them off",
    source=f"{CONFIG}:511",
    bad=[
        raw({"fp16": {"enabled": True}, "bf16": {"enabled": True}}),
        case({"fp16": {"enabled": True}, "bf16": {"enabled": "auto"}}, training_args={"bf16": True, "fp16": True}),
    ],
    good=[case({"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}, training_args={"bf16": True})],
)
def two_precisions(view):
    """An assertion in the parser (b001)."""
    if view.enabled("fp16") and view.enabled(view.bf16):
        yield Hit("/fp16/enabled")


@rule(
    "ZT402",
    "master-weights-stage-0",
    ERROR,
    keys=("fp16.fp16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"),
    message="{key} needs ZeRO stage 1, 2 or 3, and this is stage 0",
    help="set a stage, or delete the key",
    source=f"{CONFIG}:702",
    bad=[raw({"fp16": {"enabled": True, "fp16_master_weights_and_grads": True}})],
    good=[
        raw({"fp16": {"enabled": True, "fp16_master_weights_and_grads": True},
             "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}),
    ],
)  # fmt: skip
def master_weights_stage_0(view):
    """An assertion in the parser, whether the mode is on or not (b024)."""
    for path in (
        "fp16.fp16_master_weights_and_grads",
        f"{view.bf16}.bf16_master_weights_and_grads",
        f"{view.bf16}.bf16_optimizer_states",
    ):
        if view.stage == 0 and view.flag(path):
            yield Hit("/" + path.replace(".", "/"))


@rule(
    "ZT403",
    "states-without-master",
    ERROR,
    keys=("bf16.bf16_optimizer_states",),
    message="bf16_optimizer_states needs bf16_master_weights_and_grads",
    help='add "bf16_master_weights_and_grads": true',
    source=f"{CONFIG}:714",
    bad=[raw(bf16(bf16_optimizer_states=True))],
    good=[raw(bf16(bf16_optimizer_states=True, bf16_master_weights_and_grads=True))],
)
def states_without_master(view):
    """An assertion in the parser (b027)."""
    block = view.bf16
    if view.flag(f"{block}.bf16_optimizer_states") and not view.flag(f"{block}.bf16_master_weights_and_grads"):
        fix = Fix("set", f"/{block}/bf16_master_weights_and_grads", True)
        yield Hit(f"/{block}/bf16_optimizer_states", fix=fix)


@rule(
    "ZT404",
    "master-weights-without-offload",
    ERROR,
    keys=("bf16.bf16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads"),
    message="{key} needs offload_optimizer to the CPU{alternative}",
    help='add "offload_optimizer": {{"device": "cpu"}}{alternative}',
    source="deepspeed 0.19.8 runtime/zero/stage3.py:300, stage_1_and_2.py:332",
    bad=[raw(bf16(3, bf16_master_weights_and_grads=True)), raw(bf16(2, bf16_master_weights_and_grads=True))],
    good=[
        raw(bf16(3, bf16_master_weights_and_grads=True, bf16_optimizer_states=True)),
        raw({"bf16": {"enabled": True, "bf16_master_weights_and_grads": True},
             "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}),
    ],
)  # fmt: skip
def master_weights_without_offload(view):
    """An assertion when the engine is built, unless the states are bf16 too (b026)."""
    for kind in ("bf16", "fp16"):
        block = view.bf16 if kind == "bf16" else kind
        path = f"{block}.{kind}_master_weights_and_grads"
        saved = kind == "bf16" and view.flag(f"{block}.bf16_optimizer_states")
        saved = saved or (view.stage == 3 and older(view.deepspeed, "0.17.1"))  # not asserted there
        if view.stage in (1, 2, 3) and view.flag(path) and not saved and view.device("offload_optimizer") == "none":
            alternative = ", or bf16_optimizer_states" if kind == "bf16" else ""
            yield Hit("/" + path.replace(".", "/"), {"alternative": alternative})


@rule(
    "ZT419",
    "master-weights-optimizer",
    ERROR,
    keys=("bf16.bf16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads", "optimizer.type"),
    message="16-bit master weights with offload need DeepSpeed's CPU Adam, not {value}",
    help="use Adam or AdamW without torch_adam, or delete the master weights' key",
    source="deepspeed 0.19.8 runtime/zero/stage3.py:300, stage_1_and_2.py:332",
    bad=[raw({"optimizer": {"type": "Adagrad", "params": {"lr": 1e-3}}, **OFFLOADED})],
    good=[raw({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, **OFFLOADED})],
)
def master_weights_optimizer(view):
    """An assertion when the engine is built, also with bf16_optimizer_states."""
    name, params = view.get("optimizer.type"), view.block("optimizer.params")
    keys = (f"{view.bf16}.bf16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads")
    if view.stage not in (1, 2, 3) or view.device("offload_optimizer") == "none" or not any(map(view.flag, keys)):
        return
    if isinstance(name, str) and constructor(name, params, on_cpu=True) not in ("DeepSpeedCPUAdam", None):
        yield Hit("/optimizer/type")


@rule(
    "ZT420",
    "two-master-weights",
    ERROR,
    keys=("bf16.bf16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads"),
    message="fp16 and bf16 master weights are both on; the engine takes one of them, whatever the model's precision",
    help="delete one of the two keys",
    source="deepspeed 0.19.8 runtime/base_optimizer.py:499",
    bad=[raw({**OFFLOADED, "fp16": {"fp16_master_weights_and_grads": True}})],
    good=[raw({**OFFLOADED, "fp16": {"fp16_master_weights_and_grads": False}})],
)
def two_master_weights(view):
    """An assertion when the engine is built, also where neither block is switched on."""
    paths = (f"{view.bf16}.bf16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads")
    if view.stage in (1, 2, 3) and all(map(view.flag, paths)):
        yield Hit("/fp16/fp16_master_weights_and_grads")


@rule(
    "ZT405",
    "bf16-master-without-bf16",
    WARNING,
    keys=("bf16.bf16_master_weights_and_grads",),
    message="bf16 is off, but the fp32 model gets bf16 master weights",
    help="switch bf16 on, or delete the key",
    source=f"{ENGINE}:2701",
    bad=[
        raw({"bf16": {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True},
             "zero_optimization": {"stage": 2}}),
    ],
    good=[raw(bf16(bf16_master_weights_and_grads=True, bf16_optimizer_states=True))],
)  # fmt: skip
def bf16_master_without_bf16(view):
    """Accepted; the losses differ from fp32 (b029)."""
    if view.stage and view.flag("bf16.bf16_master_weights_and_grads") and view.precision == "fp32":
        yield Hit("/bf16/bf16_master_weights_and_grads")


@rule(
    "ZT406",
    "dynamic-scale",
    ERROR,
    keys=("fp16.loss_scale_window", "fp16.min_loss_scale"),
    message="{key} is {value}; with dynamic loss scaling it must be above 0",
    help="write at least 1",
    source=f"{PRECISION}:152",
    bad=[raw({"fp16": {"enabled": True, "loss_scale_window": 0}})],
    good=[raw({"fp16": {"enabled": True, "loss_scale": 128, "loss_scale_window": 0}}),
          raw({"fp16": {"loss_scale_window": 0}})],
)  # fmt: skip
def dynamic_scale(view):
    """Refused by the parser, when fp16 is on and loss_scale is 0 (b020 to b023)."""
    if view.enabled("fp16") and not view.number("fp16.loss_scale"):
        for name in ("loss_scale_window", "min_loss_scale"):
            value = view.number(f"fp16.{name}")
            if value is not None and value <= 0:
                yield Hit(f"/fp16/{name}")


@rule(
    "ZT407",
    "scale-not-a-number",
    ERROR,
    keys=("fp16.loss_scale", "fp16.loss_scale_window", "fp16.min_loss_scale"),
    message="{key} is {value}; it must be a finite number, not a boolean",
    help="write a number",
    source=f"{PRECISION}:88",
    bad=[raw({"fp16": {"loss_scale": True}})],
    good=[raw({"fp16": {"loss_scale": 0}})],
)
def scale_not_a_number(view):
    """The three have validators of their own, stricter than pydantic's (b020)."""
    for name in ("loss_scale", "loss_scale_window", "min_loss_scale"):
        value = view.get(f"fp16.{name}")
        if isinstance(value, bool) or (isinstance(value, float) and not math.isfinite(value)):
            yield Hit(f"/fp16/{name}")


@rule(
    "ZT417",
    "fp16-auto-cast-off-mode",
    WARNING,
    keys=("fp16.auto_cast",),
    message="fp16 is off, but auto_cast still casts the inputs to fp16",
    help="delete auto_cast",
    source=f"{ENGINE}:2957",
    bad=[raw({"fp16": {"enabled": False, "auto_cast": True}})],
    good=[raw({"fp16": {"enabled": True, "auto_cast": True}})],
)
def fp16_auto_cast_off_mode(view):
    """The engine looks at auto_cast alone. Token ids are not touched, inputs in float are."""
    if view.flag("fp16.auto_cast") and view.precision in ("fp32", "bf16"):
        yield Hit("/fp16/auto_cast", at_key=True)
