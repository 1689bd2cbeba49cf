"""ZT82x: DeepCompile."""

from __future__ import annotations

from ..finding import INFO, WARNING
from .parallel import COMPILE, compile_passes, raw
from .rule import Hit, rule


@rule(
    "ZT820",
    "deepcompile-call",
    INFO,
    keys=("compile.deepcompile",),
    message="deepcompile needs a call of engine.compile() in the program; without it the run is eager",
    help="call engine.compile() after deepspeed.initialize",
    source="deepspeed 0.19.8 runtime/engine.py",
    bad=[raw({"compile": {"deepcompile": True}, "zero_optimization": {"stage": 3}})],
    good=[raw({"compile": {"deepcompile": False}})],
)
def deepcompile_call(view):
    """One line in the log says so (e033)."""
    if view.flag("compile.deepcompile"):
        yield Hit("/compile/deepcompile")


@rule(
    "ZT821",
    "deepcompile-stage-0",
    WARNING,
    keys=("compile.deepcompile",),
    message="{what} at stage {stage} falls back to torch.compile",
    help="set ZeRO stage {fit}, or use torch.compile yourself",
    source="deepspeed 0.19.8 runtime/engine.py:5767-5810",
    bad=[raw({"compile": {"deepcompile": True}}),
         raw({"compile": {"deepcompile": True, "passes": ["autosp"]}, "zero_optimization": {"stage": 2}})],
    good=[raw({"compile": {"deepcompile": True}, "zero_optimization": {"stage": 3}}),
          raw({"compile": {"deepcompile": True, "passes": ["autosp"]}})],
)  # fmt: skip
def deepcompile_stage_0(view):
    """One line in the log (e035). The pass autosp has it the other way round: it works at stages 0 and 1."""
    if not view.flag("compile.deepcompile"):
        return
    named = compile_passes(view)
    if "autosp" in named and view.stage in (2, 3):
        yield Hit("/compile/passes", {"what": "autosp", "stage": view.stage, "fit": "0 or 1"})
    elif view.stage == 0 and not {"autosp", "autotp"} & set(named):
        yield Hit("/compile/deepcompile", {"what": "deepcompile", "stage": 0, "fit": "1 or 3"})


@rule(
    "ZT822",
    "deepcompile-offload",
    WARNING,
    keys=("compile.offload_opt_states", "compile.offload_activation", "compile.offload_parameters"),
    message="{key} can't be combined with {other}",
    help="choose one target of offload",
    source=f"{COMPILE}:92-148",
    bad=[raw({"compile": {"deepcompile": True, "offload_opt_states": True},
              "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})],
    good=[raw({"compile": {"deepcompile": True, "offload_opt_states": True}, "zero_optimization": {"stage": 3}})],
)  # fmt: skip
def deepcompile_offload(view):
    """ValueErrors in engine.compile() at stage 3, since each plans with the whole memory. A program that never calls it
    trains, and runs eager."""
    if not view.flag("compile.deepcompile") or view.stage != 3:
        return
    states, weights, activation = (
        view.flag(f"compile.{name}") for name in ("offload_opt_states", "offload_parameters", "offload_activation")
    )
    if states and view.device("offload_optimizer") in ("cpu", "nvme"):
        yield Hit("/compile/offload_opt_states", {"other": "zero_optimization.offload_optimizer"})
    if activation and (states or weights):
        other = "offload_opt_states" if states else "offload_parameters"
        yield Hit("/compile/offload_activation", {"other": f"compile.{other}"})
    if states and weights:
        yield Hit("/compile/offload_opt_states", {"other": "compile.offload_parameters"})
