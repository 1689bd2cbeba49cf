"""Tensor, sequence and expert parallelism: which degrees a run can have, and what a rank then holds of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from zerotune.errors import UsageError

from .shapes import Block, Param, Shapes

# The families whose experts DeepSpeed 0.19.8 knows how to spread (module_inject/auto_ep_presets).
EXPERT_PRESETS = ("mixtral", "qwen3_moe")
# Two-dimensional tensors of a layer that AutoTP doesn't slice; names of lookups and of output matrices.
WHOLE = ("relative_attention",)
TIED, UNTIED = ("embed_tokens", "wte", "embed_in", "shared"), ("lm_head", "embed_out")


@dataclass(frozen=True)
class Degrees:
    """Ranks that share every matrix (tensor), every row of tokens (sequence), every set of experts (expert)."""

    tensor: int = 1
    sequence: int = 1
    expert: int = 1

    def __str__(self) -> str:
        named = (("tp", self.tensor), ("sp", self.sequence), ("ep", self.expert))
        return ", ".join(f"{name} {size}" for name, size in named if size > 1)


def degrees_of(config: dict) -> Degrees:
    """tensor_parallel.autotp_size, sequence_parallel_size and expert_parallel.autoep_size of a DeepSpeed config."""

    def size(block, key: str) -> int:
        value = block.get(key) if isinstance(block, dict) else None
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 1 else 1

    experts = config.get("expert_parallel")
    on = isinstance(experts, dict) and experts.get("enabled") is True
    return Degrees(
        size(config.get("tensor_parallel"), "autotp_size"),
        # alone it only changes the batch arithmetic (rule ZT810)
        size(config, "sequence_parallel_size") if size(config, "data_parallel_size") > 1 else 1,
        size(experts, "autoep_size") if on else 1,
    )


def check_degrees(degrees: Degrees, shapes: Shapes, world: int, seq: int) -> None:
    """Raises UsageError for degrees that the engine refuses, or that don't divide what they share."""
    named = {"--tp": degrees.tensor, "--sp": degrees.sequence, "--ep": degrees.expert}
    for flag, size in named.items():
        if size < 1:
            raise UsageError(f"{flag} {size} must be 1 or more")
        if world % size:
            raise UsageError(f"{flag} {size} doesn't divide the {world} ranks; it may be {divisors(world)}")
    if sum(size > 1 for size in named.values()) > 1:
        raise UsageError(f"{degrees}: only one of --tp, --sp and --ep can be planned at a time")
    for flag, of, size in (
        ("--tp", {"attention heads": shapes.heads, "feed-forward columns": shapes.ffn}, degrees.tensor),
        ("--sp", {"attention heads": shapes.heads, "tokens of a row": seq}, degrees.sequence),
    ):
        for what, number in of.items():
            if number % size:
                raise UsageError(f"{flag} {size} doesn't divide the {number} {what} of {shapes.name}")
    if degrees.tensor > 1 and shapes.experts:
        raise UsageError(
            f"--tp {degrees.tensor}: transformers doesn't load experts under tensor parallelism "
            "(5.24, integrations/deepspeed.py:355); --sp and --ep can be planned"
        )
    if degrees.expert > 1:
        _check_experts(degrees.expert, shapes)


def _check_experts(size: int, shapes: Shapes) -> None:
    if shapes.model_type not in EXPERT_PRESETS:
        raise UsageError(
            f"--ep {size}: DeepSpeed can't spread the experts of {shapes.model_type}; it knows {', '.join(EXPERT_PRESETS)}"
        )
    if shapes.experts % size:
        raise UsageError(
            f"--ep {size} doesn't divide the {shapes.experts} experts; it may be {divisors(shapes.experts)}"
        )


def divisors(number: int) -> str:
    return ", ".join(str(one) for one in range(1, number + 1) if number % one == 0)


@lru_cache(maxsize=64)
def sliced(shapes: Shapes, tensor: int, expert: int) -> Shapes:
    """What one rank has of the model before ZeRO divides it: its slice of every matrix, its share of the experts.

    Tensor: the linear layers of the repeated modules and the output matrix; norms stay whole, and so does a lookup unless
    the output matrix is tied to it, which also leaves every rank its part of the logits (deepspeed 0.19.8,
    module_inject/auto_tp.py, runtime/engine.py:1126). Expert: the first dimension of their tensors.
    """
    if tensor == expert == 1:
        return shapes
    blocks = tuple(
        replace(block, params=tuple(_sliced(param, block, shapes, tensor, expert) for param in block.params))
        for block in shapes.blocks
    )
    return replace(
        shapes,
        blocks=blocks,
        heads=shapes.heads // tensor,
        kv_heads=max(1, shapes.kv_heads // tensor),
        ffn=shapes.ffn // tensor,
        experts=shapes.experts // expert,
        vocab=-(-shapes.vocab // tensor) if shapes.tied else shapes.vocab,
    )


def _sliced(param: Param, block: Block, shapes: Shapes, tensor: int, expert: int) -> Param:
    if param.expert and expert > 1:
        return replace(param, shape=(param.shape[0] // expert, *param.shape[1:]))
    return (
        replace(param, shape=(-(-param.shape[0] // tensor), *param.shape[1:]))
        if tensor > 1 and _shared(param, block, shapes)
        else param
    )


def _shared(param: Param, block: Block, shapes: Shapes) -> bool:
    """Does AutoTP slice it?"""
    if len(param.shape) < 2:
        return False
    if "{}" in block.prefix:
        return not any(word in param.name for word in WHOLE)
    return any(word in param.name for word in (TIED if shapes.tied else UNTIED))
