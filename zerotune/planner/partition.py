"""How DeepSpeed 0.19.8 divides parameters over ranks, in elements, with its padding."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from .run import Run
from .shapes import Shapes

NCCL_ALIGNMENT = 2  # elements: stage_1_and_2.py:387


@lru_cache(maxsize=64)
def _groups(shapes: Shapes, by_decay: bool, apart: bool) -> tuple[tuple[bool, tuple[int, ...]], ...]:
    """Sizes of the trainable parameters by optimizer group, in the model's order, and whether they are experts.

    One group when the config names the optimizer (transformers, integrations/deepspeed.py:577); else the Trainer's
    two, those with weight decay first (trainer.py:1408). `apart`: expert parallelism splits experts off (moe/utils.py).
    """
    sizes: dict[tuple[bool, bool], list[int]] = {(e, d): [] for e in (False, True) for d in (True, False)}
    for block in shapes.blocks:
        kept = [replace(param, name=block.prefix + param.name) for param in block.params if param.trainable]
        for _ in block.indices:
            for param in kept:
                sizes[param.expert and apart, param.decays or not by_decay].append(param.numel)
    return tuple((expert, tuple(group)) for (expert, _), group in sizes.items() if group)


def _groups_of(run: Run) -> list[tuple[int, tuple[int, ...]]]:
    """Ranks that share each optimizer group, and its sizes."""
    apart = run.degrees.expert > 1
    ranks = {False: run.zero_ranks, True: run.world // run.degrees.expert}
    return [(ranks[expert], sizes) for expert, sizes in _groups(run.local, run.zero.groups_by_decay, apart)]


def aligned_groups(run: Run) -> list[int]:
    """Elements of each flat group of stages 1 and 2, padded to 2 x ranks (stage_1_and_2.py:441-446)."""
    return [_aligned(sizes, ranks) for ranks, sizes in _groups_of(run)]


def owned_groups(run: Run) -> list[int]:
    """Elements that one rank has of each."""
    return [_aligned(sizes, ranks) // ranks for ranks, sizes in _groups_of(run)]


def _aligned(sizes: tuple[int, ...], world: int) -> int:
    step = NCCL_ALIGNMENT * world
    return -(-sum(sizes) // step) * step


def partition_numel(numel: int, ranks: int) -> int:
    """Elements one rank holds of one parameter under stage 3 (partition_parameters.py:1693)."""
    return -(-numel // ranks)


def _partitioned(run: Run, trainable_only: bool) -> int:
    return sum(
        partition_numel(param.numel, run.sharers(param)) * count
        for param, count in run.local.groups
        if param.trainable or not trainable_only
    )


def held_params(run: Run) -> int:
    """Elements of weights that one rank keeps: everything below stage 3, its partition there."""
    if run.zero.stage == 3:
        return _partitioned(run, trainable_only=False)
    frozen = run.local.num_params - run.local.num_trainable
    if run.zero.stage == 0:
        return run.local.num_params
    return sum(aligned_groups(run)) + frozen


def owned_params(run: Run) -> int:
    """Elements whose optimizer states one rank keeps."""
    if run.zero.stage == 3:
        return _partitioned(run, trainable_only=True)
    if run.zero.stage == 0:
        return run.local.num_trainable
    return sum(owned_groups(run))


def touched_params(run: Run) -> int:
    """Stage 2: elements of all parameters that reach into one rank's partition, each counted whole: what
    grads_in_partition holds (stage_1_and_2.py:2186-2192). Of the rank with most."""
    return sum(_touched(sizes, ranks) for ranks, sizes in _groups_of(run))


@lru_cache(maxsize=64)
def _touched(sizes: tuple[int, ...], ranks: int) -> int:
    totals = [0] * ranks
    width = _aligned(sizes, ranks) // ranks
    start = 0
    for numel in sizes:
        for rank in range(start // width, (start + numel - 1) // width + 1):
            totals[rank] += numel
        start += numel
    return max(totals)


def persistent_params(run: Run) -> int:
    """Elements that stay whole on every rank under stage 3: parameters up to the threshold (parameter_offload.py:317)."""
    limit = run.zero.param_persistence_threshold
    return sum(param.numel * count for param, count in run.local.groups if param.numel <= limit)


def largest_param(run: Run) -> int:
    return max(param.numel for param, _ in run.local.groups)


def sub_groups(run: Run) -> tuple[int, ...]:
    """Elements of each sub-group of stage 3: closed by the parameter that reaches sub_group_size (stage3.py:1211)."""
    found = (_sub_groups(sizes, ranks, run.zero.sub_group_size) for ranks, sizes in _groups_of(run))
    return tuple(numel for group in found for numel in group)


@lru_cache(maxsize=64)
def _sub_groups(sizes: tuple[int, ...], ranks: int, size: int) -> tuple[int, ...]:
    found, current = [], 0
    for numel in sizes:
        current += partition_numel(numel, ranks)
        if current >= size:
            found.append(current)
            current = 0
    return (*found, current) if current else tuple(found)
