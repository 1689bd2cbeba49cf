"""Floating-point operations per token, and the peaks of devices: for MFU."""

from __future__ import annotations

# Dense bf16 matrix peak in TFLOP/s by a word in the device's name, first match wins. Vendor datasheets:
# nvidia.com/en-us/data-center/{h200,h100,a100,l40s,l4,a10,v100,tesla-t4}, amd.com/en/products/accelerators/instinct.
PEAK_TFLOPS = (
    ("B200", 2250.0),
    ("H200", 989.0),
    ("H100 PCIe", 756.0),
    ("H100", 989.0),
    ("A100", 312.0),
    ("L40S", 362.0),
    ("L4", 121.0),
    ("A10", 125.0),
    ("V100", 125.0),
    ("T4", 65.0),
    ("MI300X", 1307.0),
    ("MI250", 362.0),
    ("RTX 4090", 165.0),
    ("RTX 3090", 71.0),
)


def peak_tflops(device_name: str) -> float | None:
    """Dense 16-bit peak of a device in TFLOP/s; None when it is not in the table."""
    return next((peak for word, peak in PEAK_TFLOPS if word in device_name), None)


def flops_per_token(num_parameters: int, num_layers: int, hidden_size: int, seq_length: int) -> float:
    """6 N + 6 L h s: forward and backward, causal attention counted once, recomputation not counted."""
    return 6.0 * num_parameters + 6.0 * num_layers * hidden_size * seq_length
