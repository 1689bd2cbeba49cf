"""What the engine will run with: every value, where it came from, and what the user wrote in vain.

Held against a real DeepSpeedConfig by tests/engine/test_effective.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from .checking import check, view_of
from .context import RAW, TRAINER, Context
from .document import dotted
from .finding import Finding
from .owned import owned
from .pydantic_reading import reads_as
from .resolve import ResolvedConfig
from .rules.batch import MICRO, STEPS, TRAIN, ranks, triple
from .schema import Field, fields
from .view import MISSING, View

FILE, FLAG, DEFAULT, UNKNOWN = "file", "flag", "default", "unknown"
# Blocks that decide the run even when the file says nothing of them.
ALWAYS = ("zero_optimization", "bf16", "fp16")
# Warnings of these rules mean that something was written in vain.
IN_VAIN = ("ZT101", "ZT102", "ZT103", "ZT107", "ZT501", "ZT503", "ZT506", "ZT508", "ZT509", "ZT511", "ZT512", "ZT530")
IN_VAIN += ("ZT216", "ZT415", "ZT629", "ZT711", "ZT801", "ZT844")


@dataclass(frozen=True)
class Setting:
    """origin: file, flag (of the Trainer), default (of the engine), unknown, or who else set it."""

    path: str
    value: object
    origin: str


@dataclass(frozen=True)
class Effective:
    settings: tuple[Setting, ...]
    in_vain: tuple[Finding, ...]

    def value(self, path: str) -> object:
        """The value of one key; KeyError when it isn't listed."""
        return {setting.path: setting.value for setting in self.settings}[path]


def effective(source: str | dict | ResolvedConfig, context: Context | None = None) -> Effective:
    """Resolve a config in a context. Keys of blocks that are not in the file are left out."""
    context = context or Context()
    view = view_of(source, context)
    flags = {row.path: row.value for row in owned(view)}
    rows = [setting(field, view, flags) for field in fields(view.deepspeed).values() if listed(field, view)]
    findings = check(source, context)
    return Effective(tuple(rows), tuple(finding for finding in findings if finding.rule in IN_VAIN))


def differences(old: tuple, new: tuple) -> list[tuple[str, Setting | None, Setting | None]]:
    """Keys whose values differ between two pairs of source and context, in the schema's order.

    A key that only one side lists, or that only one side's stage looks at, counts by its default on the other.
    """
    sides = [acting(*pair) for pair in (old, new)]
    changed = []
    for path, field in fields().items():
        before, after = (side.get(path) for side in sides)
        values = [row.value if row else field.node.get("default") for row in (before, after)]
        if (before or after) and values[0] != values[1]:
            changed.append((path, before, after))
    return changed


def acting(source: str | dict | ResolvedConfig, context: Context) -> dict[str, Setting]:
    """The values by path, without keys that do nothing at the config's ZeRO stage."""
    view = view_of(source, context)
    keys, rows = fields(view.deepspeed), effective(source, context).settings
    stages = {row.path: keys[row.path].node.get("x-stages") for row in rows}
    return {row.path: row for row in rows if view.stage is None or view.stage in (stages[row.path] or [view.stage])}


def listed(field: Field, view: View) -> bool:
    """Leaves of blocks that count; one name per key."""
    node = field.node
    if "properties" in node or field.path == "$schema" or "x-dead" in node or "x-removed" in node:
        return False
    if "x-alias-of" in node or "x-deprecated-for" in node or field.where.startswith("bfloat16"):
        return False
    if field.path == "steps_per_print":
        return view.has(field.path) or not view.raw
    if not field.where:
        return view.has(field.path) or node.get("default") is not None or field.path in (TRAIN, MICRO, STEPS)
    if field.where in ("optimizer.params", "scheduler.params"):
        return view.has(field.path)
    return field.where in ALWAYS or isinstance(view.get(field.where), dict) or _old_form(field, view)


def _old_form(field: Field, view: View) -> bool:
    name = {
        "zero_optimization.offload_optimizer": "cpu_offload",
        "zero_optimization.offload_param": "cpu_offload_param",
    }
    old = name.get(field.where)
    return old is not None and view.get(f"zero_optimization.{old}") is True


def setting(field: Field, view: View, flags: dict) -> Setting:
    """One row."""
    special = _special(field.path, view)
    if special is not None:
        return special
    value = written(field, view)
    if value == "auto" and field.node.get("default") != "auto":
        return _filled(field, view, flags)
    if value is MISSING or (value is None and field.block.get("x-reader") == "pydantic"):
        return Setting(field.path, _default(field, view), DEFAULT)
    if field.block.get("x-reader") == "pydantic":
        value = as_read(value, field)
    return Setting(field.path, value, FILE)


def written(field: Field, view: View) -> object:
    """What the file says, under any of the key's names."""
    aliases = [
        name.path
        for name in fields(view.deepspeed).values()
        if name.where == field.where and name.node.get("x-alias-of") == field.name
    ]
    old = {"zero_optimization.stage3_gather_16bit_weights_on_model_save": "stage3_gather_fp16_weights_on_model_save"}
    names = [field.path, *aliases]
    if field.path in old:
        names.append(f"zero_optimization.{old[field.path]}")
    if field.where == "bf16" and view.bf16 == "bfloat16":
        names = [f"bfloat16.{field.name}"]
    return next((found for found in (view.get(name, MISSING) for name in names) if found is not MISSING), MISSING)


def as_read(value: object, field: Field) -> object:
    types = field.node.get("type", [])
    if isinstance(value, float) and value.is_integer() and "integer" in types:
        return int(value)
    if isinstance(value, (str, bool, int)):
        kind, read = reads_as(value, field.node)
        text = "string" in types and field.node.get("pattern") != "^auto$"
        plain = (isinstance(value, bool) and "boolean" in types) or (isinstance(value, str) and text)
        return value if plain or kind == "refused" else read
    return value


def _default(field: Field, view: View) -> object:
    if field.path == "zero_optimization.overlap_comm":
        return view.stage == 3
    if field.path.endswith("offload_optimizer.device") or field.path.endswith("offload_param.device"):
        return view.device(field.where.split(".")[1])
    return field.node.get("default")


def _filled(field: Field, view: View, flags: dict) -> Setting:
    """ "auto": who fills it, and with what."""
    path, entry = field.path, view.context.entry
    if entry == RAW:
        return Setting(path, _default(field, view), "default (auto dropped)")
    constants = {
        "zero_optimization.stage": 2,
        "zero_optimization.offload_optimizer.device": "none",
        "zero_optimization.offload_param.device": "none",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
        "scheduler.params.warmup_min_lr": 0,
    }
    if path in constants:
        return Setting(path, constants[path], "accelerate")
    if entry == TRAINER and flags.get(path) is not None:
        return Setting(path, flags[path], FLAG)
    hidden = view.context.hidden_size
    sizes = {"reduce_bucket_size": 1.0, "stage3_prefetch_bucket_size": 0.9}
    if isinstance(hidden, int) and field.name in sizes:
        return Setting(path, int(sizes[field.name] * hidden * hidden), "model")
    if isinstance(hidden, int) and field.name == "stage3_param_persistence_threshold":
        return Setting(path, 10 * hidden, "model")
    if entry != TRAINER and path == "gradient_clipping":
        return Setting(path, 1.0, "accelerate")
    return Setting(path, "auto", UNKNOWN)


def _special(path: str, view: View) -> Setting | None:
    """Keys that someone overwrites, or that follow from others."""
    hf = view.context.entry != RAW
    if path == "steps_per_print" and hf:
        return Setting(path, float("inf"), "accelerate")
    if path == "zero_allow_untested_optimizer" and hf and not view.has("optimizer"):
        return Setting(path, True, "accelerate")
    if path in ("bf16.enabled", "fp16.enabled") and view.context.entry == TRAINER:
        kind = path.split(".")[0]
        if view.get(kind) is None and view.context.argument(kind) and not (kind == "bf16" and view.has("bfloat16")):
            return Setting(path, True, "accelerate")
    if path in (TRAIN, MICRO, STEPS):
        return _batch(path, view)
    return None


def _batch(path: str, view: View) -> Setting | None:
    """The triple as config.py:607 completes it."""
    values, world = triple(view), ranks(view)
    written_here = view.get(path)
    if not values or (world is None and None in values):
        return Setting(
            path,
            written_here if written_here is not None else None,
            UNKNOWN if written_here in (None, "auto") else FILE,
        )
    train, micro, steps = complete(*values, world)
    value = {TRAIN: train, MICRO: micro, STEPS: steps}[path]
    origin = FLAG if written_here == "auto" else FILE if written_here is not None else "computed"
    return Setting(path, value, origin)


def complete(train, micro, steps, world) -> tuple:
    """Fill the missing ones of the triple, in the engine's order."""
    if train is not None and micro is not None and steps is None:
        steps = train // micro // world
    elif train is not None and micro is None:
        steps = 1 if steps is None else steps
        micro = train // world // steps
    elif train is None and micro is not None:
        steps = 1 if steps is None else steps
        train = micro * steps * world
    return train, micro, steps


def table(found: Effective) -> str:
    """Aligned rows: what differs from the engine's defaults first is easy to see by its origin."""
    width = max(len(setting.path) for setting in found.settings)
    values = {setting.path: shown(setting.value) for setting in found.settings}
    column = min(24, max(map(len, values.values())))
    lines = [f"{row.path:<{width}}  {values[row.path]:<{column}}  {row.origin}" for row in found.settings]
    if found.in_vain:
        lines += ["", "written in vain:"]
        lines += [f"  {dotted(finding.pointer)}: {finding.message}" for finding in found.in_vain]
    return "\n".join(lines)


def shown(value: object) -> str:
    import json

    return "infinity" if value == float("inf") else json.dumps(value)
