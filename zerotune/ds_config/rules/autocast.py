"""ZT412 to ZT416: PyTorch's autocast inside the engine."""

from __future__ import annotations

from ..finding import ERROR, INFO, WARNING
from .precision import CONFIG, DTYPES, ENGINE, bf16, raw
from .rule import Hit, rule


@rule(
    "ZT412",
    "autocast-dtype",
    ERROR,
    keys=("torch_autocast.dtype", "torch_autocast.lower_precision_safe_modules"),
    message="{key} is {value}; it must be {wanted}",
    help="write {wanted}",
    source=f"{CONFIG}:186",
    bad=[raw({"torch_autocast": {"enabled": True, "dtype": "half16"}}),
         raw({"torch_autocast": {"enabled": True, "lower_precision_safe_modules": "torch.nn.Linear"}})],
    good=[raw({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}})],
)  # fmt: skip
def autocast_dtype(view):
    """A ValueError; a text instead of a list of modules is read letter by letter (b037 to b039)."""
    block = view.block("torch_autocast")
    dtype, modules = block.get("dtype"), block.get("lower_precision_safe_modules")
    if "dtype" in block and dtype != "auto" and (not isinstance(dtype, str) or dtype not in DTYPES):
        yield Hit("/torch_autocast/dtype", {"wanted": '"bfloat16" or "float16"'})
    if isinstance(modules, str) and modules != "auto" and block.get("enabled"):
        yield Hit("/torch_autocast/lower_precision_safe_modules", {"wanted": "a list of class names"})


@rule(
    "ZT413",
    "autocast-beside-mode",
    WARNING,
    keys=("torch_autocast.enabled",),
    message="torch_autocast and {precision} are both on: the weights are {precision} already, autocast adds nothing",
    help="switch one of them off",
    source=f"{ENGINE}:2957",
    bad=[raw({**bf16(), "torch_autocast": {"enabled": True, "dtype": "bfloat16"}})],
    good=[raw({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}, "zero_optimization": {"stage": 2}})],
)
def autocast_beside_mode(view):
    """Accepted silently; the losses equal those of the mode alone (b034, b035)."""
    if view.get("torch_autocast.enabled") and view.precision in ("bf16", "fp16"):
        yield Hit("/torch_autocast/enabled", {"precision": view.precision})


@rule(
    "ZT414",
    "autocast-quantized-weights",
    ERROR,
    keys=("torch_autocast.enabled", "zero_optimization.zero_quantized_weights"),
    message="torch_autocast can't be combined with zero_quantized_weights",
    help="switch one of them off",
    source="deepspeed 0.19.8 runtime/torch_autocast.py:32",
    bad=[raw({"torch_autocast": {"enabled": True, "dtype": "bfloat16"},
              "zero_optimization": {"stage": 3, "zero_quantized_weights": True}})],
    good=[raw({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}})],
)  # fmt: skip
def autocast_quantized_weights(view):
    """An assertion when the engine is built (b040)."""
    if view.get("torch_autocast.enabled") and view.flag("zero_optimization.zero_quantized_weights"):
        yield Hit("/torch_autocast/enabled")


@rule(
    "ZT415",
    "autocast-communication",
    WARNING,
    keys=("communication_data_type", "torch_autocast.enabled"),
    message="communication_data_type is ignored under torch_autocast at stage {stage}",
    help="delete it",
    source="deepspeed 0.19.8 runtime/zero/stage_1_and_2.py, stage3.py: buckets by autocast's dtype",
    bad=[raw({"communication_data_type": "fp32", "torch_autocast": {"enabled": True, "dtype": "bf16"},
              "zero_optimization": {"stage": 2}})],
    good=[raw({"communication_data_type": "fp32", **bf16()})],
)  # fmt: skip
def autocast_communication(view):
    """Gradients are reduced in the dtype that autocast gave them (b042)."""
    if view.get("torch_autocast.enabled") and view.stage and view.get("communication_data_type"):
        yield Hit("/communication_data_type", {"stage": view.stage}, at_key=True)


@rule(
    "ZT416",
    "autocast-without-dtype",
    INFO,
    keys=("torch_autocast.dtype",),
    message="torch_autocast has no dtype: torch's default for the device is taken",
    help='add "dtype": "bfloat16"',
    source=f"{CONFIG}:186",
    bad=[raw({"torch_autocast": {"enabled": True}})],
    good=[raw({"torch_autocast": {"enabled": True, "dtype": "bfloat16"}})],
)
def autocast_without_dtype(view):
    """float16 on CUDA, which needs loss scaling, bfloat16 on CPU (b030 to b032)."""
    if view.get("torch_autocast.enabled") and view.get("torch_autocast.dtype") is None:
        yield Hit("/torch_autocast", at_key=True)
