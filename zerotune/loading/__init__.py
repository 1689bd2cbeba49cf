"""Pretrained weights: from safetensors straight into this rank's partitions."""

__all__ = ["load_pretrained"]


def __getattr__(name: str):
    """`load_pretrained` imports torch, transformers and DeepSpeed when it is asked for; reading headers needs none."""
    if name != "load_pretrained":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from zerotune.loading.pretrained import load_pretrained

    return load_pretrained
