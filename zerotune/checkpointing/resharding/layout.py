"""Which elements of which parameter this rank of an engine owns, and where in its flat vectors they lie."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
from deepspeed import comm
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from zerotune.errors import UsageError


@dataclass(frozen=True)
class Span:
    """Elements [first, first + length) of parameter `name`, at `at` of a flat vector."""

    name: str
    first: int
    length: int
    at: int


@dataclass(frozen=True)
class Part:
    """One flat vector of fp32 masters that this rank updates.

    Attributes:
        vector: [n], what the optimizer holds as its parameter.
        group: index of its parameter group.
        name: one of the parameters of its group or sub-group, also where this rank owns padding only.
        spans: what lies in it; between them is padding.
    """

    vector: torch.Tensor
    group: int
    name: str
    spans: list[Span]


def stage_of(engine) -> int:
    """ZeRO stage of a DeepSpeed engine."""
    return engine.zero_optimization_stage()


def parts(engine) -> list[Part]:
    """This rank's flat vectors, in the optimizer's order.

    Raises:
        UsageError: an engine whose optimizer keeps its state elsewhere (NVMe, ZenFlow, SuperOffload, ratio below 1).
    """
    _refuse_other_optimizers(engine)
    names = {param: name for name, param in engine.module.named_parameters()}
    return (_stage3 if stage_of(engine) == 3 else _stage12)(engine.optimizer, names)


def frozen(engine) -> list[tuple[torch.Tensor, Span]]:
    """The parameters that no optimizer owns, and the part of them that this rank keeps."""
    owned = {param for group in groups(engine.optimizer) for param in group}
    found = []
    for name, param in engine.module.named_parameters():
        if param in owned:
            continue
        if not hasattr(param, "ds_id"):
            found.append((param.data.view(-1), Span(name, 0, param.numel(), 0)))
        else:
            rank = comm.get_rank(group=param.ds_process_group)
            found.append((param.ds_tensor.data.view(-1), _span3(name, param, rank, 0)))
    return found


def groups(optimizer) -> list[list[torch.nn.Parameter]]:
    """Parameters in the order in which they lie in the flat vectors."""
    stage12 = getattr(optimizer, "round_robin_bit16_groups", None)
    return optimizer.fp16_groups if stage12 is None else stage12


def named_groups(engine) -> list[list[str]]:
    """`groups` by name."""
    names = {param: name for name, param in engine.module.named_parameters()}
    return [[names[param] for param in group] for group in groups(engine.optimizer)]


def _stage3(optimizer, names: dict) -> list[Part]:
    rank = comm.get_rank(group=optimizer.dp_process_group)
    found = []
    for index, group in enumerate(optimizer.fp16_groups):
        starts = accumulate((param.partition_numel() for param in group), initial=0)
        spans = [_span3(names[param], param, rank, at) for param, at in zip(group, starts, strict=False)]
        vector, group_id = optimizer.fp32_partitioned_groups_flat[index], optimizer.sub_group_to_group_id[index]
        found.append(Part(vector, group_id, names[group[0]], spans))
    return found


def _span3(name: str, param, rank: int, at: int) -> Span:
    """Every rank owns ceil(n / ranks) elements; the last ones are padding."""
    size = param.partition_numel()
    return Span(name, rank * size, max(0, min(size, param.ds_numel - rank * size)), at)


def _stage12(optimizer, names: dict) -> list[Part]:
    found = []
    for index, group in enumerate(optimizer.round_robin_bit16_groups):
        size = optimizer.partition_size[index]
        begin = comm.get_rank(group=optimizer.real_dp_process_group[index]) * size
        spans = []
        for param, offset in zip(group, _offsets(optimizer, index), strict=False):
            first, last = max(begin, offset), min(begin + size, offset + param.numel())
            if first < last:
                spans.append(Span(names[param], first - offset, last - first, first - begin))
        found.append(Part(optimizer.single_partition_of_fp32_groups[index], index, names[group[0]], spans))
    return found


def _offsets(optimizer, index: int):
    """Where each parameter starts in its group; DeepSpeed 0.19.8 may align them."""
    if hasattr(optimizer, "round_robin_bit16_offsets"):
        return optimizer.round_robin_bit16_offsets[index]
    return accumulate((param.numel() for param in optimizer.round_robin_bit16_groups[index]), initial=0)


def _refuse_other_optimizers(engine) -> None:
    optimizer = engine.optimizer
    plain = type(optimizer) in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3)
    whole = getattr(optimizer, "partial_offload", 1.0) in (0, 1.0) or not optimizer.offload_optimizer
    nvme = getattr(optimizer, "swap_optimizer", False) or getattr(optimizer, "params_in_nvme_and_cpu", False)
    if plain and whole and not nvme:
        return
    what = "NVMe offload" if nvme else "offload_optimizer.ratio below 1" if plain else type(optimizer).__name__
    raise UsageError(
        f"--resume_from_checkpoint: this config uses {what}, and such a run is resumed only on the ranks, the ZeRO "
        "stage and the offload that wrote the checkpoint. Choose those, or another template (zerotune-config list)."
    )
