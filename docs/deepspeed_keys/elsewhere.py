"""Keys that are read outside the parser: by the engine, or as arguments of an optimizer's constructor."""

from __future__ import annotations

import ast

from constants import UNKNOWN, Block, Constants
from sources import Definition, Sources

# Key -> the file whose code names it.
NAMED_IN = {
    "data_parallel_size": "__init__.py",
    "pipeline.use_reentrant": "runtime/pipe/engine.py",
}
PARAMS = Block(("optimizer.params",))
# The class behind a name of `optimizer.type`; those of the second line went in 0.19.7.
CLASSES = {"deepspeed.ops.adam": ("FusedAdam", "DeepSpeedCPUAdam"), "deepspeed.ops.lamb": ("FusedLamb",)}
ONE_BIT = {f"deepspeed.runtime.fp16.onebit.{name}": (f"{kind}",) for name, kind in (
    ("adam", "OnebitAdam"), ("zoadam", "ZeroOneAdam"), ("lamb", "OnebitLamb"),
)}  # fmt: skip
NOT_CONFIGURED = {"self", "params", "deepspeed", "model_params"}


def read_elsewhere(sources: Sources) -> dict[str, object]:
    """Key -> default, for the tables above. Of the 1-bit optimizers only the arguments that no other one has."""
    found: dict[str, object] = {}
    for key, file in NAMED_IN.items():
        tree = ast.parse(sources.files.get(file, ""))
        name = key.rpartition(".")[2]
        if any(isinstance(node, ast.Constant) and node.value == name for node in ast.walk(tree)):
            found[key] = UNKNOWN
    common = arguments(sources, CLASSES)
    for name, default in arguments(sources, ONE_BIT).items():
        if name not in common:
            found[f"{PARAMS.paths[0]}.{name}"] = default
    return found


def arguments(sources: Sources, classes: dict[str, tuple[str, ...]]) -> dict[str, object]:
    """Arguments of the constructors with their defaults; the first class that has one counts."""
    constants, found = Constants(sources), {}
    for module, names in classes.items():
        for name in names:
            definition = sources.find(module, name)
            if isinstance(definition, Definition):
                found = {**_signature(constants, definition), **found}
    return found


def _signature(constants: Constants, definition: Definition) -> dict[str, object]:
    for node in definition.node.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            names = [argument.arg for argument in node.args.args]
            defaults = [constants.value(definition.module, item) for item in node.args.defaults]
            known = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
            return {name: known.get(name, UNKNOWN) for name in names if name not in NOT_CONFIGURED}
    return {}
