"""Follow the config dict through DeepSpeed's parser and note every key that is asked for.

An abstract run of `DeepSpeedConfig(config)` on the syntax tree: values are unknown, except constants and which block
of the config a variable holds. Both branches of every `if` are taken.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from constants import UNKNOWN, Block, Constants, Instance, KeyOf
from models import is_model, model_fields
from running import Run
from sources import Definition, Sources

REFUSED = {"": "_REMOVED_TOP_LEVEL_CONFIG_KEYS", "zero_optimization": "_REMOVED_ZERO_CONFIG_KEYS"}
MAX_DEPTH = 12


@dataclass
class Key:
    """One key as the source has it.

    default: a JSON value, or UNKNOWN when there is none or it can't be told.
    facts: types, bounds, alias-of, deprecated-for, as far as a pydantic class says them.
    """

    default: object = UNKNOWN
    facts: dict = field(default_factory=dict)


def read_keys(sources: Sources) -> dict[str, Key]:
    """Every key by dotted path; "*" stands for names that the user chooses."""
    found = sources.find("deepspeed.runtime.config", "DeepSpeedConfig")
    follower = Follower(sources)
    follower.construct(found, [Block(("",))], {}, 0)
    return dict(sorted(follower.keys.items()))


def refused_keys(sources: Sources) -> set[str]:
    """Keys that went, and on which the parser raises."""
    constants, found = Constants(sources), set()
    for block, table in REFUSED.items():
        names = constants.value("deepspeed.runtime.config", ast.Name(table))
        found |= {f"{block}.{name}" if block else name for name in names} if isinstance(names, dict) else set()
    return found


class Follower:
    def __init__(self, sources: Sources):
        self.sources = sources
        self.constants = Constants(sources)
        self.keys: dict[str, Key] = {}

    def note(self, block: Block, name: object, default: object = UNKNOWN) -> object:
        """block[name] was read. Returns the block below it."""
        if isinstance(name, KeyOf):
            return block.below("*")
        if not isinstance(name, str):
            return UNKNOWN
        for path in block.paths:
            key = self.keys.setdefault(f"{path}.{name}" if path else name, Key())
            if key.default is UNKNOWN and not isinstance(default, (Block, Instance)):
                key.default = default
        return block.below(name)

    def note_model(self, block: Block, found: Definition) -> None:
        """A pydantic class is made of a block."""
        for path in block.paths:
            here = self.keys.setdefault(path, Key())
            here.facts.setdefault("class", f"{found.module}.{found.node.name}")
            for name, entry in model_fields(self.sources, self.constants, found).items():
                key = self.keys.setdefault(f"{path}.{name}", Key())
                key.default, key.facts = entry.default, {**entry.facts, **key.facts}
                if entry.model:
                    self.note_model(Block((f"{path}.{name}",)), entry.model)

    def construct(self, found: Definition, args: list, kwargs: dict, depth: int) -> object:
        """Cls(...)."""
        if is_model(self.sources, found):
            for block in [*args, kwargs.get("**")]:
                if isinstance(block, Block):
                    self.note_model(block, found)
                elif isinstance(block, dict):
                    self.note_parts(found, block)
            return UNKNOWN
        instance = Instance(found)
        self.method(instance, "__init__", args, kwargs, depth)
        return instance

    def note_parts(self, found: Definition, parts: dict) -> None:
        """Cls(**{"a": config["a"], ...}): each field has a block of its own."""
        entries = model_fields(self.sources, self.constants, found)
        for name, block in parts.items():
            if isinstance(block, Block) and name in entries and entries[name].model:
                self.note_model(block, entries[name].model)

    def method(self, instance: Instance, name: str, args: list, kwargs: dict, depth: int) -> object:
        for node in instance.found.node.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return self.call(Definition(instance.found.module, node), [instance, *args], kwargs, depth)
        return UNKNOWN

    def call(self, found: Definition, args: list, kwargs: dict, depth: int) -> object:
        """Run a function when a block or an object goes in."""
        handed = [*args, *kwargs.values()]
        if depth > MAX_DEPTH or not any(isinstance(value, (Block, Instance)) for value in handed):
            return UNKNOWN
        names = [argument.arg for argument in found.node.args.args]
        defaults = [self.constants.value(found.module, node) for node in found.node.args.defaults]
        scope = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) if defaults else {}
        scope |= dict(zip(names, args, strict=False)) | {k: v for k, v in kwargs.items() if k in names}
        run = Run(self, found.module, scope, depth)
        run.block(found.node.body)
        return run.returned
