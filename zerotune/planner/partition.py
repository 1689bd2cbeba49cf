"""How DeepSpeed 0.19.8 divides parameters over ranks, in elements, with its padding."""

from __future__ import annotations

from .run import Run
from .shapes import Param

NCCL_ALIGNMENT = 2  # elements: stage_1_and_2.py:387


def decay_groups(run: Run) -> list[int]:
    """Trainable parameters with and without weight decay: the Trainer's two optimizer groups (trainer.py:1408)."""
    sums = {True: 0, False: 0}
    for param, count in run.shapes.groups():
        if param.trainable:
            sums[param.decays] += param.numel * count
    return [numel for numel in sums.values() if numel]


def aligned_groups(run: Run) -> list[int]:
    """Elements of each flat group of stages 1 and 2, padded to 2 x ranks (stage_1_and_2.py:441-446)."""
    step = NCCL_ALIGNMENT * run.world
    return [-(-numel // step) * step for numel in decay_groups(run)]


def partition_numel(numel: int, ranks: int) -> int:
    """Elements one rank holds of one parameter under stage 3 (partition_parameters.py:1693)."""
    return -(-numel // ranks)


def _partitioned(run: Run, trainable_only: bool) -> int:
    return sum(
        partition_numel(param.numel, run.world) * count
        for param, count in run.shapes.groups()
        if param.trainable or not trainable_only
    )


def held_params(run: Run) -> int:
    """Elements of weights that one rank keeps: everything below stage 3, its partition there."""
    if run.zero.stage == 3:
        return _partitioned(run, trainable_only=False)
    frozen = run.shapes.num_params - run.shapes.num_trainable
    if run.zero.stage == 0:
        return run.shapes.num_params
    return sum(aligned_groups(run)) + frozen


def owned_params(run: Run) -> int:
    """Elements whose optimizer states one rank keeps."""
    if run.zero.stage == 3:
        return _partitioned(run, trainable_only=True)
    if run.zero.stage == 0:
        return run.shapes.num_trainable
    return sum(aligned_groups(run)) // run.world


def touched_params(run: Run) -> int:
    """Stage 2: elements of all parameters that reach into one rank's partition, each counted whole: what
    grads_in_partition holds (stage_1_and_2.py:2186-2192). Of the rank with most."""
    totals = [0] * run.world
    step = NCCL_ALIGNMENT * run.world
    for decays in (True, False):
        kept = [param.numel for param in _in_order(run, decays)]
        size = -(-sum(kept) // step) * step // run.world
        start = 0
        for numel in kept:
            for rank in range(start // size, (start + numel - 1) // size + 1):
                totals[rank] += numel
            start += numel
    return max(totals)


def persistent_params(run: Run) -> int:
    """Elements that stay whole on every rank under stage 3: parameters up to the threshold (parameter_offload.py:317)."""
    limit = run.zero.param_persistence_threshold
    return sum(param.numel * count for param, count in run.shapes.groups() if param.numel <= limit)


def largest_param(run: Run) -> int:
    return max(param.numel for param, _ in run.shapes.groups())


def sub_groups(run: Run) -> list[int]:
    """Elements of each sub-group of stage 3: closed by the parameter that reaches sub_group_size (stage3.py:1211)."""
    found = []
    for decays in (True, False):
        current = 0
        for param in _in_order(run, decays):
            current += partition_numel(param.numel, run.world)
            if current >= run.zero.sub_group_size:
                found.append(current)
                current = 0
        if current:
            found.append(current)
    return found


def _in_order(run: Run, decays: bool):
    for block in run.shapes.blocks:
        kept: list[Param] = [
            param for param in block.params if param.trainable and _full(block.prefix, param).decays == decays
        ]
        for _ in block.indices:
            yield from kept


def _full(prefix: str, param: Param) -> Param:
    return Param(prefix + param.name, param.shape, param.layer_norm)
