"""Floating-point conversions on raw bytes with numpy, equal to torch's `.to(dtype)` bit for bit (NaN payloads aside).

numpy has no bfloat16, so it is handled as uint16. Every conversion goes through fp32, which holds bf16 and fp16
exactly; fp64 (rare: a buffer) is rounded to fp32 first, as zero_to_fp32's `.float()` does.
"""

import numpy as np

from zerotune.checkpointing.torch_archive import ITEM_BYTES
from zerotune.errors import UsageError, nearest

EXPORT_DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
FLOATING = ("F64", "F32", "F16", "BF16")
NUMPY_TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
QUIET_NAN_BF16 = np.uint16(0x7FC0)
BLOCK = 1 << 18  # elements converted at once: input, output and scratch stay in a core's cache


def checked_dtype(name: str) -> str:
    """`name` if it is an export dtype (bf16, fp16, fp32).

    Raises:
        UsageError: any other name, with the nearest valid one.
    """
    if name in EXPORT_DTYPES:
        return name
    by_torch_name = {torch_name: ours for ours, torch_name in TORCH_NAMES.items()}
    suggestion = [by_torch_name[name]] if name in by_torch_name else nearest(name, EXPORT_DTYPES, 1)
    hint = f" Did you mean {suggestion[0]}?" if suggestion else ""
    raise UsageError(f"dtype {name!r} is not one of bf16, fp16, fp32.{hint}")


def exported_dtype(source: str, export: str) -> str:
    """What a tensor of safetensors type `source` becomes: floating types change, integers and booleans stay."""
    return EXPORT_DTYPES[export] if source in FLOATING else source


def convert(raw: np.ndarray, source: str, target: str) -> np.ndarray:
    """Change the element type of flat bytes.

    Args:
        raw: [num_elements * item bytes], uint8, little-endian.
        source, target: safetensors names of the element types.

    Returns:
        [num_elements * target item bytes], uint8; `raw` itself when nothing changes.
    """
    if source == target:
        return raw
    values = raw.view(NUMPY_TYPES[source])
    result = np.empty(len(values), NUMPY_TYPES[target])
    for first in range(0, len(values), BLOCK):
        block = _to_float32(values[first : first + BLOCK], source)
        _from_float32(block, result[first : first + BLOCK], target)
    return result.view(np.uint8)


def count_overflow(raw: np.ndarray, converted: np.ndarray, source: str, target: str) -> int:
    """Finite values that became infinite: only fp16 is too narrow for weights (largest 65,504)."""
    if target != "F16" or source == "F16":
        return 0
    infinite = np.isinf(converted.view(np.float16))
    if not infinite.any():
        return 0
    before = _to_float32(raw.view(NUMPY_TYPES[source]), source)
    return int(np.count_nonzero(infinite & np.isfinite(before)))


def item_bytes(dtype: str) -> int:
    """Bytes of one element of a safetensors type."""
    return ITEM_BYTES[dtype]


def _to_float32(values: np.ndarray, source: str) -> np.ndarray:
    if source == "BF16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def _from_float32(values: np.ndarray, result: np.ndarray, target: str) -> None:
    if target == "BF16":
        _round_to_bfloat16(values, result)
        return
    with np.errstate(over="ignore"):
        result[:] = values


def _round_to_bfloat16(values: np.ndarray, result: np.ndarray) -> None:
    """Round half to even: add 0x7FFF plus the kept part's last bit, then drop the lower 16 bits."""
    bits = values.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    result[:] = rounded.view(np.uint16)[1::2]
    not_a_number = np.isnan(values)
    if not_a_number.any():
        result[not_a_number] = QUIET_NAN_BF16
