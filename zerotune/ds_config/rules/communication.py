"""ZT7xx: gradients, communication and ZeRO++."""

from __future__ import annotations

from ..finding import ERROR, WARNING
from .key_advice import older
from .rule import Hit, case, rule

CONFIG = "deepspeed 0.19.8 runtime/config.py"
STAGE3 = "deepspeed 0.19.8 runtime/zero/stage3.py"
STAGE12 = "deepspeed 0.19.8 runtime/zero/stage_1_and_2.py"
ZERO = "/zero_optimization"


def zero(stage: int, **block) -> dict:
    return {"zero_optimization": {"stage": stage, **block}}


def raw(config: dict, **context):
    return case(config, entry="raw", **context)


@rule(
    "ZT701",
    "allreduce-op",
    ERROR,
    keys=("gradient_allreduce_op",),
    message='gradient_allreduce_op is {value}; it must be "mean" or "sum"',
    help='write "mean"',
    source=f"{CONFIG}:241",
    bad=[raw({"gradient_allreduce_op": "avg"})],
    good=[raw({"gradient_allreduce_op": "MEAN"})],
)
def allreduce_op(view):
    """A ValueError in the parser (c092)."""
    value = view.get("gradient_allreduce_op", "mean")
    if isinstance(value, str) and value != "auto" and value.lower() not in ("mean", "sum"):
        yield Hit("/gradient_allreduce_op")


@rule(
    "ZT702",
    "allreduce-sum",
    ERROR,
    keys=("gradient_allreduce_op",),
    message='gradient_allreduce_op "sum" can\'t be combined with {other}',
    help='write "mean"',
    source=f"{CONFIG}:693",
    bad=[raw({"gradient_allreduce_op": "sum", **zero(3)})],
    good=[raw({"gradient_allreduce_op": "sum", **zero(2)})],
)
def allreduce_sum(view):
    """ValueErrors in the parser (c090). Elsewhere it works, and multiplies gradients by the number of ranks (c091)."""
    if str(view.get("gradient_allreduce_op")).lower() != "sum":
        return
    others = {
        "ZeRO stage 3": view.stage == 3,
        "ZenFlow": isinstance(view.get("zero_optimization.zenflow"), dict),
        "DeepCompile": view.flag("compile.deepcompile"),
    }
    for other, there in others.items():
        if there:
            yield Hit("/gradient_allreduce_op", {"other": other})


@rule(
    "ZT703",
    "prescale-reduce-scatter",
    ERROR,
    keys=("prescale_gradients", "gradient_predivide_factor", "zero_optimization.reduce_scatter"),
    message="{key} can't be combined with reduce_scatter at stage {stage}",
    help='add "reduce_scatter": false to zero_optimization, or delete {key}',
    source=f"{STAGE3}:395, stage_1_and_2.py:350",
    bad=[raw({"prescale_gradients": True, **zero(2)}), raw({"gradient_predivide_factor": 2.0, **zero(3)}),
         raw({"prescale_gradients": "false", **zero(2)})],
    good=[raw({"prescale_gradients": True, **zero(2, reduce_scatter=False)}),
          raw({"prescale_gradients": True, **zero(1)})],
)  # fmt: skip
def prescale_reduce_scatter(view):
    """Assertions when the engine is built; stage 1 accepts it (c093 to c097)."""
    if view.stage not in (2, 3) or not view.flag("zero_optimization.reduce_scatter", True):
        return
    factor = view.number("gradient_predivide_factor")
    if view.get("prescale_gradients"):  # any text is true, "false" too
        yield Hit("/prescale_gradients", {"stage": view.stage}, at_key=True)
    if factor is not None and factor != 1:
        yield Hit("/gradient_predivide_factor", {"stage": view.stage}, at_key=True)


@rule(
    "ZT709",
    "predivide-by-zero",
    ERROR,
    keys=("gradient_predivide_factor",),
    message="gradient_predivide_factor is {value}, and the gradients are divided by it",
    help="delete it: 1.0 is the default",
    source=f"deepspeed 0.19.8 runtime/engine.py:3809, {STAGE12}:1500",
    bad=[raw({"gradient_predivide_factor": 0}), raw({"gradient_predivide_factor": 0, **zero(1, reduce_scatter=False)})],
    good=[raw({"gradient_predivide_factor": 0, **zero(1)})],
)
def predivide_by_zero(view):
    """A ZeroDivisionError in the first step at stage 0, and at stages 1 and 2 without reduce_scatter."""
    divides = view.stage == 0 or (view.stage in (1, 2) and not view.flag("zero_optimization.reduce_scatter", True))
    if divides and view.number("gradient_predivide_factor") == 0 and not view.get("prescale_gradients"):
        yield Hit("/gradient_predivide_factor")


@rule(
    "ZT704",
    "no-norm",
    ERROR,
    keys=("zero_optimization.compute_grad_norm",),
    message="compute_grad_norm false {conflict}",
    help="{todo}",
    source=f"{STAGE12}:213, runtime/zero/config.py:383, runtime/engine.py:2313",
    bad=[
        raw(zero(3, compute_grad_norm=False)),
        raw(zero(2, compute_grad_norm=False)),
        raw({"gradient_clipping": 0, **zero(2, compute_grad_norm=False, offload_optimizer={"device": "cpu"})}),
    ],
    good=[raw({"gradient_clipping": 0, **zero(2, compute_grad_norm=False)})],
)
def no_norm(view):
    """Needs stage 1 or 2, clipping 0 (leaving it out clips at 1.0), no offload, no ZenFlow (c085 to c089)."""
    if view.flag("zero_optimization.compute_grad_norm", True):
        return
    where, delete = f"{ZERO}/compute_grad_norm", "delete it"
    if view.stage in (0, 3):
        yield Hit(where, {"conflict": f"needs stage 1 or 2, and this is stage {view.stage}", "todo": delete})
        return
    if view.clipping:
        todo = 'write "gradient_clipping": 0'
        yield Hit(where, {"conflict": f"needs gradient_clipping 0, and it is {view.clipping}", "todo": todo})
    if view.device("offload_optimizer") != "none":
        yield Hit(where, {"conflict": "can't be combined with offload_optimizer", "todo": delete})
    if isinstance(view.get("zero_optimization.zenflow"), dict):
        yield Hit(where, {"conflict": "can't be combined with ZenFlow", "todo": delete})
    if view.stage == 1 and view.precision == "bf16" and view.get("data_types.grad_accum_dtype") in ("fp32", "float32"):
        yield Hit(where, {"conflict": "can't be combined with bf16 at stage 1 and fp32 accumulation", "todo": delete})


@rule(
    "ZT705",
    "odd-allgather-bucket",
    ERROR,
    keys=("zero_optimization.allgather_bucket_size",),
    message="allgather_bucket_size {value} is odd; stages 1 and 2 want an even number",
    help="make it even",
    source=f"{STAGE12}:389",
    bad=[raw(zero(2, allgather_bucket_size=101))],
    good=[raw(zero(2, allgather_bucket_size=100)), raw(zero(3, allgather_bucket_size=101))],
)
def odd_allgather_bucket(view):
    """An assertion when the engine is built (c101)."""
    value = view.number("zero_optimization.allgather_bucket_size")
    if view.stage in (1, 2) and value is not None and value % 2:
        yield Hit(f"{ZERO}/allgather_bucket_size")


@rule(
    "ZT706",
    "own-boundary",
    ERROR,
    keys=("managed_gradient_accumulation",),
    message="managed_gradient_accumulation false can't be combined with {other}",
    help="{todo}",
    source="deepspeed 0.19.8 runtime/engine.py:2030",
    bad=[raw({"managed_gradient_accumulation": False, **zero(1, overlap_comm=True)})],
    good=[raw({"managed_gradient_accumulation": False, **zero(2, overlap_comm=True)})],
)
def own_boundary(view):
    """Assertions when the engine is built (e039)."""
    if view.get("managed_gradient_accumulation", True):
        return
    if view.stage in (0, 1) and view.overlap:
        facts = {"other": f"overlap_comm at stage {view.stage}", "todo": "set stage 2, or overlap_comm false"}
        yield Hit("/managed_gradient_accumulation", facts)
    if view.flag("compile.deepcompile"):
        yield Hit("/managed_gradient_accumulation", {"other": "DeepCompile", "todo": "choose one of them"})


@rule(
    "ZT707",
    "tiny-bucket",
    WARNING,
    keys=("zero_optimization.reduce_bucket_size", "zero_optimization.allgather_bucket_size"),
    message="{key} is {value} elements: every message is tiny, and the run slow",
    help="write 50,000,000 or more; it counts elements, not megabytes",
    source="deepspeed 0.19.8 runtime/zero/config.py",
    bad=[raw(zero(2, reduce_bucket_size=500))],
    good=[raw(zero(2, reduce_bucket_size=50_000_000))],
)
def tiny_bucket(view):
    """No error, only speed lost (c103 to c106). Below 100,000 elements latency rules on any network."""
    names = ["reduce_bucket_size"] + ["allgather_bucket_size"] * (view.stage in (1, 2))
    for name in names:
        value = view.number(f"zero_optimization.{name}")
        if view.stage and value is not None and 0 < value < 100_000:
            yield Hit(f"{ZERO}/{name}")


@rule(
    "ZT713",
    "no-reduce-bucket",
    ERROR,
    keys=("zero_optimization.reduce_bucket_size",),
    message="reduce_bucket_size is 0, and DeepSpeed {version} divides by it",
    help="write 500000000, the default",
    source="deepspeed 0.19.7 runtime/base_optimizer.py:388",
    bad=[raw(zero(2, reduce_bucket_size=0), versions={"deepspeed": "0.19.2"})],
    good=[raw(zero(0, reduce_bucket_size=0), versions={"deepspeed": "0.19.2"})],
)
def no_reduce_bucket(view):
    """A ZeroDivisionError in the first backward of 0.19.7 and older; newer ones refuse it when parsing (ZT112)."""
    if view.stage and older(view.deepspeed, "0.19.8") and view.converted("zero_optimization.reduce_bucket_size") == 0:
        yield Hit(f"{ZERO}/reduce_bucket_size", {"version": view.deepspeed})


@rule(
    "ZT708",
    "huge-bucket",
    WARNING,
    keys=("zero_optimization.reduce_bucket_size",),
    message="reduce_bucket_size {value} takes {gib} GiB on every GPU{twice}",
    help="write 200,000,000; it counts elements, not bytes",
    source=f"{STAGE12}, stage3.py: one flat buffer, two with overlap_comm",
    bad=[raw(zero(2, reduce_bucket_size=5_000_000_000))],
    good=[raw(zero(2, reduce_bucket_size=500_000_000))],
)
def huge_bucket(view):
    """The buffer is allocated whole when it is first used."""
    value = view.number("zero_optimization.reduce_bucket_size")
    if view.stage and value is not None and value > 2_000_000_000:
        size = (4 if view.precision == "fp32" else 2) * value * (2 if view.overlap else 1)
        twice = ", both buffers of overlap_comm" if view.overlap else ""
        yield Hit(f"{ZERO}/reduce_bucket_size", {"gib": f"{min(size, 1e300) / 2**30:,.0f}", "twice": twice})
