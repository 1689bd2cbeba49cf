"""Choice of the attention kernel.

A flash-attn package computes packed sequences as variable-length ones; PyTorch's own kernel (sdpa) gets a
block-diagonal mask instead. Both keep packed neighbours apart.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util

from zerotune.errors import UsageError, nearest

# Newest first. Distribution and module as transformers looks for them (utils/import_utils.py, 5.24).
FLASH_PACKAGES = {
    "flash_attention_4": ("flash-attn-4", "flash_attn"),
    "flash_attention_3": ("flash-attn-3", "flash_attn_interface"),
    "flash_attention_2": ("flash-attn", "flash_attn"),
}
OTHERS = ("sdpa", "eager")


def choose(wanted: str, model_class=None) -> tuple[str, str]:
    """Return the implementation's name for transformers and the reason in words.

    Args:
        wanted: `auto`, or one of FLASH_PACKAGES and OTHERS.
        model_class: the model's class, which says what it supports (`_supports_sdpa`, `_supports_flash_attn`).

    Raises:
        UsageError: an unknown name, or a flash-attn that is not installed or has no GPU to run on.
    """
    import torch

    names = ["auto", *FLASH_PACKAGES, *OTHERS]
    if wanted not in names:
        close = nearest(wanted, names)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise UsageError(f"--attn {wanted}: no such attention.{hint} Choices: {', '.join(names)}")
    if wanted in OTHERS:
        return wanted, "asked for"
    if wanted in FLASH_PACKAGES:
        _require(wanted, torch.cuda.is_available())
        return wanted, "asked for"
    if torch.cuda.is_available() and getattr(model_class, "_supports_flash_attn", True):
        for name in FLASH_PACKAGES:
            if _version(name):
                return name, f"{FLASH_PACKAGES[name][0]} {_version(name)} is installed"
    if not getattr(model_class, "_supports_sdpa", True):
        return "eager", f"{model_class.__name__} supports nothing faster here"
    why = "no flash-attn installed" if torch.cuda.is_available() else "no GPU"
    return "sdpa", f"PyTorch's own kernels: {why}"


def _require(name: str, has_gpu: bool) -> None:
    package = FLASH_PACKAGES[name][0]
    if not has_gpu:
        raise UsageError(f"--attn {name}: flash-attn needs a CUDA GPU and there is none here. Use --attn auto.")
    if not _version(name):
        raise UsageError(f"--attn {name}: {package} is not installed. pip install {package}, or use --attn auto.")


def _version(name: str) -> str | None:
    distribution, module = FLASH_PACKAGES[name]
    try:
        found = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    return found if importlib.util.find_spec(module) else None
