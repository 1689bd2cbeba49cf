"""ZT84x and up: checkpoints, monitors, profiling and other blocks."""

from __future__ import annotations

from ..context import TRAINER
from ..finding import ERROR, INFO, WARNING, Fix
from .rule import Hit, case, rule

CONFIG = "deepspeed 0.19.8 runtime/config.py"


def raw(config: dict, **context):
    return case(config, entry="raw", **context)


@rule(
    "ZT840",
    "tag-validation",
    ERROR,
    keys=("checkpoint.tag_validation",),
    message="checkpoint.tag_validation is {value}; it must be WARN, FAIL or IGNORE",
    help='write "WARN"',
    source=f"{CONFIG}:387",
    bad=[raw({"checkpoint": {"tag_validation": "strict"}})],
    good=[raw({"checkpoint": {"tag_validation": "fail"}})],
)
def tag_validation(view):
    """A DeepSpeedConfigError in the parser; the case does not matter (e008)."""
    value = view.get("checkpoint.tag_validation", "WARN")
    if isinstance(value, str) and value.upper() not in ("WARN", "FAIL", "IGNORE"):
        yield Hit("/checkpoint/tag_validation")


@rule(
    "ZT841",
    "checkpoint-writer",
    ERROR,
    keys=("checkpoint.writer",),
    message="a checkpoint writer without data_parallel breaks when the engine is built",
    help='add "data_parallel": "replica", or delete the writer',
    source="deepspeed 0.19.8 runtime/model_checkpointing",
    bad=[raw({"checkpoint": {"writer": {"type": "FAST"}}})],
    good=[raw({"checkpoint": {"tag_validation": "WARN"}})],
)
def checkpoint_writer(view):
    """An AttributeError about dp_rank, for every type (e009, e010)."""
    writer = view.get("checkpoint.writer")
    if isinstance(writer, dict) and writer.get("data_parallel") is None:
        yield Hit("/checkpoint/writer", at_key=True)


@rule(
    "ZT842",
    "datastates-always-on",
    ERROR,
    keys=("datastates_ckpt",),
    message="datastates_ckpt is on although it says enabled false: only the literal false switches it off",
    help="delete the block",
    source="deepspeed 0.19.8 datastates/config.py",
    bad=[raw({"datastates_ckpt": {"enabled": False}})],
    good=[raw({"datastates_ckpt": False})],
)
def datastates_always_on(view):
    """ "Please install DataStates", or another checkpoint engine than asked for (e012)."""
    value = view.get("datastates_ckpt")
    if isinstance(value, dict) and value.get("enabled") is False:
        yield Hit("/datastates_ckpt", at_key=True, fix=Fix("remove", "/datastates_ckpt"))


@rule(
    "ZT843",
    "monitor-package",
    WARNING,
    keys=("comet.enabled", "wandb.enabled", "tensorboard.enabled"),
    message="{name} needs the package {package} on rank 0; without it rank 0 stops and the others lose their connection",
    help="pip install {package}, or use the Trainer's report_to",
    source="deepspeed 0.19.8 monitor/",
    bad=[raw({"comet": {"enabled": True}})],
    good=[raw({"comet": {"enabled": False}})],
)
def monitor_package(view):
    """The import happens on one rank only (e049, e050)."""
    for name, package in {"comet": "comet_ml", "wandb": "wandb", "tensorboard": "tensorboard"}.items():
        if view.flag(f"{name}.enabled") and package not in view.context.versions:
            yield Hit(f"/{name}/enabled", {"name": name, "package": package})


@rule(
    "ZT844",
    "activation-checkpointing-unread",
    WARNING,
    keys=("activation_checkpointing",),
    message="the activation_checkpointing block does nothing: the engine never reads it",
    help="{todo}",
    source="deepspeed 0.19.8 runtime/activation_checkpointing/checkpointing.py:1121",
    bad=[case({"activation_checkpointing": {"partition_activations": True}}),
         raw({"activation_checkpointing": {"cpu_checkpointing": True}})],
    good=[case({"activation_checkpointing": {"partition_activations": False}})],
)  # fmt: skip
def activation_checkpointing_unread(view):
    """Only a program that calls deepspeed.checkpointing.configure itself reads it (e046)."""
    asked = [name for name, value in view.block("activation_checkpointing").items() if value not in (False, None)]
    if asked:
        todo = "call deepspeed.checkpointing.configure in the program, or delete the block"
        if view.context.entry == TRAINER:
            todo = "use --gradient_checkpointing true, and delete the block"
        yield Hit("/activation_checkpointing", {"todo": todo}, at_key=True)


@rule(
    "ZT845",
    "curriculum-inner-switch",
    WARNING,
    keys=("data_efficiency.enabled",),
    message="data_efficiency is off, but the curriculum inside it is on, and only that counts",
    help="switch the inner one off too",
    source="deepspeed 0.19.8 runtime/engine.py",
    bad=[
        raw(
            {"data_efficiency": {"data_sampling": {"curriculum_learning": {"enabled": True, "curriculum_metrics": {}}}}}
        )
    ],
    good=[raw({"data_efficiency": {"enabled": False, "data_sampling": {"curriculum_learning": {"enabled": False}}}})],
)
def curriculum_inner_switch(view):
    """The engine goes on to read the curriculum's data (e055)."""
    inner = view.get("data_efficiency.data_sampling.curriculum_learning.enabled")
    if view.has("data_efficiency") and not view.get("data_efficiency.enabled") and inner is True:
        yield Hit("/data_efficiency", at_key=True)


@rule(
    "ZT846",
    "log-level",
    ERROR,
    keys=("log_level",),
    message="log_level is {value}; it must be debug, info, warning, error or critical",
    help='write "info"',
    source="deepspeed 0.19.8 utils/logging.py:187",
    bad=[raw({"log_level": "verbose"})],
    good=[raw({"log_level": "INFO"})],
)
def log_level(view):
    """A ValueError when the engine is built (e051)."""
    value = view.get("log_level")
    if (
        isinstance(value, str)
        and value != "auto"
        and value.lower() not in ("debug", "info", "warning", "error", "critical")
    ):
        yield Hit("/log_level")


@rule(
    "ZT847",
    "steps-per-print-zero",
    ERROR,
    keys=("steps_per_print",),
    message="steps_per_print 0 divides by zero in step 1, on rank 0 only",
    help="delete it",
    source="deepspeed 0.19.8 runtime/engine.py",
    bad=[raw({"steps_per_print": 0})],
    good=[raw({"steps_per_print": 1})],
)
def steps_per_print_zero(view):
    """The other ranks lose their connection (e052)."""
    if view.raw and view.number("steps_per_print") == 0:
        yield Hit("/steps_per_print")


@rule(
    "ZT848",
    "breakdown-cost",
    INFO,
    keys=("wall_clock_breakdown", "flops_profiler.enabled"),
    message="{key} synchronizes the device at every phase: for measuring, not for training",
    help="switch it off for real runs",
    source=f"{CONFIG}:536",
    bad=[raw({"wall_clock_breakdown": True}), raw({"flops_profiler": {"enabled": True}})],
    good=[raw({"wall_clock_breakdown": False})],
)
def breakdown_cost(view):
    """The flops profiler switches wall_clock_breakdown on."""
    for path in ("wall_clock_breakdown", "flops_profiler.enabled"):
        if view.get(path) is True:
            yield Hit("/" + path.replace(".", "/"))


@rule(
    "ZT849",
    "parallel-write",
    ERROR,
    keys=("checkpoint.parallel_write.pipeline_stage",),
    message="checkpoint.parallel_write.pipeline_stage is {value}; it must be true or false",
    help="write true or false",
    source=f"{CONFIG}:398",
    bad=[raw({"checkpoint": {"parallel_write": {"pipeline_stage": "yes"}}})],
    good=[raw({"checkpoint": {"parallel_write": {"pipeline_stage": True}}})],
)
def parallel_write(view):
    """A DeepSpeedConfigError in the parser; here no text is taken for a boolean."""
    value = view.get("checkpoint.parallel_write.pipeline_stage", False)
    if value not in (True, False):
        yield Hit("/checkpoint/parallel_write/pipeline_stage")


@rule(
    "ZT850",
    "clipping-by-default",
    INFO,
    keys=("gradient_clipping",),
    message="gradient_clipping is left out: DeepSpeed clips at 1.0",
    help="write it; 0 switches clipping off",
    source="deepspeed 0.19.8 runtime/constants.py:203",
    bad=[raw({})],
    good=[raw({"gradient_clipping": 0})],
)
def clipping_by_default(view):
    """Not 0, as older documentation says (c082, d09)."""
    if view.judged and not view.has("gradient_clipping") and view.context.entry != TRAINER:
        yield Hit("")


@rule(
    "ZT851",
    "clipping-null",
    ERROR,
    keys=("gradient_clipping",),
    message="gradient_clipping null breaks the first step",
    help="write 0 for no clipping, or delete the key for 1.0",
    source="deepspeed 0.19.8 runtime/zero/stage_1_and_2.py",
    bad=[raw({"gradient_clipping": None})],
    good=[raw({"gradient_clipping": 0})],
)
def clipping_null(view):
    """Passes the parser; None can't be compared with 0 (c083)."""
    if view.has("gradient_clipping") and view.get("gradient_clipping") is None:
        yield Hit("/gradient_clipping")


@rule(
    "ZT852",
    "checkpoint-writer-choice",
    ERROR,
    keys=("checkpoint.writer.type", "checkpoint.writer.data_parallel"),
    message="{key} is {value}; it must be {choices}",
    help="write one of them",
    source="deepspeed 0.19.8 runtime/model_checkpointing/config.py",
    bad=[raw({"checkpoint": {"writer": {"type": "SLOW", "data_parallel": "replica"}}})],
    good=[raw({"checkpoint": {"writer": {"type": "fast", "data_parallel": "replica"}}})],
)
def checkpoint_writer_choice(view):
    """An assertion in the parser; the case does not matter."""
    choices = {"type": ("MOCK", "PYTHON", "FAST"), "data_parallel": ("REPLICA", "SOCKET", "MACHINE")}
    for name, allowed in choices.items():
        value = view.get(f"checkpoint.writer.{name}")
        if value is not None and str(value).upper() not in allowed:
            yield Hit(f"/checkpoint/writer/{name}", {"choices": ", ".join(allowed)})


@rule(
    "ZT853",
    "autotuning-folder",
    ERROR,
    keys=("autotuning.results_dir", "autotuning.exps_dir"),
    message="{key} is {value}; it must name a folder",
    help="write a folder, or delete the key",
    source="deepspeed 0.19.8 autotuning/config.py:39",
    bad=[raw({"autotuning": {"results_dir": ""}})],
    good=[raw({"autotuning": {"results_dir": "autotuning_results"}})],
)
def autotuning_folder(view):
    """An assertion in the parser, whether autotuning is on or not."""
    for name in ("results_dir", "exps_dir"):
        if name in view.block("autotuning") and not view.get(f"autotuning.{name}"):
            yield Hit(f"/autotuning/{name}")


@rule(
    "ZT854",
    "data-efficiency-argument",
    ERROR,
    keys=("data_efficiency.data_sampling.curriculum_learning", "data_efficiency.data_sampling.dynamic_batching"),
    message="{key} is on, but {name} is missing",
    help="add {name}, or switch it off",
    source="deepspeed 0.19.8 runtime/data_pipeline/config.py",
    bad=[raw({"data_efficiency": {"data_sampling": {"dynamic_batching": {"enabled": True}}}})],
    good=[raw({"data_efficiency": {"data_sampling": {"dynamic_batching": {"enabled": True, "max_tokens": 512}}}})],
)
def data_efficiency_argument(view):
    """Assertions in the parser, whether data_efficiency itself is on or not."""
    needed = {"curriculum_learning": "curriculum_metrics", "dynamic_batching": "max_tokens"}
    for block, name in needed.items():
        path = f"data_efficiency.data_sampling.{block}"
        if view.get(f"{path}.enabled") and name not in view.block(path):
            yield Hit("/" + path.replace(".", "/"), {"name": name}, at_key=True)
