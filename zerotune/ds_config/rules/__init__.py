"""All rules, by id. Importing a module of this package registers its rows."""

from functools import cache

from .rule import RULES, Case, Hit, Rule


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule, sorted by id."""
    from . import auto, batch, keys, offload, precision, reading, trainer, values  # noqa: F401

    return dict(sorted(RULES.items()))


__all__ = ["Case", "Hit", "Rule", "all_rules"]
