"""Pretrained weights: from safetensors straight into this rank's partitions."""

from zerotune.loading.pretrained import load_pretrained

__all__ = ["load_pretrained"]
