"""ZT615 to ZT619: values that the optimizer itself refuses, or computes NaN with."""

from __future__ import annotations

from ..finding import ERROR, WARNING
from ..optimizers import ARGUMENTS, REMOVED_NAMES, TORCH_NAMES
from .key_advice import older
from .optimizer import PARAMS, built, optimizer
from .rule import Hit, case, rule

BETAS = f"{PARAMS}/betas"
OFFLOADED = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
# With bias correction these divide by 1 - beta^step.
ADAM = ("FusedAdam", "DeepSpeedCPUAdam", "MuonWithAuxAdam")
NOT_NEGATIVE = ("lr", "eps", "weight_decay", "momentum", "alpha", "lr_decay", "initial_accumulator_value")


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@rule(
    "ZT615",
    "optimizer-betas",
    ERROR,
    keys=("optimizer.params.betas",),
    message="betas is {value}; {kind} takes two numbers of at least 0 and below 1",
    help='write "betas": [0.9, 0.999]',
    source="torch 2.13 torch/optim/adam.py:55; deepspeed 0.19.8 ops/adam/fused_adam.py:96",
    bad=[
        case(optimizer("AdamW", lr=1e-3, betas=[0.9]), entry="raw"),
        case(optimizer("AdamW", lr=1e-3, betas=[0.9, 1.5]), entry="raw"),
        case(optimizer("NAdam", lr=1e-3, betas=[0.9, 1.0]), entry="raw"),
    ],
    good=[case(optimizer("AdamW", lr=1e-3, betas=[0.0, 0.99]), entry="raw")],
)
def optimizer_betas(view):
    """Not two: an exception when the optimizer is built or first steps. Out of range: PyTorch's optimizers refuse it,
    DeepSpeed's Adams turn the weights into NaN within a few steps, Lion trains on wrong averages."""
    found = built(view)
    if found is None or not isinstance(found[1].get("betas"), list) or not takes_betas(found):
        return
    betas, kind = found[1]["betas"], found[0]
    if len(betas) != 2:
        yield Hit(BETAS, {"kind": kind})
    elif all(map(is_number, betas)) and not all(0 <= beta < 1 for beta in betas):
        yield Hit(BETAS, {"kind": kind}, severity=None if ends_the_run(view, found) else WARNING)


def takes_betas(found: tuple[str, dict, str | None]) -> bool:
    return found[2] == "MuonWithAuxAdam" or "betas" in ARGUMENTS.get(found[2], ())


def ends_the_run(view, found: tuple[str, dict, str | None]) -> bool:
    """Whether betas out of range are refused or give NaN."""
    _, params, built_class = found
    if built_class in TORCH_NAMES:
        return True
    first, second = params["betas"]
    corrected = params.get("bias_correction", True) is True
    return built_class in ADAM and corrected and (first == 1 or not 0 <= second < 1)


@rule(
    "ZT616",
    "optimizer-bounds",
    ERROR,
    keys=tuple(f"optimizer.params.{name}" for name in ("lr", "eps", "weight_decay")),
    message="{key} is {value}; {kind} takes numbers from 0 up",
    help="write 0 or a positive number",
    source="torch 2.13 torch/optim",
    bad=[case({**optimizer("SGD", lr=1e-3, momentum=-1), "zero_optimization": {"stage": 0}}, entry="raw")],
    good=[case({**optimizer("SGD", lr=1e-3, momentum=0.9), "zero_optimization": {"stage": 0}}, entry="raw")],
)
def optimizer_bounds(view):
    """PyTorch's optimizers raise it when they are built; DeepSpeed's own do not look."""
    found = built(view)
    if found is None or found[2] not in TORCH_NAMES:
        return
    for name in NOT_NEGATIVE:
        value = found[1].get(name)
        checked = name in ARGUMENTS[found[2]] and not (found[2] == "Adafactor" and name == "eps")
        negative = is_number(value) and value < 0
        no_number = name not in ("lr", "eps", "weight_decay") and isinstance(value, str)  # ZT110 reports the others
        if checked and (negative or no_number):
            yield Hit(f"{PARAMS}/{name}", {"kind": found[0]})


@rule(
    "ZT617",
    "adam-switch",
    ERROR,
    keys=("optimizer.params.adam_w_mode", "optimizer.type"),
    message="{key} is {value}; {kind} {reason}",
    help="{todo}",
    source="deepspeed 0.19.8 ops/adam/cpu_adam.py:85, ops/adam/fused_adam.py:59",
    bad=[
        case(optimizer("AdamW", lr=1e-3, amsgrad=True), entry="raw"),
        case({**optimizer("Adam", lr=1e-3, adam_w_mode="true"), **OFFLOADED}, entry="raw"),
    ],
    good=[
        case(optimizer("AdamW", lr=1e-3, amsgrad=False), entry="raw"),
        case({**optimizer("Adam", lr=1e-3, adam_w_mode=False), **OFFLOADED}, entry="raw"),
        case(optimizer("AdamW", lr=1e-3, amsgrad=True, torch_adam=True), entry="raw"),
    ],
)
def adam_switch(view):
    """DeepSpeed's optimizers have no AMSGrad; its CPU Adam takes true or false where a text was accepted elsewhere.
    Exceptions when the optimizer is built or first steps."""
    found = built(view)
    if found is None:
        return
    _, params, built_class = found
    if built_class in ("FusedAdam", "DeepSpeedCPUAdam", "FusedLamb") and params.get("amsgrad"):
        facts = {"kind": "DeepSpeed's optimizer", "reason": "has no AMSGrad"}
        yield Hit(f"{PARAMS}/amsgrad", {**facts, "todo": 'delete it, or add "torch_adam": true'})
    if built_class == "DeepSpeedCPUAdam":
        facts = {"kind": "the CPU Adam", "reason": "takes true or false", "todo": "write true or false"}
        texts = (name for name in ("adam_w_mode", "bias_correction") if isinstance(params.get(name), str))
        yield from (Hit(f"{PARAMS}/{name}", facts) for name in texts)


@rule(
    "ZT618",
    "one-bit-with-zero",
    ERROR,
    keys=("optimizer.type", "zero_optimization.stage"),
    message="{value} can't be combined with ZeRO, and this is stage {stage}",
    help='set "stage": 0, or use AdamW',
    source="deepspeed 0.18.9 runtime/engine.py:1701",
    bad=[case({**optimizer("OneBitAdam"), **OFFLOADED}, entry="raw", versions={"deepspeed": "0.18.9"})],
    good=[case(optimizer("OneBitAdam"), entry="raw", versions={"deepspeed": "0.18.9"})],
)
def one_bit_with_zero(view):
    """An assertion when the engine is built, of the versions below 0.19.7, which have these optimizers."""
    name = view.get("optimizer.type")
    if isinstance(name, str) and name.lower() in REMOVED_NAMES and older(view.deepspeed, "0.19.7") and view.stage:
        yield Hit("/optimizer/type", {"stage": view.stage})


@rule(
    "ZT619",
    "adam-eps-zero",
    ERROR,
    keys=("optimizer.params.eps",),
    message="eps is 0: a weight whose gradient is exactly 0 becomes NaN",
    help='write "eps": 1e-8',
    source="deepspeed 0.19.8 csrc/includes/cpu_adam.h",
    bad=[case(optimizer("AdamW", lr=1e-3, eps=0), entry="raw")],
    good=[case(optimizer("AdamW", lr=1e-3, eps=1e-15), entry="raw")],
)
def adam_eps_zero(view):
    """Adam divides the first moment by the root of the second plus eps: 0 / 0 where a weight has had no gradient yet,
    as rows of an embedding that no token asked for. The loss is NaN from the second step on."""
    found = built(view)
    eps = found[1].get("eps") if found else None
    if found and takes_betas(found) and is_number(eps) and eps == 0:
        yield Hit(f"{PARAMS}/eps")
