"""ZT72x and ZT105 to ZT107: forms of older versions."""

from __future__ import annotations

from ..document import join
from ..finding import ERROR, WARNING, Fix
from ..schema import fields
from .communication import ZERO, raw, zero
from .rule import Hit, case, rule

GATHER = "stage3_gather_fp16_weights_on_model_save"


@rule(
    "ZT720",
    "legacy-stage1",
    ERROR,
    keys=("zero_optimization.legacy_stage1",),
    message="legacy_stage1 is gone, DeepSpeed refuses it",
    help="delete it",
    source="deepspeed 0.19.8 runtime/engine.py:2650",
    bad=[raw(zero(1, legacy_stage1=True))],
    good=[raw(zero(1, legacy_stage1=False))],
)
def legacy_stage1(view):
    """An exception when the engine is built, at any stage above 0 (c107, c108)."""
    if view.stage in (1, 2, 3) and view.flag("zero_optimization.legacy_stage1"):
        yield Hit(f"{ZERO}/legacy_stage1", at_key=True, fix=Fix("remove", f"{ZERO}/legacy_stage1"))


@rule(
    "ZT721",
    "zero-as-boolean",
    WARNING,
    keys=("zero_optimization",),
    message="zero_optimization {value} means stage {stage}",
    help='write {{"stage": {stage}}}',
    source="deepspeed 0.19.8 runtime/zero/config.py:60",
    bad=[raw({"zero_optimization": True})],
    good=[raw({"zero_optimization": {"stage": 1}})],
)
def zero_as_boolean(view):
    """The oldest form, still read by plain DeepSpeed (a040)."""
    value = view.get("zero_optimization")
    if isinstance(value, bool):
        fix = Fix("set", ZERO, {"stage": int(value)}, safe=view.raw)
        yield Hit(ZERO, {"stage": int(value)}, severity=None if view.raw else ERROR, fix=fix)


@rule(
    "ZT105",
    "deprecated-key",
    WARNING,
    keys=tuple(field.path for field in fields().values() if "x-deprecated-for" in field.node),
    message="{key} is the old form of {new}",
    help="{todo}",
    source="deepspeed 0.19.8 runtime/zero/config.py, runtime/precision_config.py",
    bad=[case({"zero_optimization": {"cpu_offload": True}}), case({"bfloat16": {"enabled": True}}, entry="raw")],
    good=[case({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})],
)
def deprecated_key(view):
    """Still read, with a warning in the log; the newer form says more (a070 to a074)."""
    for path, field in fields(view.deepspeed).items():
        new = field.node.get("x-deprecated-for")
        if new and view.has(path):
            full, at = ".".join(filter(None, (field.where, new))), join("", path).replace(".", "/")
            off = field.name.startswith("cpu_offload") and view.get(path) is False
            facts = {"new": full, "todo": "delete it: off is the default" if off else f"write {full}"}
            yield Hit(at, facts, at_key=True, fix=_renewed(view, field, at, full, off))


def _renewed(view, field, at: str, new: str, off: bool) -> Fix | None:
    """Where the value stays what it is."""
    if off:
        return Fix("remove", at, safe=True)
    if field.name == GATHER and not view.has(new) and view.get(field.path) != "auto":
        return Fix("rename", at, new.rpartition(".")[2], safe=True)
    return None


@rule(
    "ZT106",
    "deprecated-beside-new",
    ERROR,
    keys=("zero_optimization.cpu_offload", "zero_optimization.offload_optimizer"),
    message="{key} and {new} are both there: DeepSpeed refuses that",
    help="keep {new}",
    source="deepspeed 0.19.8 runtime/config_utils.py:85",
    bad=[case({"zero_optimization": {"cpu_offload": True, "offload_optimizer": {"device": "cpu"}}})],
    good=[case({"zero_optimization": {"cpu_offload": True}})],
)
def deprecated_beside_new(view):
    """An assertion in the parser, on the mere presence of both (a071)."""
    pairs = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}
    pairs[GATHER] = "gather_16bit_weights_on_model_save"
    zero = view.block("zero_optimization")
    for old, new in pairs.items():
        both = [name for name in (new, f"stage3_{new}") if name in zero]
        if old in zero and zero[old] != "auto" and both and zero[both[0]] != "auto":
            pointer = f"/zero_optimization/{old}"
            facts = {"new": f"zero_optimization.{both[0]}"}
            yield Hit(pointer, facts, at_key=True, fix=Fix("remove", pointer, safe=False))


@rule(
    "ZT107",
    "old-bf16-ignored",
    WARNING,
    keys=("bfloat16", "bf16"),
    message="bfloat16 is ignored, because {reason}",
    help="write it as bf16",
    source="deepspeed 0.19.8 runtime/precision_config.py:35",
    bad=[case({"bf16": {}, "bfloat16": {"enabled": True}}, entry="raw"), case({"bfloat16": {"enabled": True}})],
    good=[case({"bf16": {"enabled": True}}, entry="raw")],
)
def old_bf16_ignored(view):
    """If bf16 is present at all, even empty, bfloat16 is not looked at (a075); accelerate adds bf16 when it is missing."""
    if view.has("bfloat16") and view.bf16 == "bf16":
        there = view.get("bf16") is not None
        reason = (
            "bf16 is there too" if there else "accelerate adds a bf16 block, switched off unless a flag says otherwise"
        )
        fix = Fix("remove", "/bfloat16", safe=True) if there else Fix("rename", "/bfloat16", "bf16")
        yield Hit("/bfloat16", {"reason": reason}, at_key=True, fix=fix)
