"""All rules, by id. Importing a module of this package registers its rows."""

from functools import cache
from importlib import import_module
from pathlib import Path

from .rule import RULES, Case, Hit, Rule


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule, sorted by id. A new module in this folder needs no mention here."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem != "__init__":
            import_module(f"{__name__}.{path.stem}")
    return dict(sorted(RULES.items()))


__all__ = ["Case", "Hit", "Rule", "all_rules"]
