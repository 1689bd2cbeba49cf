"""ZT9xx: versions that are known to compute wrongly. Silent when the versions are unknown."""

from __future__ import annotations

from ..finding import ERROR, INFO, WARNING
from ..history import numbers
from ..schema import listed, unlisted
from .rule import Hit, case, rule


def within(view, package: str, first: str, below: str) -> str | None:
    """The package's version when it lies in [first, below)."""
    version = view.context.versions.get(package)
    return version if version and numbers(first) <= numbers(version) < numbers(below) else None


def zero(stage: int, **block) -> dict:
    return {"zero_optimization": {"stage": stage, **block}}


OFFLOAD = {"gradient_accumulation_steps": 4, **zero(2, offload_optimizer={"device": "cpu"})}


@rule(
    "ZT901",
    "offload-drops-gradients",
    ERROR,
    keys=("zero_optimization.offload_optimizer", "gradient_accumulation_steps"),
    message="DeepSpeed {version} drops the gradients of the middle micro batches: offload at stage {stage}, {steps} accumulation",
    help="use DeepSpeed 0.19.0 or newer, stage 3, or at most 2 accumulation steps",
    source="github.com/deepspeedai/DeepSpeed/pull/7967; read in the sources of 0.18.9 and 0.19.0",
    bad=[case(OFFLOAD, entry="raw", versions={"deepspeed": "0.18.9"})],
    good=[
        case(OFFLOAD, entry="raw", versions={"deepspeed": "0.19.0"}),
        case({**OFFLOAD, "gradient_accumulation_steps": 2}, entry="raw", versions={"deepspeed": "0.18.9"}),
        case(OFFLOAD, entry="raw"),
    ],
)
def offload_drops_gradients(view):
    """Only the first and the last micro batch of a step reached the CPU buffer (stage_1_and_2.py, from 0.15.2 on); the
    gradient norm looks healthy, only too small."""
    steps = view.get("gradient_accumulation_steps")
    if steps == "auto":
        steps = view.context.argument("gradient_accumulation_steps")
    version = within(view, "deepspeed", "0.15.2", "0.19.0")
    offloads = view.stage in (1, 2) and view.device("offload_optimizer") != "none"
    if version and offloads and isinstance(steps, int) and steps > 2:
        facts = {"version": version, "stage": view.stage, "steps": steps}
        yield Hit("/zero_optimization/offload_optimizer", facts, at_key=True)


@rule(
    "ZT902",
    "reused-submodule-gradients",
    INFO,
    keys=("zero_optimization.stage", "bf16.enabled"),
    message="DeepSpeed {version}, stage 2 and bf16: gradients are wrong when a submodule runs twice in one step",
    help="use a newer DeepSpeed or stage 1 or 3, if the model does that (siamese losses, weight sharing by calls)",
    source="github.com/deepspeedai/DeepSpeed/issues/8224",
    bad=[case({"bf16": {"enabled": True}, **zero(2)}, entry="raw", versions={"deepspeed": "0.19.3"})],
    good=[case({"bf16": {"enabled": True}, **zero(2)}, entry="raw", versions={"deepspeed": "0.19.8"})],
)
def reused_submodule_gradients(view):
    """Reported for several ranks, 0.18.3 to 0.19.3, with a fix proposed in pull request 8245; ordinary language models
    call each module once."""
    version = within(view, "deepspeed", "0.18.3", "0.19.4")
    if version and view.stage == 2 and view.precision == "bf16":
        yield Hit("/zero_optimization/stage", {"version": version})


@rule(
    "ZT903",
    "zero3-load-missing",
    WARNING,
    keys=("zero_optimization.stage",),
    message="transformers {version} leaves converted weights random when it loads a model under ZeRO-3",
    help="use transformers 5.6 or newer, or look for MISSING in its load report",
    source="github.com/huggingface/transformers/issues/43257, 45313, 45397",
    bad=[case(zero(3), versions={"transformers": "5.4.0"})],
    good=[case(zero(3), versions={"transformers": "5.24.0"}), case(zero(2), versions={"transformers": "5.4.0"})],
)
def zero3_load_missing(view):
    """Seen with Qwen3-MoE, Qwen3.5 and Gemma 4: names are converted while loading, but not on the ZeRO-3 path."""
    version = within(view, "transformers", "5.0", "5.6")
    if version and view.stage == 3 and not view.raw:
        yield Hit("/zero_optimization/stage", {"version": version})


@rule(
    "ZT904",
    "unlisted-version",
    INFO,
    keys=(),
    message="DeepSpeed {version} is not in the table of keys; keys are judged as for {nearest}",
    help="--deepspeed-version names another one",
    source="docs/deepspeed_keys, from the released packages",
    bad=[case({}, versions={"deepspeed": "0.15.4"}), case({}, versions={"deepspeed": "0.99.0"})],
    good=[case({}, versions={"deepspeed": "0.16.4"}), case({}, versions={"deepspeed": "0.19.8"})],
)
def unlisted_version(view):
    """The table holds what the released packages hold; older or newer versions may have other keys."""
    if view.judged and unlisted(view.deepspeed):
        yield Hit("", {"version": view.deepspeed, "nearest": listed(view.deepspeed)})
