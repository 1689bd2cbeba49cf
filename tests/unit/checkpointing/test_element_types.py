"""Conversions on known bit patterns. tests/engine/test_export.py compares them with torch on whole models."""

import numpy as np
import pytest

from zerotune.checkpointing import element_types
from zerotune.checkpointing.element_types import checked_dtype, convert, count_overflow, exported_dtype
from zerotune.errors import UsageError


def raw(*values, dtype=np.float32):
    return np.array(values, dtype).view(np.uint8)


def bf16_bits(*float32_bits):
    data = np.array(float32_bits, np.uint32).view(np.uint8)
    return [f"{bits:04X}" for bits in convert(data, "F32", "BF16").view(np.uint16)]


def test_bf16_rounds_half_to_even():
    assert bf16_bits(0x3F808000, 0x3F818000) == ["3F80", "3F82"]
    assert bf16_bits(0x3F808001, 0x3F807FFF) == ["3F81", "3F80"]


def test_bf16_edges():
    largest, infinity, minus_zero, smallest_denormal = 0x7F7FFFFF, 0x7F800000, 0x80000000, 0x00000001
    assert bf16_bits(largest, infinity, minus_zero, smallest_denormal) == ["7F80", "7F80", "8000", "0000"]


def test_bf16_keeps_every_nan_a_nan():
    """Rounding a NaN with all mantissa bits set would carry into the sign and give zero."""
    assert bf16_bits(0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001) == ["7FC0"] * 3


def test_blocks_join_without_seams(monkeypatch):
    monkeypatch.setattr(element_types, "BLOCK", 3)
    values = np.arange(10, dtype=np.float32)
    assert convert(convert(values.view(np.uint8), "F32", "BF16"), "BF16", "F32").view(np.float32).tolist() == [
        *range(10)
    ]


@pytest.mark.parametrize(("source", "numpy_type"), [("F16", np.float16), ("F64", np.float64), ("F32", np.float32)])
def test_everything_becomes_float32(source, numpy_type):
    assert convert(raw(1.5, -2.0, dtype=numpy_type), source, "F32").view(np.float32).tolist() == [1.5, -2.0]


def test_fp16_overflow_is_counted_but_infinities_that_were_there_are_not():
    data = raw(1.0, 70000.0, -1e30, np.inf)
    converted = convert(data, "F32", "F16")
    assert count_overflow(data, converted, "F32", "F16") == 2
    assert count_overflow(data, convert(data, "F32", "BF16"), "F32", "BF16") == 0


def test_integers_stay():
    assert exported_dtype("I64", "bf16") == "I64"
    assert exported_dtype("BOOL", "fp32") == "BOOL"
    assert exported_dtype("F64", "fp16") == "F16"


@pytest.mark.parametrize(("wrong", "meant"), [("bfloat16", "bf16"), ("float32", "fp32"), ("bf61", "bf16")])
def test_wrong_dtype_names_the_nearest(wrong, meant):
    with pytest.raises(UsageError, match=f"dtype '{wrong}' is not one of bf16, fp16, fp32. Did you mean {meant}?"):
        checked_dtype(wrong)
