"""ZT2xx, second part: values that the Trainer owns."""

from __future__ import annotations

from ..context import TRAINER
from ..finding import ERROR, INFO, WARNING, Fix
from ..owned import OWNERS, owned
from ..view import MISSING, pointer
from .rule import Hit, case, rule

HF = "transformers 5.24 integrations/deepspeed.py:134-246 (fill_match)"


FIGHTS = [
    ({"gradient_clipping": 0.5}, {"max_grad_norm": 1.0}),
    ({"train_micro_batch_size_per_gpu": 2}, {"per_device_train_batch_size": 4}),
    ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}, {"learning_rate": 1e-4}),
    ({"optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95]}}}, {}),
    ({"bf16": {"enabled": False}}, {"bf16": True}),
    ({"fp16": {"enabled": True}}, {"fp16": False}),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}}, {}),
    ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}}, {"warmup_steps": 0.5, "max_steps": 10}),
]


@rule(
    "ZT210",
    "fights-flag",
    ERROR,
    keys=tuple(OWNERS),
    message="{key} is {value} here, but --{flag} is {other}{default}",
    help='write "auto" here, or give both the same value',
    source=HF,
    bad=[case(config, training_args=arguments) for config, arguments in FIGHTS]
    + [case({"train_batch_size": 7}, training_args={"per_device_train_batch_size": 2}, world_size=2)],
    good=[
        case({"gradient_clipping": 0.5}, training_args={"max_grad_norm": 0.5}),
        case({"train_batch_size": 4}, training_args={"per_device_train_batch_size": 2}, world_size=2),
    ],
)
def fights_flag(view):
    """The Trainer compares both sides and stops with a ValueError, most of them only after the model is loaded
    (d06 to d13, d25, d33). It compares with the flag's default too."""
    for row in owned(view):
        value = view.get(row.path, MISSING)
        if value is MISSING or value is None or value == "auto" or row.value is None or value == row.value:
            continue
        default = "" if row.typed else " (its default)"
        facts = {"flag": row.flag, "other": shown(row.value), "default": default}
        yield Hit(pointer(row.path), facts, fix=Fix("set", pointer(row.path), "auto"))


def shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@rule(
    "ZT211",
    "flag-owns-value",
    INFO,
    keys=tuple(OWNERS),
    message="{key} is {value}; under the Trainer it must equal {flag}",
    help='write "auto", then the flag alone decides',
    source=HF,
    bad=[case({"gradient_clipping": 0.5}), case({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})],
    good=[case({"gradient_clipping": "auto"}), case({"gradient_clipping": 1.0}, training_args={})],
)
def flag_owns_value(view):
    """Two sources of truth: a literal here and a flag. Any difference stops the run."""
    if view.context.entry != TRAINER or view.context.training_args is not None:
        return
    for path, flag in OWNERS.items():
        if view.get(path) not in (None, "auto"):
            yield Hit(pointer(path), {"flag": flag}, fix=Fix("set", pointer(path), "auto"))


@rule(
    "ZT212",
    "clipping-flag-ignored",
    WARNING,
    keys=("gradient_clipping",),
    message="gradient_clipping is not in the config, so DeepSpeed clips at 1.0 and --max_grad_norm {wanted} is ignored",
    help='add "gradient_clipping": "auto"',
    source="deepspeed 0.19.8 runtime/constants.py:203; transformers leaves a missing key alone",
    bad=[case({"gradient_clipping": ...}, training_args={"max_grad_norm": 0.0})],
    good=[
        case({"gradient_clipping": "auto"}, training_args={"max_grad_norm": 0.0}),
        case({"gradient_clipping": ...}, training_args={"max_grad_norm": 1.0}),
    ],
)
def clipping_flag_ignored(view):
    """Omitted means 1.0. Asked for 0 or 5, both runs got 1.0 (d09, d36)."""
    wanted = view.context.argument("max_grad_norm")
    if view.context.entry == TRAINER and not view.has("gradient_clipping") and wanted not in (None, 1.0):
        yield Hit("", {"wanted": wanted}, fix=Fix("set", "/gradient_clipping", "auto"))


@rule(
    "ZT213",
    "precision-flag-ignored",
    WARNING,
    keys=("bf16.enabled", "fp16.enabled"),
    message="--{kind} is on, but the {kind} block has no enabled: the run trains in fp32",
    help='write "{kind}": {{"enabled": "auto"}}',
    source="transformers 5.24 integrations/deepspeed.py:185, accelerate 1.15 utils/dataclasses.py:1415",
    bad=[case({"bf16": {}}, training_args={"bf16": True})],
    good=[
        case({"bf16": {"enabled": "auto"}}, training_args={"bf16": True}),
        case({}, training_args={"bf16": True}),
    ],
)
def precision_flag_ignored(view):
    """A missing block is added by accelerate (d11); one that is there without `enabled` is left alone (d14)."""
    if view.context.entry != TRAINER:
        return
    for kind in ("bf16", "fp16"):
        block = view.get(kind)
        if view.context.argument(kind) and isinstance(block, dict) and block.get("enabled") is None:
            yield Hit(f"/{kind}", {"kind": kind}, at_key=True, fix=Fix("set", f"/{kind}/enabled", "auto"))


@rule(
    "ZT214",
    "no-zero-block",
    ERROR,
    keys=("zero_optimization",),
    message="there is no zero_optimization block, and {who} insists on one",
    help='add "zero_optimization": {{"stage": 2}}',
    source="accelerate 1.15 utils/dataclasses.py:1283",
    bad=[case({"zero_optimization": ...}), case({"zero_optimization": ...}, entry="accelerate")],
    good=[case({"zero_optimization": {"stage": 0}}), case({}, entry="raw")],
)
def no_zero_block(view):
    """ValueError in TrainingArguments (d15). Plain DeepSpeed runs without, at stage 0."""
    if not view.raw and view.judged and not view.has("zero_optimization"):
        yield Hit("", {"who": "the Trainer" if view.context.entry == TRAINER else "accelerate"})


@rule(
    "ZT215",
    "zero-without-stage",
    WARNING,
    keys=("zero_optimization.stage",),
    message="zero_optimization has no stage: that is stage 0, and nothing is divided",
    help="add the stage",
    source="deepspeed 0.19.8 runtime/zero/config.py:85",
    bad=[case({"zero_optimization": {"stage": ..., "overlap_comm": True}})],
    good=[case({"zero_optimization": {"stage": 0}})],
)
def zero_without_stage(view):
    """The default is 0, silently (d17)."""
    zero = view.get("zero_optimization")
    if isinstance(zero, dict) and zero.get("stage") is None and "stage" not in zero:
        yield Hit("/zero_optimization", at_key=True)


@rule(
    "ZT216",
    "steps-per-print-ignored",
    INFO,
    keys=("steps_per_print",),
    message="steps_per_print does nothing here: {who} sets it to infinity",
    help="use --logging_steps; delete the key",
    source="accelerate 1.15 utils/dataclasses.py:1330",
    bad=[case({"steps_per_print": 10})],
    good=[case({"steps_per_print": 10}, entry="raw")],
)
def steps_per_print_ignored(view):
    """Overwritten before the engine is built (d27)."""
    if not view.raw and view.has("steps_per_print"):
        who = "the Trainer" if view.context.entry == TRAINER else "accelerate"
        yield Hit("/steps_per_print", {"who": who}, at_key=True, fix=Fix("remove", "/steps_per_print", safe=True))


@rule(
    "ZT217",
    "block-decays-all",
    INFO,
    keys=("optimizer.params.weight_decay",),
    message="with an optimizer block, weight decay {decay} also falls on norms and biases",
    help="without the block the Trainer makes the optimizer, and leaves them out",
    source="transformers 5.24 integrations/deepspeed.py:577",
    bad=[
        case({"optimizer": {"type": "AdamW", "params": {"weight_decay": 0.1}}}, training_args={"weight_decay": 0.1}),
        case({"optimizer": {"type": "AdamW", "params": {"weight_decay": "auto"}}}, training_args={"weight_decay": 0.1}),
    ],
    good=[
        case({"optimizer": {"type": "AdamW", "params": {"weight_decay": "auto"}}}, training_args={}),
        case({}, training_args={"weight_decay": 0.1}),
    ],
)
def block_decays_all(view):
    """The Trainer hands the engine all weights as one group then; its own optimizer has a second group for norms and
    biases, without decay."""
    decay = view.get("optimizer.params.weight_decay")
    decay = view.context.argument("weight_decay") if decay == "auto" else decay
    known = isinstance(decay, (int, float)) and not isinstance(decay, bool)
    if view.context.entry == TRAINER and known and decay > 0:
        yield Hit("/optimizer/params/weight_decay", {"decay": decay})
