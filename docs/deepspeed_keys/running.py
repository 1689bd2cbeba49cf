"""One call of one function in the abstract run of the parser; follow.py says what that is."""

from __future__ import annotations

import ast

from constants import KEY_OF, UNKNOWN, Block, Instance, KeyOf, join
from sources import Definition

READERS = {"get_scalar_param", "get_dict_param", "get_list_param"}
# They hand the dict on.
SAME = {"copy", "deepcopy", "dict", "keys", "items", "values", "OrderedDict"}
# Asks for keys only to refuse them.
REFUSER = "_reject_removed_config_keys"
CALLABLE = (ast.FunctionDef, ast.ClassDef)


class Run:
    """The body of a function with what its variables hold. follower: notes keys and runs what is called."""

    def __init__(self, follower, module: str, scope: dict, depth: int):
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
