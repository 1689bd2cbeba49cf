"""ZT60x: the optimizer block."""

from __future__ import annotations

from zerotune.errors import nearest

from ..document import join
from ..finding import ERROR, WARNING, Fix
from ..optimizers import (
    ADAM_EXTRAS,
    ARGUMENTS,
    DEEPSPEED_NAMES,
    MU_NAMES,
    MUON_ARGUMENTS,
    REMOVED_NAMES,
    TORCH_NAMES,
    UNSTEPPABLE,
    ZERO_TESTED,
    constructor,
    optimizer_kind,
)
from .key_advice import older
from .rule import Hit, case, rule

ENGINE = "deepspeed 0.19.8 runtime/engine.py"
PARAMS = "/optimizer/params"
# What people call them elsewhere.
SYNONYMS = {
    "learning_rate": "lr",
    "epsilon": "eps",
    "adam_epsilon": "eps",
    "wd": "weight_decay",
    "decay": "weight_decay",
}


def optimizer(type: str, **params) -> dict:
    return {"optimizer": {"type": type, "params": params}}


def built(view) -> tuple[str, dict, str | None] | None:
    """Name, params and class of the config's optimizer; None without one, or when the client's own wins."""
    name = view.get("optimizer.type")
    if not isinstance(name, str) or (view.raw and view.context.client_optimizer):
        return None
    params = view.block("optimizer.params")
    on_cpu = view.device("offload_optimizer") in ("cpu", "nvme")
    return name, params, constructor(name, params, on_cpu)


@rule(
    "ZT601",
    "unknown-optimizer",
    ERROR,
    keys=("optimizer.type",),
    message="{value} is no optimizer that DeepSpeed builds{reason}",
    help="use one of {choices}",
    source=f"{ENGINE}:1985",
    bad=[
        case(optimizer("sgd", lr=0.1), entry="raw"),
        case(optimizer("OneBitAdam", lr=0.1)),
        case(optimizer("Adam8bit")),
        case(optimizer("lr_scheduler"), entry="raw"),
        case(optimizer("Muon"), entry="raw", versions={"deepspeed": "0.17.5"}),
    ],
    good=[
        case(optimizer("ADAMW", lr=0.1), entry="raw"),
        case(optimizer("OneBitAdam"), entry="raw", versions={"deepspeed": "0.18.9"}),
    ],
)
def unknown_optimizer(view):
    """DeepSpeed's own names match in any case, names of torch.optim only exactly; the 1-bit ones went in 0.19.7."""
    name = view.get("optimizer.type")
    if name is None or (view.raw and view.context.client_optimizer):
        return
    if str(name).lower() == "muon" and older(view.deepspeed, "0.17.6"):
        reason = ": Muon came with 0.17.6, and PyTorch's takes nothing but matrices"
        yield Hit("/optimizer/type", {"reason": reason, "choices": "AdamW, Lion"})
    if optimizer_kind(name):
        return
    if str(name).lower() in REMOVED_NAMES and older(view.context.versions.get("deepspeed"), "0.19.7"):
        return
    exact = {known.lower(): known for known in TORCH_NAMES}.get(str(name).lower())
    close = [exact] if exact else nearest(str(name), ("Adam", "AdamW", "Adagrad", "Lamb", "Lion", "Muon", *TORCH_NAMES))
    reason = ""
    if str(name).lower() in REMOVED_NAMES:
        reason, close = ": it was removed in 0.19.7", ["AdamW", "Lamb"]
    reason = f": torch's name is {exact}" if exact else reason
    fix = Fix("set", "/optimizer/type", exact) if exact else None
    yield Hit("/optimizer/type", {"reason": reason, "choices": ", ".join(close or ["AdamW", "Lion", "Muon"])}, fix=fix)


@rule(
    "ZT602",
    "untested-optimizer",
    ERROR,
    keys=("optimizer.type", "zero_allow_untested_optimizer"),
    message="ZeRO refuses {name}, unless zero_allow_untested_optimizer is true",
    help='add "zero_allow_untested_optimizer": true, or use AdamW',
    source=f"{ENGINE}:2290, runtime/zero/utils.py:40",
    bad=[case({**optimizer("SGD", lr=0.1), "zero_optimization": {"stage": 2}}), case(optimizer("Lamb"))],
    good=[
        case({**optimizer("SGD", lr=0.1), "zero_allow_untested_optimizer": True}, entry="raw"),
        case({**optimizer("SGD", lr=0.1), "zero_optimization": {"stage": 0}}, entry="raw"),
    ],
)
def untested_optimizer(view):
    """An assertion at stages 1 to 3 for every class that is not on ZeRO's list (c008 to c019)."""
    found = built(view)
    if (
        found
        and found[2]
        and found[2] not in ZERO_TESTED
        and view.stage in (1, 2, 3)
        and found[0] not in UNSTEPPABLE
        and not view.get("zero_allow_untested_optimizer")
    ):
        yield Hit("/optimizer/type", {"name": found[2]}, fix=Fix("set", "/zero_allow_untested_optimizer", True))


@rule(
    "ZT603",
    "optimizer-argument",
    ERROR,
    keys=("optimizer.params",),
    message="{name} has no argument {argument}{does}",
    help="{arguments}",
    source=f"{ENGINE}:2452: the params go to the constructor",
    bad=[case(optimizer("AdamW", lr=0.1, momentum=0.9)), case(optimizer("Muon", lr=0.1, nesterov=True))],
    good=[case(optimizer("AdamW", torch_adam=True, amsgrad=False)), case(optimizer("Lion", betas=[0.9, 0.99]))],
)
def optimizer_argument(view):
    """A TypeError when the engine is built (a036); Muon picks what it knows and drops the rest silently (c044)."""
    found = built(view)
    if not found:
        return
    name, params, made = found
    muon = made == "MuonWithAuxAdam"
    known = MUON_ARGUMENTS if muon else ARGUMENTS.get(made or "")
    if known is None:
        return
    if name.lower() in ("adam", "adamw"):
        known = known | ADAM_EXTRAS
    for argument in params:
        if argument not in known and argument != "max_grad_norm":
            facts = {"name": made, "argument": argument, "does": ": it is dropped" if muon else ""}
            meant = SYNONYMS.get(argument) if SYNONYMS.get(argument) in known else None
            listed = meant or ", ".join(nearest(argument, known, 3) or sorted(known))
            facts["arguments"] = f"did you mean {meant}?" if meant else f"its arguments: {listed}"
            fix = Fix("rename", join(PARAMS, argument), meant) if meant and meant not in params else None
            severity = WARNING if muon else ERROR
            yield Hit(join(PARAMS, argument), facts, at_key=True, severity=severity, fix=fix)


@rule(
    "ZT604",
    "max-grad-norm-in-params",
    ERROR,
    keys=("optimizer.params", "gradient_clipping"),
    message="max_grad_norm is no argument of the optimizer",
    help='write "gradient_clipping" at the top level instead',
    source=f"{ENGINE}:2456",
    bad=[case(optimizer("AdamW", max_grad_norm=1.0))],
    good=[case({"gradient_clipping": 1.0}, entry="raw")],
)
def max_grad_norm_in_params(view):
    """A ValueError when the engine is built, for every optimizer (c046)."""
    found = built(view)
    if found and "max_grad_norm" in found[1]:
        yield Hit(f"{PARAMS}/max_grad_norm", at_key=True)


@rule(
    "ZT605",
    "optimizer-without-type",
    ERROR,
    keys=("optimizer.type",),
    message="the optimizer block has no type: DeepSpeed builds no optimizer",
    help='add "type": "AdamW"',
    source=f"{ENGINE}:2659, runtime/config.py:288",
    bad=[case({"optimizer": {"params": {"lr": 0.1}}}), case({"optimizer": {"params": {}}}, entry="raw")],
    good=[case({"optimizer": {"type": "AdamW"}}), case({}, entry="raw")],
)
def optimizer_without_type(view):
    """Refused at stages 1 and 2, fails in backward at stage 0, and at stage 3 becomes an engine for inference only
    (c047 to c049)."""
    block = view.get("optimizer")
    if isinstance(block, dict) and block.get("type") is None and not (view.raw and view.context.client_optimizer):
        yield Hit("/optimizer", at_key=True, severity=WARNING if view.stage == 3 else ERROR)


@rule(
    "ZT606",
    "unsteppable-optimizer",
    ERROR,
    keys=("optimizer.type",),
    message="{value} can't train under DeepSpeed: it {reason}",
    help="use AdamW",
    source="torch 2.13 torch/optim",
    bad=[case({**optimizer("LBFGS"), "zero_allow_untested_optimizer": True}, entry="raw")],
    good=[case(optimizer("AdamW"))],
)
def unsteppable_optimizer(view):
    """The engine calls step() without arguments, on dense gradients (c012)."""
    found = built(view)
    if found and found[0] in UNSTEPPABLE:
        yield Hit("/optimizer/type", {"reason": UNSTEPPABLE[found[0]]})


@rule(
    "ZT609",
    "mup-optimizer",
    WARNING,
    keys=("optimizer.type",),
    message="{value} needs the package mup",
    help="pip install mup, or use AdamW",
    source=f"{ENGINE}:2487",
    bad=[case(optimizer("MuAdam"))],
    good=[case(optimizer("MuAdam"), versions={"mup": "1.0.0"})],
)
def mup_optimizer(view):
    """Without it the engine dies on an UnboundLocalError (c033)."""
    found = built(view)
    if found and found[0].lower() in MU_NAMES and "mup" not in view.context.versions:
        yield Hit("/optimizer/type")


@rule(
    "ZT610",
    "lamb-static-scale",
    ERROR,
    keys=("optimizer.type", "fp16.loss_scale"),
    message="Lamb needs dynamic loss scaling, and fp16.loss_scale is {scale}",
    help='write "loss_scale": 0',
    source=f"{ENGINE}:2022",
    bad=[case({**optimizer("Lamb"), "fp16": {"loss_scale": 128}, "zero_optimization": {"stage": 0}}, entry="raw")],
    good=[case({**optimizer("Lamb"), "fp16": {"loss_scale": 0}, "zero_optimization": {"stage": 0}}, entry="raw")],
)
def lamb_static_scale(view):
    """An assertion when the engine is built; it looks at loss_scale even when fp16 is off."""
    name, scale = view.get("optimizer.type"), view.number("fp16.loss_scale")
    if isinstance(name, str) and name.lower() == "lamb" and scale:
        yield Hit("/fp16/loss_scale", {"scale": scale})


@rule(
    "ZT611",
    "torch-adam-offload",
    WARNING,
    keys=("optimizer.params.torch_adam",),
    message="torch_adam with offload steps with PyTorch's Adam on the CPU, many times slower than DeepSpeed's",
    help="delete torch_adam",
    source=f"{ENGINE}:2342",
    bad=[case({**optimizer("AdamW", torch_adam=True), "zero_optimization": {"offload_optimizer": {"device": "cpu"}}})],
    good=[case(optimizer("AdamW", torch_adam=True))],
)
def torch_adam_offload(view):
    """zero_force_ds_cpu_optimizer looks only at optimizers that the client passes in (b051)."""
    found = built(view)
    if (
        found
        and found[0].lower() in ("adam", "adamw")
        and found[1].get("torch_adam") is True
        and view.stage in (1, 2, 3)
        and view.device("offload_optimizer") in ("cpu", "nvme")
    ):
        yield Hit(f"{PARAMS}/torch_adam", at_key=True, fix=Fix("remove", f"{PARAMS}/torch_adam"))


__all__ = ["DEEPSPEED_NAMES", "built", "optimizer"]
