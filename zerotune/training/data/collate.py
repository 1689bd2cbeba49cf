"""A list of sequences -> one batch, in the form that keeps packed neighbours apart for the chosen attention."""

from __future__ import annotations

import numpy as np
import torch

WIDTH_STEP = 8  # matrix units want multiples of 8


def _round_up(real: int, block: int) -> int:
    return min(block, -(-real // WIDTH_STEP) * WIDTH_STEP)


class Collate:
    """Stack sequences into tensors.

    Args:
        attn: the attention implementation. A flash-attn kernel takes the whole micro batch as one row of
            variable-length sequences (`cu_seq_lens_*`); PyTorch's kernels take [batch, block] and derive a
            block-diagonal causal mask from `position_ids` (transformers does, when no attention_mask is given).

    Returns (when called):
        input_ids, labels, position_ids: int64 [batch, width], or [1, batch * width] for flash-attn, where width is
            the longest row's real tokens, rounded up to WIDTH_STEP (packed rows are full, so it is the block);
        real_tokens: int64 [batch].
    """

    def __init__(self, attn: str):
        self.flatten = attn.startswith("flash_attention")

    def __call__(self, rows: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        keys = ("input_ids", "labels", "position_ids")
        width = _round_up(max(int(row["real_tokens"]) for row in rows), len(rows[0]["input_ids"]))
        batch = {key: torch.from_numpy(np.stack([row[key][:width] for row in rows])) for key in keys}
        if self.flatten:
            batch = {key: value.reshape(1, -1) for key, value in batch.items()}
            batch.update(_segment_bounds(batch["position_ids"]))
        batch["real_tokens"] = torch.tensor([int(row["real_tokens"]) for row in rows])
        return batch


def _segment_bounds(position_ids: torch.Tensor) -> dict[str, torch.Tensor | int]:
    """flash-attn's description of packed segments: offsets int32 [segments + 1] and the longest length."""
    starts = torch.nonzero(position_ids[0] == 0).flatten().to(torch.int32)
    end = torch.tensor([position_ids.shape[1]], dtype=torch.int32)
    offsets = torch.cat([starts, end])
    longest = int(offsets.diff().max())
    return {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}
