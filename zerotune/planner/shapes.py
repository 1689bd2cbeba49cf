"""What a model is made of, as far as memory and time are concerned."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

# What transformers.Trainer gives no weight decay, besides every bias and nn.LayerNorm (trainer.py:1416, 5.24).
NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


@dataclass(frozen=True)
class Param:
    """One tensor. `layer_norm`: it belongs to an nn.LayerNorm. `expert`: its first dimension counts experts."""

    name: str
    shape: tuple[int, ...]
    layer_norm: bool = False
    expert: bool = False
    trainable: bool = True

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def decays(self) -> bool:
        return not self.layer_norm and not NO_DECAY.search(self.name.lower())


@dataclass(frozen=True)
class Block:
    """Equal modules: `prefix` holds {} for the index. A module that is there once has the indices (0,) and no {}."""

    prefix: str
    params: tuple[Param, ...]
    indices: tuple[int, ...] = (0,)

    @property
    def numel(self) -> int:
        """Parameters of one of them."""
        return sum(param.numel for param in self.params)


@dataclass(frozen=True, eq=False)
class Shapes:
    """A model. Sizes are of the whole model, before any parallelism. Compared and hashed by identity, so that what is
    counted once can be remembered.

    blocks: in the order of named_parameters(); shared tensors once.
    ffn: width between the matrices of a dense feed-forward; moe_ffn: of one expert; shared_ffn: of shared experts.
    gated: the feed-forward has a gate beside its up projection.
    parallel: attention and feed-forward read the same input (phi, gpt_neox).
    norms: normalisations per layer over the hidden size; head_norms: over the head size (queries and keys).
    rms: they are RMS norms written in fp32 steps, not torch's own layer norm.
    sparse_layers: layers with experts. encoder_layers: 0 in a decoder-only model.
    """

    name: str
    model_type: str
    blocks: tuple[Block, ...] = field(repr=False)
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_positions: int
    tied: bool
    gated: bool = True
    parallel: bool = False
    norms: int = 2
    head_norms: int = 0
    rms: bool = True
    experts: int = 0
    active_experts: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    sparse_layers: int = 0
    encoder_layers: int = 0

    def params(self) -> Iterator[Param]:
        """Every parameter under its full name, in the order of named_parameters()."""
        for block in self.blocks:
            for index in block.indices:
                prefix = block.prefix.format(index)
                for param in block.params:
                    yield replace(param, name=prefix + param.name)

    @cached_property
    def groups(self) -> tuple[tuple[Param, int], ...]:
        """Every kind of parameter with how often it is there: the short form of params()."""
        return tuple(
            (replace(param, name=block.prefix.replace("{}", "0") + param.name), len(block.indices))
            for block in self.blocks
            for param in block.params
        )

    @cached_property
    def num_params(self) -> int:
        return sum(param.numel * count for param, count in self.groups)

    @cached_property
    def num_trainable(self) -> int:
        return sum(param.numel * count for param, count in self.groups if param.trainable)

    @cached_property
    def num_active(self) -> int:
        """Parameters that one token meets: of the experts only the chosen ones."""
        share = self.active_experts / self.experts if self.experts else 0
        return round(sum(p.numel * count * (share if p.expert else 1) for p, count in self.groups))

    @cached_property
    def largest_layer(self) -> int:
        """Parameters of the largest repeated module."""
        return max(block.numel for block in self.blocks)
