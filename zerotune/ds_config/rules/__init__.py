"""All rules, by id. Importing a module of this package registers its rows."""

from functools import cache

from .rule import RULES, Case, Hit, Rule


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule, sorted by id."""
    from . import (  # noqa: F401  # noqa: F401
        auto,
        batch,
        communication,
        features,
        flags,
        keys,
        offload,
        optimizer,
        parallel,
        precision,
        reading,
        scheduler,
        stages,
        trainer,
        values,
        zenflow,
    )

    return dict(sorted(RULES.items()))


__all__ = ["Case", "Hit", "Rule", "all_rules"]
