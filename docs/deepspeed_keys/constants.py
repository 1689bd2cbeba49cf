"""What is known of a value without running anything: constants, blocks of the config, objects."""

from __future__ import annotations

import ast
import operator
import sys
from dataclasses import dataclass, field

from sources import Definition, Sources


class _Unknown:
    def __repr__(self):
        return "UNKNOWN"

    def __deepcopy__(self, memo):
        return self


UNKNOWN = _Unknown()


@dataclass(frozen=True)
class Block:
    """A part of the config; several paths when a variable may hold either."""

    paths: tuple[str, ...]

    def below(self, name: str) -> Block:
        return Block(tuple(f"{path}.{name}" if path else name for path in self.paths))


@dataclass(frozen=True)
class KeyOf:
    """A key of a block that the program doesn't name."""

    block: Block


KEY_OF = KeyOf(Block(()))


@dataclass
class Instance:
    """An object that is no pydantic model."""

    found: Definition
    attributes: dict = field(default_factory=dict)


def join(*values: object) -> object:
    """What a variable holds after branches that gave it these values."""
    blocks = [value for value in values if isinstance(value, Block)]
    if blocks:
        return Block(tuple(dict.fromkeys(path for block in blocks for path in block.paths)))
    return next((value for value in values if value is not UNKNOWN), UNKNOWN)


OPERATORS = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
# pp_int is a whole number that prints nicely.
CASTS = {"int": int, "float": float, "pp_int": int, "str": str, "list": list, "tuple": tuple}


class Constants:
    """Evaluates expressions of module-level constants."""

    def __init__(self, sources: Sources):
        self.sources = sources
        self._open: set[int] = set()

    def value(self, module: str, node: ast.expr) -> object:
        """The constant that an expression is, or UNKNOWN."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self._named(module, node.id)
        if isinstance(node, ast.Attribute):
            return self._member(module, node)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return [self.value(module, item) for item in node.elts]
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            return {self.value(module, key): self.value(module, item) for key, item in pairs if key}
        return self._computed(module, node)

    def _computed(self, module: str, node: ast.expr) -> object:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.value(module, node.operand)
            return value if value is UNKNOWN else -value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            sides = [self.value(module, node.left), self.value(module, node.right)]
            return UNKNOWN if UNKNOWN in sides else OPERATORS[type(node.op)](*sides)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CASTS and node.args:
            value = self.value(module, node.args[0])
            return value if value is UNKNOWN else CASTS[node.func.id](value)
        return UNKNOWN

    def _named(self, module: str, name: str) -> object:
        found = self.sources.find(module, name)
        if not isinstance(found, Definition) or not isinstance(found.node, (ast.Assign, ast.AnnAssign)):
            return UNKNOWN
        if id(found.node) in self._open:
            return UNKNOWN
        self._open.add(id(found.node))
        value = self.value(found.module, found.node.value)
        self._open.discard(id(found.node))
        return value

    def _member(self, module: str, node: ast.Attribute) -> object:
        """Enum.member, Class.constant, sys.maxsize."""
        if ast.unparse(node) == "sys.maxsize":
            return sys.maxsize
        if node.attr == "value":
            return self.value(module, node.value)
        owner = self.sources.find(module, node.value.id) if isinstance(node.value, ast.Name) else None
        if isinstance(owner, str):
            return self._named(owner, node.attr)
        for item in owner.node.body if isinstance(owner, Definition) and isinstance(owner.node, ast.ClassDef) else ():
            if isinstance(item, ast.Assign) and getattr(item.targets[0], "id", None) == node.attr:
                return self.value(owner.module, item.value)
        return UNKNOWN
