"""ZT84x and up: checkpoints, monitors, profiling and other blocks."""

from __future__ import annotations

from ..context import TRAINER
from ..finding import ERROR, INFO, WARNING
from .rule import Hit, case, rule

CONFIG = "deepspeed 0.19.8 runtime/config.py"


def raw(config: dict, **context):
    return case(config, entry="raw", **context)


@rule(
    "ZT843",
    "monitor-package",
    WARNING,
    keys=("comet.enabled", "wandb.enabled", "tensorboard.enabled"),
    message="{name} needs the package {package} on rank 0; without it rank 0 stops and the others lose their connection",
    help="pip install {package}{other}",
    source="deepspeed 0.19.8 monitor/",
    bad=[raw({"comet": {"enabled": True}})],
    good=[raw({"comet": {"enabled": False}})],
)
def monitor_package(view):
    """The import happens on one rank only (e049, e050)."""
    for name, package in {"comet": "comet_ml", "wandb": "wandb", "tensorboard": "tensorboard"}.items():
        if view.flag(f"{name}.enabled") and package not in view.context.versions:
            other = ", or use the Trainer's report_to" if view.context.entry == TRAINER else ""
            yield Hit(f"/{name}/enabled", {"name": name, "package": package, "other": other})


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
    """Not 0, as older documentation says and versions below 0.19.3 do (c082, d09)."""
    if view.judged and not view.has("gradient_clipping") and view.context.entry != TRAINER and view.clipping:
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
