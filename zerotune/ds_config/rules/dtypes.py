"""ZT408 to ZT411, ZT418: dtypes of accumulation, weights, buffers and communication."""

from __future__ import annotations

from ..finding import ERROR, WARNING
from .precision import CONFIG, DTYPES, ENGINE, bf16, raw
from .rule import Hit, rule


@rule(
    "ZT408",
    "accumulation-dtype",
    ERROR,
    keys=("data_types.grad_accum_dtype",),
    message="{key} is {value}, which is no dtype of DeepSpeed's",
    help='write "fp32", "bf16" or "fp16", or leave it out',
    source=f"{CONFIG}:144 (DtypeEnum)",
    bad=[raw({"data_types": {"grad_accum_dtype": "double"}}), raw({"data_types": {"param_dtype": "fp64"}})],
    good=[raw({"data_types": {"grad_accum_dtype": "float32"}})],
)
def accumulation_dtype(view):
    """A ValueError when the engine is built, not in the parser (b013, b015)."""
    for name in ("grad_accum_dtype", "param_dtype", "buffer_dtype"):
        value = view.get(f"data_types.{name}")
        known = value == "auto" or (isinstance(value, str) and value in DTYPES)
        if value is not None and not known:
            # Buffers are cast only when a mode is on.
            unread = name == "buffer_dtype" and view.precision == "fp32"
            yield Hit(f"/data_types/{name}", severity=WARNING if unread else ERROR)


@rule(
    "ZT409",
    "accumulation-dtype-stage-0",
    ERROR,
    keys=("data_types.grad_accum_dtype",),
    message="at stage 0 gradients can't be accumulated in {accumulated} for {precision} weights",
    help="set ZeRO stage 1, or leave grad_accum_dtype out",
    source=f"{ENGINE}:2323",
    bad=[raw({"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}})],
    good=[raw({**bf16(1), "data_types": {"grad_accum_dtype": "fp32"}})],
)
def accumulation_dtype_stage_0(view):
    """NotImplementedError when the engine is built (b009, b010)."""
    accumulated = DTYPES.get(str(view.get("data_types.grad_accum_dtype")))
    if view.stage == 0 and accumulated and view.precision and accumulated != view.precision:
        yield Hit("/data_types/grad_accum_dtype", {"accumulated": accumulated, "precision": view.precision})


@rule(
    "ZT410",
    "param-dtype-mode",
    ERROR,
    keys=("data_types.param_dtype",),
    message="param_dtype is {value}, but the mode is {precision}",
    help="leave param_dtype out; bf16.enabled and fp16.enabled decide",
    source=f"{ENGINE}:1827",
    bad=[raw({**bf16(), "data_types": {"param_dtype": "fp32"}})],
    good=[raw({**bf16(), "data_types": {"param_dtype": "bfloat16"}})],
)
def param_dtype_mode(view):
    """An assertion when the engine is built (b016)."""
    wanted = DTYPES.get(str(view.get("data_types.param_dtype")))
    if wanted and view.precision and wanted != view.precision:
        yield Hit("/data_types/param_dtype", {"precision": view.precision})


@rule(
    "ZT411",
    "communication-dtype",
    ERROR,
    keys=("communication_data_type", "seq_parallel_communication_data_type"),
    message='{key} is {value}; it must be "fp16", "bf16" or "fp32"',
    help="write one of them, or leave it out",
    source=f"{CONFIG}:216",
    bad=[raw({"communication_data_type": "float32"})],
    good=[raw({"communication_data_type": "FP32"})],
)
def communication_dtype(view):
    """A ValueError in the parser (c098, c099). "float32" is a dtype elsewhere, not here."""
    for name in ("communication_data_type", "seq_parallel_communication_data_type"):
        value = view.get(name)
        if isinstance(value, str) and value != "auto" and value.lower() not in ("fp16", "bf16", "fp32"):
            yield Hit(f"/{name}")


@rule(
    "ZT418",
    "keep-in-fp32",
    ERROR,
    keys=("data_types.keep_in_fp32_modules",),
    message='{key} is {value}; it must be "auto" or a list of name patterns',
    help='write a list such as ["rotary_emb"]',
    source=f"{CONFIG}:553",
    bad=[raw({"data_types": {"keep_in_fp32_modules": "rotary_emb"}})],
    good=[raw({"data_types": {"keep_in_fp32_modules": ["rotary_emb"]}})],
)
def keep_in_fp32(view):
    """A DeepSpeedConfigError in the parser."""
    value = view.get("data_types.keep_in_fp32_modules", "auto")
    if value != "auto" and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        yield Hit("/data_types/keep_in_fp32_modules")
