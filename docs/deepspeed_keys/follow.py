"""Follow the config dict through DeepSpeed's parser and note every key that is asked for.

An abstract run of `DeepSpeedConfig(config)` on the syntax tree: values are unknown, except constants and which block
of the config a variable holds. Both branches of every `if` are taken.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from constants import KEY_OF, UNKNOWN, Block, Constants, Instance, KeyOf, join
from models import is_model, model_fields
from sources import Definition, Sources

READERS = {"get_scalar_param", "get_dict_param", "get_list_param"}
# They hand the dict on.
SAME = {"copy", "deepcopy", "dict", "keys", "items", "values", "OrderedDict"}
# Asks for keys only to refuse them.
REFUSER = "_reject_removed_config_keys"
REFUSED = {"": "_REMOVED_TOP_LEVEL_CONFIG_KEYS", "zero_optimization": "_REMOVED_ZERO_CONFIG_KEYS"}
MAX_DEPTH = 12
CALLABLE = (ast.FunctionDef, ast.ClassDef)


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


class Run:
    """One call of one function."""

    def __init__(self, follower: Follower, module: str, scope: dict, depth: int):
        self.follower, self.module, self.scope, self.depth = follower, module, scope, depth
        self.returned: object = UNKNOWN

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign):
            value = self.value(node.value)
            for target in node.targets:
                self.assign(target, value)
        elif isinstance(node, ast.Return) and node.value:
            self.returned = join(self.returned, self.value(node.value))
        elif isinstance(node, ast.If):
            self.value(node.test)
            self.branches([node.body, node.orelse])
        elif isinstance(node, ast.Try):
            self.branches([node.body, *(handler.body for handler in node.handlers)])
        elif isinstance(node, ast.For):
            self.loop(node)
        elif isinstance(node, ast.ImportFrom):
            self.local_import(node)
        elif isinstance(node, ast.FunctionDef):
            self.scope[node.name] = Definition(self.module, node)
        elif not isinstance(node, ast.ClassDef):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.value(child)

    def branches(self, bodies: list[list[ast.stmt]]) -> None:
        before, ends = self.scope, []
        for body in bodies:
            self.scope = dict(before)
            self.block(body)
            ends.append(self.scope)
        names = {name for end in ends for name in end}
        self.scope = {name: join(*(end.get(name, UNKNOWN) for end in ends)) for name in names}

    def loop(self, node: ast.For) -> None:
        items = self.value(node.iter)
        if isinstance(items, Block):
            pairs = isinstance(node.target, ast.Tuple)
            items = [(KeyOf(items), items.below("*"))] if pairs else [KeyOf(items)]
        elif isinstance(items, dict):
            items = list(items.items()) if isinstance(node.target, ast.Tuple) else list(items)
        for item in items if isinstance(items, (list, tuple)) else [UNKNOWN]:
            self.assign(node.target, item)
            self.block(node.body)

    def local_import(self, node: ast.ImportFrom) -> None:
        base = self.follower.sources.absolute(self.module, node)
        for alias in node.names:
            found = self.follower.sources.find(base, alias.name)
            if isinstance(found, Definition):
                self.scope[alias.asname or alias.name] = found

    def assign(self, target: ast.expr, value: object) -> None:
        if isinstance(target, ast.Name):
            self.scope[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value)
            if isinstance(owner, Instance):
                owner.attributes[target.attr] = join(owner.attributes.get(target.attr, UNKNOWN), value)
        elif isinstance(target, ast.Tuple) and isinstance(value, (list, tuple)):
            for part, item in zip(target.elts, value, strict=False):
                self.assign(part, item)
        elif isinstance(target, ast.Subscript):
            self.assign_item(self.value(target.value), self.value(target.slice), value)

    def assign_item(self, owner: object, name: object, value: object) -> None:
        if isinstance(owner, dict) and isinstance(name, KeyOf):
            # defaults overlaid by the block: their names are its keys.
            for known, default in owner.items():
                self.follower.note(name.block, known, default)
        elif isinstance(owner, dict) and isinstance(name, str):
            owner[name] = value

    def value(self, node: ast.expr) -> object:
        """What an expression is, noting the keys it reads."""
        kind = KINDS.get(type(node))
        if kind:
            return kind(self, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return self.follower.constants.value(self.module, node)

    def name(self, node: ast.Name) -> object:
        if node.id in self.scope:
            return self.scope[node.id]
        found = self.follower.sources.find(self.module, node.id)
        if isinstance(found, Definition) and isinstance(found.node, (ast.FunctionDef, ast.ClassDef)):
            return found
        return self.follower.constants.value(self.module, node)

    def attribute(self, node: ast.Attribute) -> object:
        owner = self.value(node.value)
        if isinstance(owner, Instance):
            return owner.attributes.get(node.attr, UNKNOWN)
        return self.follower.constants.value(self.module, node)

    def subscript(self, node: ast.Subscript) -> object:
        owner, name = self.value(node.value), self.value(node.slice)
        if isinstance(owner, Block):
            return self.follower.note(owner, name)
        return owner.get(name, UNKNOWN) if isinstance(owner, dict) and isinstance(name, str) else UNKNOWN

    def compare(self, node: ast.Compare) -> object:
        left, right = self.value(node.left), [self.value(side) for side in node.comparators]
        if isinstance(node.ops[0], (ast.In, ast.NotIn)) and isinstance(right[0], Block):
            self.follower.note(right[0], left)
        return UNKNOWN

    def choice(self, node: ast.IfExp | ast.BoolOp) -> object:
        if isinstance(node, ast.BoolOp):
            return join(*[self.value(part) for part in node.values])
        self.value(node.test)
        return join(self.value(node.body), self.value(node.orelse))

    def dictionary(self, node: ast.Dict) -> object:
        pairs = [
            (self.value(key) if key else KEY_OF, self.value(item))
            for key, item in zip(node.keys, node.values, strict=True)
        ]
        return {key: item for key, item in pairs if isinstance(key, str)}

    def comprehension(self, node: ast.DictComp) -> object:
        """{key: config.get(key, {}) for key in (...)}"""
        made, loop = {}, node.generators[0]
        items = self.value(loop.iter)
        for item in items if isinstance(items, (list, tuple)) else []:
            self.assign(loop.target, item)
            key, value = self.value(node.key), self.value(node.value)
            if isinstance(key, str):
                made[key] = value
        return made

    def call(self, node: ast.Call) -> object:
        args = [self.value(arg) for arg in node.args]
        kwargs = {word.arg or "**": self.value(word.value) for word in node.keywords}
        if isinstance(node.func, ast.Attribute):
            return self.attribute_call(node.func, args, kwargs)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in READERS and len(args) >= 2 and isinstance(args[0], Block):
            return self.follower.note(args[0], args[1], args[2] if len(args) > 2 else UNKNOWN)
        if name in SAME and args:
            return args[0]
        found = self.value(node.func)
        if isinstance(found, Definition) and isinstance(found.node, CALLABLE) and name != REFUSER:
            make = self.follower.construct if isinstance(found.node, ast.ClassDef) else self.follower.call
            return make(found, args, kwargs, self.depth + 1)
        return self.follower.constants.value(self.module, node)

    def attribute_call(self, func: ast.Attribute, args: list, kwargs: dict) -> object:
        owner = self.value(func.value)
        if isinstance(owner, Block):
            if func.attr in ("get", "pop", "setdefault") and args:
                return self.follower.note(owner, args[0], args[1] if len(args) > 1 else None)
            return owner if func.attr in SAME else UNKNOWN
        if func.attr in SAME and args:  # copy.copy(config)
            return args[0]
        if isinstance(owner, dict) and func.attr == "items":
            return owner
        if isinstance(owner, Instance):
            return self.follower.method(owner, func.attr, args, kwargs, self.depth + 1)
        return UNKNOWN


KINDS = {
    ast.Name: Run.name,
    ast.Attribute: Run.attribute,
    ast.Subscript: Run.subscript,
    ast.Compare: Run.compare,
    ast.IfExp: Run.choice,
    ast.BoolOp: Run.choice,
    ast.Dict: Run.dictionary,
    ast.DictComp: Run.comprehension,
    ast.Call: Run.call,
}
