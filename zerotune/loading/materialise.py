"""From a model of lazy and meta tensors to one with storage: whole, or this rank's partitions; then the values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import deepspeed
import torch
from deepspeed import comm

from zerotune.loading.filling import Goal, Reader
from zerotune.loading.lazy_tensor import LazyTensor
from zerotune.loading.partitions import PartitionedInit, placeholder


@dataclass
class Weights:
    """What is still to be read, and what has no values in the files.

    Attributes:
        sources: (parameter or buffer, lazy tensor with its place in the files).
        absent: parameters without values.
        init: set when the parameters are partitioned.
    """

    sources: list[tuple[torch.Tensor, LazyTensor]] = field(default_factory=list)
    absent: list[torch.nn.Parameter] = field(default_factory=list)
    init: PartitionedInit | None = None


def whole(model: torch.nn.Module, device: torch.device) -> Weights:
    """Give every parameter and buffer memory of its full size on `device`."""

    def make(old: torch.Tensor) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.empty(old.shape, dtype=old.dtype, device=device), old.requires_grad)

    return _replace(model, make, device)


def partitioned(model: torch.nn.Module, ds_config: dict, dtype: torch.dtype, device: torch.device) -> Weights:
    """Give every parameter this rank's partition of it, as zero.Init would, and every buffer memory on `device`."""

    def make(old: torch.Tensor) -> torch.nn.Parameter:
        new_dtype = dtype if old.is_floating_point() else old.dtype
        return placeholder(old.shape, new_dtype, device, old.requires_grad)

    weights = _replace(model, make, device)
    weights.init = PartitionedInit(model, ds_config)
    return weights


def fill(weights: Weights, reader: Reader) -> list[Goal]:
    """Read this rank's elements. Returns what was filled and is still in memory, for the audit."""
    on_nvme = {id(param) for param in weights.init.on_nvme} if weights.init else set()
    goals = [goal for target, lazy in weights.sources if id(target) not in on_nvme for goal in _goals(target, lazy)]
    reader.fill(goals)
    if weights.init:
        _copy_secondary(weights.sources)
        _fill_nvme(weights, reader)
    return goals


def _replace(model: torch.nn.Module, make: Callable, device: torch.device) -> Weights:
    weights, made = Weights(), {}
    for owner, name, old in _members(model):
        if id(old) in made:
            setattr(owner, name, made[id(old)][0])
            continue
        is_buffer = name in owner._buffers
        new = torch.empty(old.shape, dtype=old.dtype, device=device) if is_buffer else make(old)
        new.__dict__.update({key: value for key, value in old.__dict__.items() if key not in ("extent", "origin")})
        made[id(old)] = new, old  # the old one must live on, or its id may be given to another
        setattr(owner, name, new)
        if isinstance(old, LazyTensor):
            weights.sources.append((new, old))
        elif not is_buffer:
            weights.absent.append(new)
    return weights


def _members(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor]]:
    for module in model.modules():
        for members in (module._parameters, module._buffers):
            for name, tensor in list(members.items()):
                if tensor is not None:
                    yield module, name, tensor


def _goals(target: torch.Tensor, lazy: LazyTensor) -> Iterator[Goal]:
    partition = getattr(target, "ds_tensor", None)
    if partition is None:
        yield Goal(lazy, target.data.view(-1), 0)
        return
    yield Goal(lazy, partition, partition.ds_numel * comm.get_rank(group=target.ds_process_group))
    secondary = target.ds_secondary_tensor
    if secondary is not None and not _same_range(target):
        rank = comm.get_rank(group=target.ds_zero_param_process_group)
        yield Goal(lazy, secondary, secondary.ds_numel * rank)


def _same_range(param) -> bool:
    """Within one node the secondary partition of hpZ is the primary one."""
    return param.ds_secondary_tensor.ds_numel == param.ds_tensor.ds_numel


def _copy_secondary(sources) -> None:
    for target, _ in sources:
        if getattr(target, "ds_secondary_tensor", None) is not None and _same_range(target):
            target.ds_secondary_tensor.copy_(target.ds_tensor)


def _fill_nvme(weights: Weights, reader: Reader) -> None:
    lazies = {id(target): lazy for target, lazy in weights.sources}

    def read(param: torch.nn.Parameter) -> None:
        if id(param) in lazies:
            reader.fill(_goals(param, lazies[id(param)]))

    for param in weights.init.on_nvme:
        weights.init.store_on_nvme(param, read)


def compute_the_rest(model, weights: Weights) -> None:
    """Let transformers compute what no file holds: non-persistent buffers, and weights that were allowed to be absent.

    Under ZeRO-3 rank 0 draws the absent weights and the others receive them.
    """
    if weights.init is None:
        model.initialize_weights()
        return
    with deepspeed.zero.GatheredParameters(weights.absent, modifier_rank=0, enabled=bool(weights.absent)):
        model.initialize_weights()


def num_elements(model: torch.nn.Module) -> int:
    """Elements of all parameters, partitioned ones counted whole."""
    return sum(getattr(param, "ds_numel", math.prod(param.shape)) for param in model.parameters())
