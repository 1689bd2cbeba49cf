"""ZT2xx, first part: "auto", which means something else to each entry point."""

from __future__ import annotations

from ..context import ACCELERATE, TRAINER
from ..document import dotted, join
from ..finding import ERROR, INFO, WARNING
from ..hidden_size import is_missing
from ..reading import BITWISE
from ..schema import fields, is_filled
from .rule import Hit, case, rule

HF = "transformers 5.24 integrations/deepspeed.py:88, accelerate 1.15 utils/dataclasses.py:1357, accelerator.py:2223"
DS = "deepspeed 0.19.8 runtime/config_utils.py:56 drops it, runtime/config.py reads it as text elsewhere"
WHO = {TRAINER: "the Trainer", ACCELERATE: "accelerate"}
# Read as numbers by plain DeepSpeed, at the latest in the first step (a044 to a055).
ENGINE_NUMBERS = ("optimizer.params.", "scheduler.params.")
DTYPES = ("data_types.grad_accum_dtype", "data_types.param_dtype", "torch_autocast.dtype")
NEVER_READ = ("$schema", "disable_allgather", "data_parallel_size")
# Monitors drop it like every pydantic block, timers look for a name in it.
PATIENT_BLOCKS = ("tensorboard", "wandb", "csv_monitor", "comet", "timers")


def autos(view):
    """Every "auto" in blocks (the fillers don't look into lists): pointer, dotted path."""
    stack = [("", view.config)]
    while stack:
        pointer, block = stack.pop()
        for name, value in block.items():
            here = join(pointer, name)
            if isinstance(value, dict):
                stack.append((here, value))
            elif value == "auto":
                yield here, dotted(here)


@rule(
    "ZT201",
    "auto-left-over",
    ERROR,
    keys=(),
    message='{key} is "auto", but {who} has nothing to fill it with',
    help="write a value or delete the key{hint}",
    source=HF,
    bad=[
        case({"zero_optimization": {"stage": 3, "sub_group_size": "auto"}}),
        case({"zero_optimization": {"stage": 3, "prefetch_bucket_size": "auto"}}),
        case({"optimizer": {"type": "AdamW", "params": {"betas": "auto"}}}, entry="accelerate"),
    ],
    good=[case({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}})],
)
def auto_left_over(view):
    """Any "auto" that is left when the engine is built is a ValueError, even at an unknown key (d19 to d21, d29)."""
    entry = view.context.entry
    if view.raw:
        return
    for pointer, path in autos(view):
        if not is_filled(path, entry):
            field = fields().get(path)
            alias = field.node.get("x-alias-of") if field else None
            hint = f"; {alias} can be auto" if alias else ""
            default = field.node.get("default") if field else None
            if default is not None and not alias:
                hint = f"; DeepSpeed's default is {default}"
            yield Hit(pointer, {"who": WHO[entry], "hint": hint})


@rule(
    "ZT202",
    "auto-dropped",
    WARNING,
    keys=("bf16.enabled", "fp16.enabled", "zero_optimization.stage"),
    message='plain DeepSpeed drops "auto": {key} is {default}',
    help="write the value; only the Trainer and accelerate fill auto",
    source=DS,
    bad=[case({"bf16": {"enabled": "auto"}}, entry="raw"), case({"zero_optimization": {"stage": "auto"}}, entry="raw")],
    good=[case({"bf16": {"enabled": True}}, entry="raw")],
)
def auto_dropped(view):
    """Pydantic blocks lose the key before they are checked: stage "auto" is stage 0, bf16 "auto" is off (a047)."""
    if not view.raw:
        return
    for pointer, path in autos(view):
        field = fields().get(path)
        if field and field.block.get("x-reader") == "pydantic" and field.node.get("default") != "auto":
            default = field.node.get("default", "left out")
            yield Hit(pointer, {"default": "left out" if default is None else str(default).lower()})


@rule(
    "ZT203",
    "auto-not-read",
    ERROR,
    keys=("train_micro_batch_size_per_gpu", "gradient_clipping", "optimizer.params.lr"),
    message='{key} is "auto", which plain DeepSpeed does not understand',
    help="write the value; only the Trainer and accelerate fill auto",
    source=DS,
    bad=[
        case({"train_batch_size": "auto"}, entry="raw"),
        case({"gradient_clipping": "auto"}, entry="raw"),
        case({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}, entry="raw"),
    ],
    good=[case({"gradient_clipping": "auto"}), case({"gradient_clipping": 1.0}, entry="raw")],
)
def auto_not_read(view):
    """A TypeError, for the batch keys in the parser, for the others as late as the first step (a044 to a055)."""
    if not view.raw:
        return
    for pointer, path in autos(view):
        field = fields().get(path)
        if field is None or (path.startswith(ENGINE_NUMBERS) and view.get(f"{path.split('.')[0]}.type") is None):
            continue
        top = not field.where and path not in NEVER_READ and path not in PATIENT_BLOCKS
        if field.node.get("type") == "boolean" and field.block.get("x-reader") != "pydantic":
            # Any text is true.
            yield Hit(pointer, severity=ERROR if path in BITWISE else WARNING)
        elif top or path.startswith(ENGINE_NUMBERS) or path in DTYPES:
            yield Hit(pointer)


@rule(
    "ZT204",
    "stage-auto",
    WARNING,
    keys=("zero_optimization.stage",),
    message='stage "auto" is 2, unless ACCELERATE_DEEPSPEED_ZERO_STAGE says otherwise',
    help="write the stage",
    source="accelerate 1.15 utils/dataclasses.py:1236",
    bad=[case({"zero_optimization": {"stage": "auto"}})],
    good=[case({"zero_optimization": {"stage": 3}})],
)
def stage_auto(view):
    """No flag of the Trainer stands behind it; accelerate takes an environment variable or 2 (d16)."""
    if not view.raw and view.get("zero_optimization.stage") == "auto":
        yield Hit("/zero_optimization/stage")


@rule(
    "ZT205",
    "offload-auto",
    WARNING,
    keys=("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"),
    message='{key} "auto" is "none": nothing is offloaded',
    help='write "cpu" or "nvme", or delete the block',
    source="accelerate 1.15 utils/dataclasses.py:1239",
    bad=[case({"zero_optimization": {"offload_optimizer": {"device": "auto"}}})],
    good=[case({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})],
)
def offload_auto(view):
    """Filled from an environment variable of `accelerate launch`, else with none, silently (d18)."""
    for which in ("offload_optimizer", "offload_param"):
        if not view.raw and view.get(f"zero_optimization.{which}.device") == "auto":
            yield Hit(f"/zero_optimization/{which}/device")


@rule(
    "ZT206",
    "gather-auto",
    INFO,
    keys=("zero_optimization.stage3_gather_16bit_weights_on_model_save",),
    message='{key} "auto" is false: checkpoints hold shards only',
    help="write true or false",
    source="accelerate 1.15 utils/dataclasses.py:1253",
    bad=[case({"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": "auto"}})],
    good=[case({"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": False}})],
)
def gather_auto(view):
    """Filled from an environment variable of `accelerate launch`, else with false (d31)."""
    key = "stage3_gather_16bit_weights_on_model_save"
    if not view.raw and view.get(f"zero_optimization.{key}") == "auto":
        yield Hit(f"/zero_optimization/{key}")


@rule(
    "ZT207",
    "auto-without-hidden-size",
    ERROR,
    keys=("zero_optimization.reduce_bucket_size",),
    message='{key} is "auto", but the model\'s config has no hidden_size to make it of',
    help="write a number of elements",
    source="transformers 5.24 integrations/deepspeed.py:196, accelerate 1.15 accelerator.py:2336",
    bad=[
        case({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}, model={"model_type": "musicgen"}),
        case(
            {"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}},
            model={"model_type": "llava", "text_config": {"hidden_size": 512}},
            entry="accelerate",
        ),
    ],
    good=[
        case({"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}, model=facts)
        for facts in ({"hidden_size": 512}, {"model_type": "gpt2", "n_embd": 768}, {"text_config": {}})
    ],
)
def auto_without_hidden_size(view):
    """Both take it from the model: hidden_size squared and its kin. A nested text_config is seen by the Trainer only."""
    model = view.context.model
    if view.raw or model is None:
        return
    if not is_missing(model, nested=view.context.entry == TRAINER):
        return
    # Code of the model's own may give the size under another name.
    severity = WARNING if "auto_map" in model else ERROR
    for name in ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"):
        if view.get(f"zero_optimization.{name}") == "auto":
            yield Hit(f"/zero_optimization/{name}", severity=severity)
