"""What a key that this DeepSpeed doesn't read was meant to be. No rules here; keys.py has them."""

from __future__ import annotations

from zerotune.errors import nearest

from ..finding import Fix
from ..history import before, dated
from ..schema import fields, homes, listed, schema


def place(where: str) -> str:
    return where or "the top level"


# What people call them elsewhere.
SYNONYMS = {
    "batch_size": "train_batch_size",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "train_micro_batch_size": "train_micro_batch_size_per_gpu",
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "grad_accum": "gradient_accumulation_steps",
    "gradient_accumulation": "gradient_accumulation_steps",
    "grad_clip": "gradient_clipping",
    "max_grad_norm": "gradient_clipping",
    "clip_grad": "gradient_clipping",
    "zero": "zero_optimization",
    "zero_stage": "stage",
    "half": "fp16",
}


def other_version(view, name: str, where: str) -> dict | None:
    """The key's history, when another DeepSpeed version has it right here."""
    return dated(".".join(filter(None, (where, name))), listed(view.deepspeed))


def misspelt_as(name: str, where: str, value: object, version: str | None = None) -> str | None:
    """The key of the same block that was most likely meant, of those that this version has. A number is no block."""
    node = schema(version)
    for part in where.split(".") if where else ():
        node = node.get("properties", {}).get(part, {})
    choices = [
        key for key, child in node.get("properties", {}).items() if "x-removed" not in child and fits(child, value)
    ]
    folded = {key.lower().replace("_", "").replace("-", ""): key for key in choices}
    plain = name.lower().replace("_", "").replace("-", "").replace(" ", "")
    if plain in folded:
        return folded[plain]
    if SYNONYMS.get(name.lower()) in choices:
        return SYNONYMS[name.lower()]
    # Short names need a closer match: "fp8" is not fp16.
    cutoff = 0.8 if len(name) > 5 else 0.9
    close = nearest(name, choices, 1, cutoff)
    longer = [key for key in choices if len(key) > 8 and (name.startswith(key) or key.startswith(name))]
    return next(iter(close or longer), None)


def fits(node: dict, value: object) -> bool:
    """Whether a block stands where a block is read, and a plain value where a plain value is."""
    types = node.get("type", [])
    block = "object" in ([types] if isinstance(types, str) else types) or "properties" in node
    return (
        value is None or block == isinstance(value, dict) or (block and isinstance(value, bool) and "boolean" in types)
    )


def home_of(name: str, where: str, version: str | None = None) -> list[str]:
    """Blocks that have this key, when `where` does not. Generic names such as `enabled` have no home."""
    blocks = [block for block in homes(version).get(name, ()) if block != where]
    return blocks if len(blocks) <= 2 else []


def of_other_version(entry: dict, version: str | None) -> dict:
    """When a key came or went, and what to do about it."""
    shown = listed(version) if version is None else version
    if "removed" in entry and not before(listed(version), entry["removed"]):
        new = entry.get("renamed-to")
        todo = f"write {new}" if new else f"delete it. {entry['description']}"
        return {"when": f" in DeepSpeed {shown} (removed in {entry['removed']})", "todo": todo}
    todo = f"delete it, or use DeepSpeed {entry['since']} or newer"
    return {"when": f" in DeepSpeed {shown} (new in {entry['since']})", "todo": todo}


def renaming(entry: dict, pointer: str, view) -> Fix | None:
    new = entry.get("renamed-to")
    return Fix("rename", pointer, new.rpartition(".")[2]) if new and not view.has(new) else None


def nearest_key(name: str, version: str | None) -> str:
    """Advice about a key that no version has."""
    known = homes(version).get(name) or ()
    if known:  # `enabled` is a key of many blocks
        return f"it is a key of {', '.join(map(place, known))}" if len(known) <= 4 else "delete it"
    close = nearest(name, [path.rpartition(".")[2] for path in fields(version)], 1, 0.85)
    return f"did you mean {close[0]} of {place(homes(version).get(close[0], ('',))[0])}?" if close else "delete it"


def older(version: str | None, than: str) -> bool:
    """True when a version is given and lies before `than`."""
    return version is not None and before(version, than)
