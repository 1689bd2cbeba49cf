"""Weights as byte ranges of files: what the readers of checkpoints produce and the writer of shards consumes."""

import math
from dataclasses import dataclass
from pathlib import Path

from zerotune.checkpointing.torch_archive import StoredTensor


@dataclass(frozen=True)
class Piece:
    """A run of elements: `num_elements` of type `dtype` from byte `offset` of `path`."""

    path: Path
    dtype: str
    offset: int
    num_elements: int


@dataclass(frozen=True)
class SourceTensor:
    """A whole weight.

    Attributes:
        pieces: in order they hold the elements, row-major.
        strided: set instead of `pieces` when the tensor was saved in another memory order.
        delta: what is added to the stored elements, in fp32.
    """

    name: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    strided: StoredTensor | None = None
    delta: "LowRankDelta | None" = None

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> str:
        return self.strided.dtype if self.strided else self.pieces[0].dtype if self.pieces else "F32"


@dataclass(frozen=True)
class LowRankDelta:
    """A LoRA update of a [rows, columns] weight: scale * up [rows, rank] @ down [rank, columns]."""

    down: SourceTensor
    up: SourceTensor
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.up.shape[0], self.down.shape[1]
