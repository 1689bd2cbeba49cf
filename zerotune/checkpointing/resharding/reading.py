"""Elements of a stored tensor into a flat tensor of this process, a few MiB at a time."""

from __future__ import annotations

import torch

from zerotune.checkpointing.shard_plan import Slot
from zerotune.checkpointing.weight_reader import RangeReader, converted_chunks
from zerotune.checkpointing.weights import SourceTensor
from zerotune.loading.lazy_tensor import DTYPES


def fill(reader: RangeReader, into: torch.Tensor, source: SourceTensor, first: int) -> None:
    """Copy elements [first, first + n) of `source` into `into` [n], in the type of `into`."""
    assert first + into.numel() <= source.num_elements, (source.name, first, into.numel(), source.num_elements)
    slot = Slot(source.name, source, source.dtype, 0)
    for begin, raw, _ in converted_chunks(reader, slot, first, first + into.numel()):
        values = torch.from_numpy(raw).view(DTYPES[source.dtype])
        into[begin - first : begin - first + values.numel()].copy_(values)
