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
        attn: the attention implementation. For packed sequences a flash-attn kernel takes the whole micro batch as
            one row of variable-length segments (`cu_seq_lens_*`); PyTorch's kernels take [batch, width] and derive a
            block-diagonal causal mask from `position_ids` (transformers does, when there is no attention_mask).
        packing: whether rows hold several segments. Rows of one padded segment get an attention_mask instead.

    Returns (when called):
        input_ids, labels: int64 [batch, width], or [1, batch * width] for packed flash-attn, where width is the
            longest row's real tokens, rounded up to WIDTH_STEP (packed rows are full, so it is the block);
        position_ids (packed) or attention_mask (not packed): the same shape;
        real_tokens: int64 [batch].
    """

    def __init__(self, attn: str, packing: bool = True):
        self.packing = packing
        self.flatten = packing and attn.startswith("flash_attention")

    def __call__(self, rows: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        real = torch.tensor([int(row["real_tokens"]) for row in rows])
        width = _round_up(int(real.max()), len(rows[0]["input_ids"]))
        keys = ("input_ids", "labels", "position_ids") if self.packing else ("input_ids", "labels")
        batch = {key: torch.from_numpy(np.stack([row[key][:width] for row in rows])) for key in keys}
        if self.flatten:
            batch = {key: value.reshape(1, -1) for key, value in batch.items()}
            batch.update(_segment_bounds(batch["position_ids"]))
        if not self.packing:
            batch["attention_mask"] = (torch.arange(width) < real[:, None]).long()
        return batch | {"real_tokens": real}


def _segment_bounds(position_ids: torch.Tensor) -> dict[str, torch.Tensor | int]:
    """flash-attn's description of packed segments: offsets int32 [segments + 1] and the longest length."""
    starts = torch.nonzero(position_ids[0] == 0).flatten().to(torch.int32)
    end = torch.tensor([position_ids.shape[1]], dtype=torch.int32)
    offsets = torch.cat([starts, end])
    longest = int(offsets.diff().max())
    return {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}
