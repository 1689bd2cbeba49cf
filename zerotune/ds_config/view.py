"""What rules look at: a config with the engine's reading of it. Read only."""

from __future__ import annotations

from functools import cached_property

from .context import RAW, TRAINER, Context
from .document import Document, join, split
from .history import before
from .pydantic_reading import reads_as
from .schema import Violation, fields, read_by, violations

MISSING = object()


class View:
    """A document in a context, with lookups that never raise.

    judged: there is a config to judge; false when the text is too broken for that.
    written: all of it; config: without keys that came or went in another DeepSpeed version than this one.
    """

    def __init__(self, document: Document, context: Context):
        self.document = document
        self.context = context
        self.judged = isinstance(document.value, dict) and document.judgeable
        self.written: dict = document.value if self.judged else {}
        self.config: dict = read_by(self.deepspeed, self.written)

    @property
    def raw(self) -> bool:
        return self.context.entry == RAW

    @property
    def deepspeed(self) -> str | None:
        """The DeepSpeed version that the config is meant for; None = the newest."""
        return self.context.versions.get("deepspeed")

    @cached_property
    def violations(self) -> list[Violation]:
        """Where the config breaks the schema; empty when there is no config to judge."""
        return violations(self.written, self.deepspeed) if self.written else []

    def get(self, path: str, default: object = None) -> object:
        """The value at a dotted path; `default` when a part is missing or is no block."""
        node: object = self.config
        for part in path.split("."):
            if not isinstance(node, dict) or part not in node:
                return default
            node = node[part]
        return node

    def get_pointer(self, pointer: str, default: object = None) -> object:
        """The value at a JSON pointer, as written; lists are entered by index."""
        node: object = self.written
        for part in split(pointer):
            if isinstance(node, list) and part.isdigit() and int(part) < len(node):
                node = node[int(part)]
            elif isinstance(node, dict) and part in node:
                node = node[part]
            else:
                return default
        return node

    def has(self, path: str) -> bool:
        return self.get(path, MISSING) is not MISSING

    def block(self, path: str) -> dict:
        """The block at a path; empty when it is missing or is no block."""
        found = self.get(path)
        return found if isinstance(found, dict) else {}

    def number(self, path: str) -> int | float | None:
        """The value at a path when it is a number."""
        value = self.get(path)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    @cached_property
    def stage(self) -> int | None:
        """The ZeRO stage the engine runs with; None when it can't be known from here.

        Missing is 0 (zero/config.py). "auto": accelerate takes 2, plain DeepSpeed drops it and takes 0 (d16, a047).
        """
        zero = self.get("zero_optimization", MISSING)
        if zero is MISSING:
            return 0
        if zero is True:
            return 1
        if not isinstance(zero, dict):
            return None
        value = zero.get("stage", 0)
        if value == "auto":
            return 0 if self.raw else 2
        if isinstance(value, str) and value.strip().isdigit():
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        return value if isinstance(value, int) and 0 <= value <= 3 else None

    def device(self, which: str) -> str:
        """Target of offload_optimizer or offload_param as the engine sees it: none, cpu, nvme or what is written."""
        block = self.get(f"zero_optimization.{which}")
        if isinstance(block, dict):
            device = block.get("device", "none")
            return "none" if device in ("auto", None) else str(device)
        old = "cpu_offload" if which == "offload_optimizer" else "cpu_offload_param"
        return "cpu" if self.get(f"zero_optimization.{old}") is True else "none"

    def flag(self, path: str, default: bool = False) -> bool:
        """A boolean as the engine holds it: its default when missing, null or a dropped "auto"."""
        value = self.get(path)
        return default if value is None or value == "auto" else truth(value)

    @cached_property
    def bf16(self) -> str:
        """The name of the block that the engine reads: bf16, else the old bfloat16. Accelerate always adds bf16."""
        old = self.raw and self.get("bf16") is None and self.has("bfloat16")
        return "bfloat16" if old else "bf16"

    def converted(self, path: str) -> float | None:
        """A number of a pydantic block, converted as pydantic does."""
        value = self.get(path)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return value
        return None if value is None else reads_as(value, {"type": "number"})[1]

    @cached_property
    def clipping(self) -> float | None:
        """Gradient clipping as the engine gets it: 1.0 when left out (0.0 below 0.19.3). None when it can't be known
        from here."""
        value = self.get("gradient_clipping", fields(self.deepspeed)["gradient_clipping"].node["default"])
        if value == "auto":
            value = self.context.argument("max_grad_norm") if self.context.entry == TRAINER else 1.0
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    @cached_property
    def overlap(self) -> bool:
        """overlap_comm as the engine holds it: on at stage 3 by default (zero/config.py:384)."""
        return self.flag("zero_optimization.overlap_comm", self.stage == 3)

    @cached_property
    def precision(self) -> str | None:
        """fp16, bf16 or fp32; None when it hangs on flags that are not known."""
        kinds = [kind for kind in ("fp16", "bf16") if self.enabled(kind)]
        unknown = not self.raw and (self.context.training_args is None or bool({"bf16", "fp16"} & self.context.unknown))
        if not kinds and unknown and "auto" in (self.get("bf16.enabled"), self.get("fp16.enabled")):
            return None
        if not kinds and self.bf16 == "bfloat16" and self.enabled("bfloat16"):
            return "bf16"
        return kinds[0] if kinds else "fp32"

    def enabled(self, block: str) -> bool:
        """Whether a block's `enabled` is on, "auto" resolved from TrainingArguments where the Trainer does."""
        value = self.get(f"{block}.enabled")
        if value == "auto" and block in ("bf16", "fp16") and not self.raw:
            arguments = (self.context.argument(block), self.context.argument(f"{block}_full_eval"))
            return any(arguments)
        if block in ("bf16", "fp16", "bfloat16") and self.deepspeed and before(self.deepspeed, "0.17.1"):
            return bool(value)  # no pydantic block yet: any text is true
        return truth(value)


def truth(value: object) -> bool:
    """A boolean as pydantic reads it: true, 1, "true", "yes", "on", "1" ... ; anything else is off."""
    if isinstance(value, str):
        return value.lower() in ("true", "1", "yes", "on", "t", "y")
    return value is True or (isinstance(value, (int, float)) and value == 1)


def pointer(path: str) -> str:
    """JSON pointer of a dotted path."""
    made = ""
    for part in path.split("."):
        made = join(made, part)
    return made
