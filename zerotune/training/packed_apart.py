"""Proof, before the first step, that this model keeps packed neighbours apart.

Most architectures of transformers derive a block-diagonal mask from positions that restart; some ignore the positions
(OPT, Bloom, MPT, Mamba and others in 5.24), and would train on text that leaks from one example into the next.
"""

from __future__ import annotations

import inspect

import numpy as np
import torch

from zerotune.errors import UsageError
from zerotune.training.data.collate import Collate
from zerotune.training.data.packing import fill_block

LENGTHS = (24, 16)  # tokens of the two segments of the probe
# The second segment computes the same numbers both times; a leak moved them by 1 % or more in each model that has one.
TOLERANCE = 2e-3


def require_positions(model) -> None:
    """Refuse a model whose forward takes no position_ids at all.

    Raises:
        UsageError: packing cannot work with this model.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise UsageError(_message(model.config.model_type, "takes no position_ids"))


@torch.no_grad()
def prove(engine, collate: Collate, model_type: str, vocab_size: int, device) -> None:
    """Change the first of two packed segments and look whether the second notices. Every rank must call it.

    Args:
        engine: the wrapped model; it is left in training mode.
        vocab_size: tokens that may be drawn.

    Raises:
        UsageError: it does.
    """
    engine.eval()
    before, after = (_second_segment(engine, collate, seed, vocab_size, device) for seed in (1, 2))
    engine.train()
    scale = before.abs().max().clamp(min=1e-6)
    if (before - after).abs().max() > TOLERANCE * scale:
        raise UsageError(_message(model_type, "lets packed neighbours attend to each other"))


def _second_segment(engine, collate: Collate, seed: int, vocab_size: int, device) -> torch.Tensor:
    """Logits [LENGTHS[1], vocab] of the second segment behind a first one drawn from `seed`."""
    first = np.random.default_rng(seed).integers(0, vocab_size, LENGTHS[0])
    second = np.random.default_rng(0).integers(0, vocab_size, LENGTHS[1])
    batch = collate([fill_block([(first, first), (second, second)], sum(LENGTHS), 0)])
    del batch["real_tokens"], batch["labels"]
    inputs = {key: value.to(device) if torch.is_tensor(value) else value for key, value in batch.items()}
    return engine(**inputs, use_cache=False).logits[0, LENGTHS[0] :].float()


def _message(model_type: str, what: str) -> str:
    return f"this model ({model_type}) {what}. Use --packing False, which pads every example instead."
