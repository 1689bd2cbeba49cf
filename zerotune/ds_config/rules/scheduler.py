"""ZT62x: the scheduler block."""

from __future__ import annotations

from zerotune.errors import nearest

from ..context import TRAINER
from ..document import join
from ..finding import ERROR, WARNING
from ..history import before
from ..optimizers import OTHER_SCHEDULERS, SCHEDULERS
from .rule import Hit, case, rule

LR = "deepspeed 0.19.8 runtime/lr_schedules.py"
ENGINE = "deepspeed 0.19.8 runtime/engine.py:1923"
PARAMS = "/scheduler/params"
ADAM = {"type": "AdamW", "params": {"lr": 0.001}}


def scheduler(type: str, lr: float = 0.001, **params) -> dict:
    return {"optimizer": {"type": "AdamW", "params": {"lr": lr}}, "scheduler": {"type": type, "params": params}}


def raw(config: dict, **context):
    return case(config, entry="raw", **context)


@rule(
    "ZT620",
    "unknown-scheduler",
    ERROR,
    keys=("scheduler.type",),
    message="{value} is no scheduler that DeepSpeed or torch knows",
    help="use one of {choices}",
    source=ENGINE,
    bad=[raw(scheduler("cosine")), raw(scheduler("warmuplr"))],
    good=[raw(scheduler("WarmupLR")), raw(scheduler("StepLR", step_size=10))],
)
def unknown_scheduler(view):
    """An assertion when the engine is built; the case of the letters counts (c073)."""
    name = view.get("scheduler.type")
    if not isinstance(name, str):  # ZT110 reports it
        return
    if name not in SCHEDULERS and name not in OTHER_SCHEDULERS:
        names = list(SCHEDULERS)
        yield Hit("/scheduler/type", {"choices": ", ".join(nearest(str(name), names) or names[:5])})


@rule(
    "ZT621",
    "scheduler-without-params",
    ERROR,
    keys=("scheduler.params",),
    message="the scheduler has no params block",
    help='add "params": {{}}',
    source=ENGINE,
    bad=[raw({"optimizer": ADAM, "scheduler": {"type": "WarmupLR"}})],
    good=[raw({"optimizer": ADAM, "scheduler": {"type": "WarmupLR", "params": {}}})],
)
def scheduler_without_params(view):
    """A TypeError: None can't be unpacked. The optimizer's params may be missing, these may not (c074)."""
    block = view.block("scheduler")
    if block.get("type") is not None and block.get("params") is None:
        yield Hit("/scheduler", at_key=True)


@rule(
    "ZT622",
    "scheduler-argument",
    ERROR,
    keys=("scheduler.params",),
    message="{name} has no argument {argument}",
    help="its arguments: {arguments}",
    source=LR,
    bad=[raw(scheduler("WarmupLR", bogus=1)), raw(scheduler("WarmupCosineLR", total_num_steps=10, warmup_max_lr=0.1))],
    good=[raw(scheduler("WarmupDecayLR", total_num_steps=10, warmup_num_steps=2, warmup_max_lr=0.001))],
)
def scheduler_argument(view):
    """A TypeError when the engine is built (a037)."""
    name = view.get("scheduler.type")
    if isinstance(name, str) and name in SCHEDULERS:
        known = set().union(*SCHEDULERS[name])
        for argument in view.block("scheduler.params"):
            if argument not in known:
                facts = {"name": name, "argument": argument, "arguments": ", ".join(sorted(known))}
                yield Hit(join(PARAMS, argument), facts, at_key=True)


@rule(
    "ZT623",
    "scheduler-argument-missing",
    ERROR,
    keys=("scheduler.params.total_num_steps",),
    message="{name} needs {argument}",
    help="add it to scheduler.params{auto}",
    source=LR,
    bad=[raw(scheduler("WarmupDecayLR")), raw(scheduler("OneCycle", cycle_min_lr=0.1))],
    good=[case(scheduler("WarmupDecayLR", lr="auto", total_num_steps="auto", warmup_max_lr="auto"))],
)
def scheduler_argument_missing(view):
    """A TypeError when the engine is built (c067)."""
    name, params = view.get("scheduler.type"), view.get("scheduler.params")
    if isinstance(name, str) and name in SCHEDULERS and isinstance(params, dict):
        for argument in sorted(SCHEDULERS[name][0] - set(params)):
            auto = ', "auto" for the Trainer\'s value' if argument == "total_num_steps" and not view.raw else ""
            yield Hit(PARAMS, {"name": name, "argument": argument, "auto": auto}, at_key=True)


@rule(
    "ZT624",
    "warmup-steps",
    ERROR,
    keys=("scheduler.params.warmup_num_steps",),
    message="warmup_num_steps is {value}; it must be a whole number of at least 1",
    help="write 1 for no warmup",
    source=f"{LR}:734",
    bad=[raw(scheduler("WarmupLR", warmup_num_steps=0)), raw(scheduler("WarmupLR", warmup_num_steps=10.0))],
    good=[
        raw(scheduler("WarmupLR", warmup_num_steps=1)),
        raw(scheduler("WarmupLR", warmup_num_steps=0), versions={"deepspeed": "0.19.2"}),
    ],
)
def warmup_steps(view):
    """A ValueError since 0.19.3, for 10.0 too (c076, c077); before, anything below 2 was taken as 2."""
    if view.deepspeed and before(view.deepspeed, "0.19.3"):
        return
    value = view.get("scheduler.params.warmup_num_steps")
    name = view.get("scheduler.type")
    if (
        name in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
        and isinstance(value, (int, float))
        and (not isinstance(value, int) or value <= 0)
    ):
        yield Hit(f"{PARAMS}/warmup_num_steps")


@rule(
    "ZT625",
    "scheduler-overrides-lr",
    WARNING,
    keys=("scheduler.params.warmup_max_lr", "optimizer.params.lr"),
    message="the scheduler goes to {peak}{default}, the optimizer's lr {lr} is ignored",
    help="give both the same value",
    source=LR,
    bad=[raw(scheduler("WarmupLR", warmup_max_lr=0.5)), raw(scheduler("WarmupDecayLR", lr=1e-5, total_num_steps=9))],
    good=[raw(scheduler("WarmupLR", lr=0.5, warmup_max_lr=0.5)), raw(scheduler("WarmupLR", lr=1e-5))],
)
def scheduler_overrides_lr(view):
    """WarmupLR and WarmupDecayLR set the rate themselves, without a warning (c081); WarmupDecayLR's own default is
    0.001, WarmupLR's is the optimizer's rate."""
    name, lr = view.get("scheduler.type"), view.number("optimizer.params.lr")
    peak = view.get("scheduler.params.warmup_max_lr")
    default = ""
    if name == "WarmupDecayLR" and peak is None:
        peak, default = 0.001, " (its default)"
    if name in ("WarmupLR", "WarmupDecayLR") and lr is not None and isinstance(peak, (int, float)) and peak != lr:
        where = f"{PARAMS}/warmup_max_lr" if not default else "/scheduler/type"
        yield Hit(where, {"peak": peak, "lr": lr, "default": default})


@rule(
    "ZT626",
    "warmup-longer-than-run",
    WARNING,
    keys=("scheduler.params.total_num_steps",),
    message="total_num_steps {total} is less than warmup_num_steps {warmup}: the rate never reaches its peak",
    help="shorten the warmup",
    source=f"{LR}:826",
    bad=[raw(scheduler("WarmupDecayLR", total_num_steps=5, warmup_num_steps=10))],
    good=[raw(scheduler("WarmupDecayLR", total_num_steps=50, warmup_num_steps=10))],
)
def warmup_longer_than_run(view):
    """One line in the log (c078)."""
    total, warmup = view.number("scheduler.params.total_num_steps"), view.number("scheduler.params.warmup_num_steps")
    if total is not None and total < (warmup if warmup is not None else 1000):
        yield Hit(f"{PARAMS}/total_num_steps", {"total": total, "warmup": 1000 if warmup is None else warmup})


@rule(
    "ZT627",
    "warmup-type",
    WARNING,
    keys=("scheduler.params",),
    message="warmup_type {value} is taken as log",
    help='write "log" or "linear"',
    source=f"{LR}:752",
    bad=[raw(scheduler("WarmupLR", warmup_type="cosine"))],
    good=[raw(scheduler("WarmupLR", warmup_type="linear"))],
)
def warmup_type(view):
    """A warning in the log, then the default (c080)."""
    value = view.get("scheduler.params.warmup_type", "log")
    if str(view.get("scheduler.type")).startswith("Warmup") and value not in ("log", "linear"):
        yield Hit(f"{PARAMS}/warmup_type")


@rule(
    "ZT628",
    "scheduler-without-type",
    WARNING,
    keys=("scheduler.type",),
    message="the scheduler block has no type: there is no scheduler",
    help='add "type": "WarmupLR"',
    source="deepspeed 0.19.8 runtime/config.py:325",
    bad=[
        raw({"optimizer": ADAM, "scheduler": {"params": {}}}),
        case({"scheduler": {"params": {}}}),
    ],
    good=[raw(scheduler("WarmupLR"))],
)
def scheduler_without_type(view):
    """Silently none (c075). Under the Trainer an AttributeError in the first step: accelerate's stand-in stays."""
    block = view.get("scheduler")
    if isinstance(block, dict) and block.get("type") is None:
        yield Hit("/scheduler", at_key=True, severity=ERROR if view.context.entry == TRAINER else None)


@rule(
    "ZT629",
    "scheduler-without-optimizer",
    WARNING,
    keys=("scheduler", "optimizer"),
    message="there is a scheduler but no optimizer: the scheduler is dropped",
    help="add an optimizer block",
    source=f"{ENGINE}",
    bad=[raw({"scheduler": {"type": "WarmupLR", "params": {}}})],
    good=[raw(scheduler("WarmupLR"))],
)
def scheduler_without_optimizer(view):
    """Without an optimizer, from here or from the program, the engine builds no scheduler (c054)."""
    if view.raw and view.has("scheduler") and not view.has("optimizer") and not view.context.client_optimizer:
        yield Hit("/scheduler", at_key=True)
