"""ZT840 to ZT842, ZT849, ZT852: how checkpoints are written."""

from __future__ import annotations

from ..finding import ERROR, Fix
from .features import CONFIG, raw
from .rule import Hit, rule


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
