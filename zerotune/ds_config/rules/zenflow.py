"""ZT54x: ZenFlow."""

from __future__ import annotations

from ..context import RAW
from ..finding import ERROR, WARNING, Fix
from .rule import Hit, case, rule

SOURCE = "deepspeed 0.19.8 runtime/zenflow/engine.py"
BLOCK = "/zero_optimization/zenflow"
EMPTY = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "zenflow": {}}}
ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
STEPS = {"select_strategy": "step", "select_interval": 4, "update_interval": 1}


def zenflow(stage: int = 2, device: str = "cpu", **block) -> dict:
    zero = {"stage": stage, "zenflow": {**STEPS, **block}}
    if device != "none":
        zero["offload_optimizer"] = {"device": device}
    return {"zero_optimization": zero}


def raw(config: dict):
    return case(config, entry="raw")


def settings(view) -> dict | None:
    """The block with its defaults; None when there is none."""
    block = view.get("zero_optimization.zenflow")
    if not isinstance(block, dict):
        return None
    return {"select_strategy": "auto", "select_interval": "auto", "update_interval": "auto", **block}


def offloaded(view) -> bool:
    """ZenFlow as it is meant: below stage 3 with the optimizer on the CPU."""
    return settings(view) is not None and view.stage in (1, 2) and view.device("offload_optimizer") != "none"


@rule(
    "ZT541",
    "zenflow-without-offload",
    ERROR,
    keys=("zero_optimization.zenflow",),
    message="ZenFlow needs offload_optimizer",
    help='add "offload_optimizer": {{"device": "cpu"}}',
    source="deepspeed 0.19.8 runtime/zenflow/zenflow_stage_1_and_2.py",
    bad=[raw(zenflow(2, "none"))],
    good=[raw(zenflow(2))],
)
def zenflow_without_offload(view):
    """A ValueError when the engine is built at stages 1 and 2 (b065); stage 3 does not check (b069)."""
    if settings(view) is not None and view.stage in (1, 2) and view.device("offload_optimizer") == "none":
        yield Hit(BLOCK, at_key=True)


@rule(
    "ZT542",
    "zenflow-stage-0",
    ERROR,
    keys=("zero_optimization.zenflow",),
    message="ZenFlow needs ZeRO stage 1, 2 or 3",
    help="set the stage",
    source=SOURCE,
    bad=[raw(zenflow(0))],
    good=[raw(zenflow(1))],
)
def zenflow_stage_0(view):
    """Accepted when built, an AttributeError in the first backward (b068)."""
    if settings(view) is not None and view.stage == 0:
        yield Hit(BLOCK, at_key=True)


@rule(
    "ZT543",
    "zenflow-interval",
    ERROR,
    keys=("zero_optimization.zenflow.select_interval", "zero_optimization.zenflow.select_strategy"),
    message="select_strategy {strategy} {conflict}",
    help="{todo}",
    source=f"{SOURCE}:35-46",
    bad=[raw(zenflow(select_strategy="auto")), raw(zenflow(select_interval="auto"))],
    good=[raw(zenflow())],
)
def zenflow_interval(view):
    """With auto an integer interval is a Warning that is raised, with step or epoch "auto" is a ValueError (b071, b072)."""
    block = settings(view)
    if block is None:
        return
    strategy, interval = block["select_strategy"], block["select_interval"]
    if strategy == "auto" and isinstance(interval, int):
        facts = {"conflict": f"takes no select_interval, here {interval}", "todo": "delete select_interval"}
        yield Hit(f"{BLOCK}/select_interval", {"strategy": strategy, **facts})
    if strategy in ("step", "epoch") and isinstance(interval, str):
        facts = {"conflict": "needs a number as select_interval", "todo": "write select_interval"}
        yield Hit(BLOCK, {"strategy": strategy, **facts}, at_key=True)


@rule(
    "ZT544",
    "zenflow-select-before-update",
    ERROR,
    keys=("zero_optimization.zenflow.select_interval", "zero_optimization.zenflow.update_interval"),
    message="select_interval {select} is smaller than update_interval {update}",
    help="make select_interval a multiple of update_interval",
    source=f"{SOURCE}:62",
    bad=[
        raw(zenflow(select_interval=1, update_interval=2)),
        raw(zenflow(select_strategy="epoch", select_interval=1, update_interval=3, steps_per_epoch=2)),
    ],
    good=[
        raw(zenflow(select_interval=4, update_interval=2)),
        raw(zenflow(select_strategy="epoch", select_interval=1, update_interval=3)),
    ],
)
def zenflow_select_before_update(view):
    """A ValueError when the engine is built (b073). Epochs are steps_per_epoch steps long, where it is written."""
    block = settings(view)
    if block is None:
        return
    select, update = block["select_interval"], block["update_interval"]
    if block["select_strategy"] != "step":
        epoch = block.get("steps_per_epoch")
        select = 1 if block["select_strategy"] == "auto" else select
        if not offloaded(view) or not isinstance(epoch, int) or not isinstance(select, int):
            return
        select *= epoch
    if isinstance(select, int) and isinstance(update, int) and 0 != select < update:
        yield Hit(BLOCK, {"select": select, "update": update}, at_key=True)


@rule(
    "ZT545",
    "zenflow-offload-overlap",
    ERROR,
    keys=("zero_optimization.zenflow.offload", "zero_optimization.overlap_comm"),
    message="zenflow.offload needs overlap_comm",
    help='add "overlap_comm": true to zero_optimization',
    source="deepspeed 0.19.8 runtime/zenflow/zenflow_stage_1_and_2.py",
    bad=[raw(zenflow(offload=True))],
    good=[
        raw({"zero_optimization": {**zenflow(offload=True)["zero_optimization"], "overlap_comm": True}}),
    ],
)
def zenflow_offload_overlap(view):
    """An assertion when the engine is built; overlap_comm is off by default below stage 3 (b075)."""
    if (
        settings(view) is not None
        and view.flag("zero_optimization.zenflow.offload")
        and not view.overlap
        and view.stage in (1, 2)
    ):
        yield Hit(f"{BLOCK}/offload", fix=Fix("set", "/zero_optimization/overlap_comm", True))


@rule(
    "ZT546",
    "zenflow-never-steps",
    ERROR,
    keys=("zero_optimization.zenflow.update_interval",),
    message='update_interval "auto" sets the accumulation to 0: no optimizer step, and the loss is NaN from step 2',
    help="write update_interval as a number",
    source=f"{SOURCE}:50-69",
    bad=[raw(EMPTY)],
    good=[raw(zenflow()), case({**ADAMW, **EMPTY})],
)
def zenflow_never_steps(view):
    """ "auto" is the default, so an empty block is enough; no error is raised (b074). The Trainer and accelerate say
    themselves when a step is due, so it runs there."""
    block = settings(view)
    if view.raw and block is not None and block["update_interval"] == "auto" and view.stage in (1, 2):
        yield Hit(BLOCK, at_key=True)


@rule(
    "ZT547",
    "zenflow-accumulation",
    WARNING,
    keys=("zero_optimization.zenflow.update_interval", "gradient_accumulation_steps"),
    message="update_interval {update} replaces gradient_accumulation_steps {steps}; the reported batch size stays wrong",
    help="give both the same value",
    source=f"{SOURCE}:69",
    bad=[raw({"gradient_accumulation_steps": 8, **zenflow(update_interval=2)})],
    good=[raw({"gradient_accumulation_steps": 2, **zenflow(update_interval=2)})],
)
def zenflow_accumulation(view):
    """8 became 2, and train_batch_size was still 32 (b076)."""
    block = settings(view)
    steps = view.get("gradient_accumulation_steps", 1)
    if steps == "auto":
        steps = view.context.argument("gradient_accumulation_steps")
    if (
        block is not None
        and isinstance(block["update_interval"], int)
        and isinstance(steps, int)
        and block["update_interval"] != steps
        and view.stage
    ):
        yield Hit(BLOCK, {"update": block["update_interval"], "steps": steps}, at_key=True)


@rule(
    "ZT548",
    "zenflow-transposes",
    WARNING,
    keys=("zero_optimization.zenflow",),
    message="ZenFlow below stage 3 transposes 2-D weights in place: pretrained weights may be wrong after initialization",
    help="compare the first loss with a run without ZenFlow before you trust it",
    source="deepspeed 0.19.8 runtime/zenflow/zenflow_stage_1_and_2.py; seen on CPU, not tried on a GPU",
    bad=[raw(zenflow())],
    good=[raw({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}})],
)
def zenflow_transposes(view):
    """After initialization every square weight equalled its own transpose; the first loss of a small Llama changed
    too (f090, f091, e001, e002)."""
    if offloaded(view):
        yield Hit(BLOCK, at_key=True)


@rule(
    "ZT549",
    "zenflow-optimizer-params",
    ERROR,
    keys=("optimizer.params", "zero_optimization.zenflow"),
    message="ZenFlow needs an optimizer block with params in the config",
    help='add "optimizer": {{"type": "AdamW", "params": {{"lr": ...}}}}',
    source="deepspeed 0.19.8 runtime/zenflow/zenflow_stage_1_and_2.py",
    bad=[
        raw({"optimizer": {"type": "AdamW"}, **zenflow()}),
        case(zenflow(), entry="raw", client_optimizer="DeepSpeedCPUAdam"),
    ],
    good=[raw({"optimizer": {"type": "AdamW", "params": {}}, **zenflow()})],
)
def zenflow_optimizer_params(view):
    """A TypeError when the engine is built: its own optimizer is given the params of the config, also where the
    program passes an optimizer."""
    if not offloaded(view) or view.get("optimizer.params") is not None:
        return
    if view.has("optimizer") or view.context.client_optimizer or view.context.entry != RAW:
        yield Hit("/optimizer" if view.has("optimizer") else BLOCK, at_key=True)


@rule(
    "ZT551",
    "zenflow-optimizer",
    ERROR,
    keys=("optimizer.type", "optimizer.params.torch_adam", "zero_optimization.zenflow"),
    message="ZenFlow steps DeepSpeed's own CPU Adam, not {what}",
    help="{todo}",
    source="deepspeed 0.19.8 runtime/zenflow/zenflow_stage_1_and_2.py:626",
    bad=[
        raw({"optimizer": {"type": "Adagrad", "params": {"lr": 1e-3}}, **zenflow()}),
        raw({"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}, **zenflow()}),
        case({**ADAMW, **zenflow()}, entry="raw", client_optimizer="DeepSpeedCPUAdam"),
    ],
    good=[
        raw({"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}, **zenflow()}),
        raw({"optimizer": {"type": "Muon", "params": {"lr": 1e-3}}, **zenflow()}),
    ],
)
def zenflow_optimizer(view):
    """Its step is called with step_id, which other optimizers do not take: a TypeError in the first step. The params
    of the config are given to ZenFlow's own Adam too, which does not know torch_adam."""
    name, client = view.get("optimizer.type"), view.context.client_optimizer
    if not offloaded(view) or not isinstance(name, str):
        return
    if view.raw and client:
        if client != "ZenFlowCPUAdam":
            yield Hit(BLOCK, {"what": f"the program's {client}", "todo": "pass no optimizer to deepspeed.initialize"})
    elif name.lower() not in ("adam", "adamw", "muon"):
        yield Hit("/optimizer/type", {"what": name, "todo": "use Adam, AdamW or Muon, or delete zenflow"})
    elif "torch_adam" in view.block("optimizer.params"):
        facts = {"what": "PyTorch's", "todo": "delete torch_adam"}
        yield Hit("/optimizer/params/torch_adam", facts, at_key=True, fix=Fix("remove", "/optimizer/params/torch_adam"))
