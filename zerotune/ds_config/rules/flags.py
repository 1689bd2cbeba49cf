"""ZT22x: flags of the Trainer that the config silences."""

from __future__ import annotations

from zerotune.errors import nearest

from ..context import TRAINER, TRAINING_DEFAULTS
from ..finding import ERROR, WARNING, Fix
from .rule import Hit, case, rule

HF = "transformers 5.24 integrations/deepspeed.py"
# Flags that these rules ask for, and real ones that look much like them.
KNOWN = {*TRAINING_DEFAULTS, "optim", "lr_scheduler_type", "gradient_checkpointing", "torch_compile", "warmup_ratio"}
KNOWN |= {"per_device_eval_batch_size", "num_train_epochs"}
DEFAULTS = {"lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}


def adamw(**params) -> dict:
    return {"optimizer": {"type": "AdamW", "params": params}}


@rule(
    "ZT220",
    "optimizer-flag-ignored",
    WARNING,
    keys=("optimizer.params.lr", "optimizer.params.weight_decay"),
    message="optimizer.params has no {name}: DeepSpeed takes {default}, and --{flag} {wanted} is ignored",
    help='add "{name}": "auto"',
    source=f"{HF}:160: only keys that are there are filled",
    bad=[case(adamw(eps="auto"), training_args={"learning_rate": 2e-5}),
         case(adamw(lr="auto"), training_args={"weight_decay": 0.1})],
    good=[case(adamw(lr="auto", weight_decay="auto"), training_args={"weight_decay": 0.1})],
)  # fmt: skip
def optimizer_flag_ignored(view):
    """The engine builds the optimizer from this block alone; what is missing gets the constructor's default."""
    context, kind = view.context, view.get("optimizer.type")
    if context.entry != TRAINER or context.training_args is None or str(kind).lower() not in ("adam", "adamw"):
        return
    params = view.block("optimizer.params")
    flags = {"lr": "learning_rate", "eps": "adam_epsilon", "weight_decay": "weight_decay"}
    for name, flag in flags.items():
        wanted, default = context.argument(flag), DEFAULTS[name]
        if name == "weight_decay" and params.get("torch_adam"):
            default = 0.01 if str(kind).lower() == "adamw" or params.get("adam_w_mode", True) else 0.0
        if name not in params and wanted is not None and wanted != default:
            facts = {"name": name, "flag": flag, "default": default, "wanted": wanted}
            yield Hit("/optimizer", facts, at_key=True, fix=Fix("set", f"/optimizer/params/{name}", "auto"))
    betas = [context.argument("adam_beta1"), context.argument("adam_beta2")]
    if "betas" not in params and None not in betas and betas != DEFAULTS["betas"]:
        facts = {"name": "betas", "flag": "adam_beta1 and --adam_beta2", "default": DEFAULTS["betas"], "wanted": betas}
        yield Hit("/optimizer", facts, at_key=True, fix=Fix("set", "/optimizer/params/betas", "auto"))


@rule(
    "ZT221",
    "optim-flag-ignored",
    WARNING,
    keys=("optimizer.type",),
    message="the config's optimizer {value} wins: --optim {wanted} is ignored",
    help="delete the optimizer block, or the flag",
    source=f"{HF}:576",
    bad=[case(adamw(lr="auto"), training_args={"optim": "adafactor"})],
    good=[case(adamw(lr="auto"), training_args={"optim": "adamw_torch_fused"}),
          case({}, training_args={"optim": "adafactor"})],
)  # fmt: skip
def optim_flag_ignored(view):
    """No comparison of the type is made (d26)."""
    wanted, kind = view.context.argument("optim"), str(view.get("optimizer.type")).lower()
    same = kind in ("adam", "adamw") and str(wanted).startswith(("adamw_torch", "adamw_hf"))
    if view.context.entry == TRAINER and view.context.typed("optim") and view.has("optimizer.type") and not same:
        yield Hit("/optimizer/type", {"wanted": wanted})


@rule(
    "ZT222",
    "scheduler-flag-ignored",
    WARNING,
    keys=("scheduler.type",),
    message="the config's scheduler {value} wins: --lr_scheduler_type {wanted} is ignored",
    help="delete the scheduler block, then the Trainer builds the one that the flag names",
    source=f"{HF}:592",
    bad=[case({**adamw(lr="auto"), "scheduler": {"type": "WarmupLR", "params": {}}},
              training_args={"lr_scheduler_type": "cosine"})],
    good=[case(adamw(lr="auto"), training_args={"lr_scheduler_type": "cosine"})],
)  # fmt: skip
def scheduler_flag_ignored(view):
    """The engine builds the scheduler from the config."""
    context = view.context
    if context.entry == TRAINER and context.typed("lr_scheduler_type") and view.has("scheduler.type"):
        yield Hit("/scheduler/type", {"wanted": context.argument("lr_scheduler_type")})


@rule(
    "ZT223",
    "offload-swaps-optimizer",
    WARNING,
    keys=("zero_optimization.offload_optimizer", "optimizer"),
    message="with offload and no optimizer block, accelerate replaces the Trainer's optimizer{lost}",
    help='add an optimizer block: {{"type": "AdamW", "params": {{"lr": "auto", "betas": "auto", "eps": "auto", '
    '"weight_decay": "auto"}}}}',
    source="accelerate 1.15 utils/deepspeed.py:43",
    bad=[
        case({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, training_args={"optim": "sgd"}),
        case({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
             training_args={"adam_beta2": 0.95}),
    ],
    good=[case({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, training_args={})],
)  # fmt: skip
def offload_swaps_optimizer(view):
    """Anything it does not know becomes DeepSpeed's CPU Adam, so --optim sgd trains with Adam (d24); only lr and weight
    decay survive, betas and eps are lost."""
    context = view.context
    if context.entry != TRAINER or context.training_args is None or view.has("optimizer"):
        return
    if view.device("offload_optimizer") == "none" or not view.flag("zero_force_ds_cpu_optimizer", True):
        return
    lost = []
    optim = str(context.training_args.get("optim") or "adamw_torch")
    if not optim.startswith(("adamw", "adagrad")) and context.typed("optim"):
        lost.append(f"{optim} by CPU Adam")
    names = {"adam_beta1": 0.9, "adam_beta2": 0.999, "adam_epsilon": 1e-8}
    lost += [f"--{name} is lost" for name, default in names.items() if context.argument(name) != default]
    if lost:
        yield Hit("/zero_optimization/offload_optimizer", {"lost": ": " + ", ".join(lost)}, at_key=True)


@rule(
    "ZT224",
    "accelerate-mixed-precision",
    ERROR,
    keys=("bf16.enabled", "fp16.enabled"),
    message="--{flag} is on, but the config switches {other} on",
    help='write "enabled": "auto" in both blocks',
    source="accelerate 1.15 utils/dataclasses.py:1435",
    bad=[case({"fp16": {"enabled": True}}, training_args={"bf16": True})],
    good=[case({"fp16": {"enabled": "auto"}}, training_args={"bf16": True})],
)
def accelerate_mixed_precision(view):
    """Accelerate refuses a mode beside the other one's block."""
    for flag, other in (("bf16", "fp16"), ("fp16", "bf16")):
        literal = view.get(f"{other}.enabled")
        if view.context.entry == TRAINER and view.context.argument(flag) and str(literal).lower() == "true":
            yield Hit(f"/{other}/enabled", {"flag": flag, "other": other})


@rule(
    "ZT225",
    "misspelt-flag",
    WARNING,
    keys=(),
    message="--{name} is no flag of the Trainer: it was compared with nothing",
    help="did you mean --{meant}?",
    source="transformers 5.24 training_args.py",
    bad=[case({}, training_args={"learning_rat": 1e-5})],
    good=[case({}, training_args={"learning_rate": 1e-5, "learning_rate_head": 1e-4, "my_own_flag": 1})],
)
def misspelt_flag(view):
    """Scripts have flags of their own, so only names that are very near to one of the Trainer's are reported. argparse
    takes a name that is merely cut short; these checks do not."""
    context = view.context
    if context.entry != TRAINER:
        return
    for name in sorted({*(context.training_args or ()), *context.unknown} - KNOWN):
        for meant in nearest(name, KNOWN, 1, 0.9):
            if not name.startswith(meant):
                yield Hit("", {"name": name, "meant": meant})
