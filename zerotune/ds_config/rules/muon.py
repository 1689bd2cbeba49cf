"""ZT607, ZT608: Muon, which works on whole matrices."""

from __future__ import annotations

from ..finding import ERROR, WARNING, Fix
from .optimizer import built, optimizer
from .rule import Hit, case, rule


@rule(
    "ZT607",
    "muon-reduce-scatter",
    ERROR,
    keys=("optimizer.type", "zero_optimization.reduce_scatter"),
    message="Muon at stage 3 needs reduce_scatter false, and it is on by default",
    help='add "reduce_scatter": false to zero_optimization',
    source="deepspeed 0.19.8 runtime/zero/stage3.py:361",
    bad=[case({**optimizer("Muon"), "zero_optimization": {"stage": 3}})],
    good=[case({**optimizer("Muon"), "zero_optimization": {"stage": 3, "reduce_scatter": False}})],
)
def muon_reduce_scatter(view):
    """Muon works on whole matrices; a ValueError when the engine is built (c037)."""
    found = built(view)
    if (
        found
        and found[2] == "MuonWithAuxAdam"
        and view.stage == 3
        and view.flag("zero_optimization.reduce_scatter", True)
    ):
        yield Hit("/optimizer/type", fix=Fix("set", "/zero_optimization/reduce_scatter", False))


@rule(
    "ZT608",
    "muon-clipping",
    WARNING,
    keys=("optimizer.type", "gradient_clipping"),
    message="gradient_clipping {clip} rescales Muon's updates: ZeRO takes the norm after their orthogonalisation",
    help='write "gradient_clipping": 0',
    source="deepspeed 0.19.8 runtime/zero/stage_1_and_2.py, stage3.py",
    bad=[case({**optimizer("Muon"), "zero_optimization": {"stage": 2}}, entry="raw")],
    good=[case({**optimizer("Muon"), "zero_optimization": {"stage": 2}, "gradient_clipping": 0}, entry="raw")],
)
def muon_clipping(view):
    """The norm of an orthogonalised update is large by construction, so nearly every step is scaled down; stage 0 is
    not affected (f001 to f004)."""
    found = built(view)
    if found and found[2] == "MuonWithAuxAdam" and view.stage in (1, 2, 3) and view.clipping:
        yield Hit("/optimizer/type", {"clip": view.clipping})
