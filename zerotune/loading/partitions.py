"""Parameters that are born partitioned: zero.Init without a whole tensor, without initialising, without broadcasts.

`deepspeed.zero.Init` makes every parameter whole on every rank, broadcasts it and keeps 1/N. Here it is given
placeholders (a shape, one element of storage); its own code then makes each rank's partition where it belongs (GPU,
pinned or plain host memory, NVMe; the secondary partition of hpZ), and nothing is copied into it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import deepspeed
import torch
from deepspeed import comm

NVME, CPU = "nvme", "cpu"


def placeholder(shape, dtype: torch.dtype, device: torch.device, requires_grad: bool) -> torch.nn.Parameter:
    """A parameter of `shape` on `device` that stores a single element."""
    made = torch.nn.Parameter(torch.zeros((), dtype=dtype, device=device).expand(shape), requires_grad)
    made.is_placeholder = True
    return made


class PartitionedInit(deepspeed.zero.Init):
    """Partitions a model of placeholders in place.

    The methods it overrides are the engine's own seams (0.18.9 to 0.19.8): what to do with the parameters of
    `zero.Init(module=...)`, and which part of a parameter is this rank's. tests/engine/test_loading.py trains a model
    that is made this way beside one that `from_pretrained` made.

    Attributes:
        on_nvme: parameters whose partition goes to NVMe; they have none until `store_on_nvme`.
    """

    def __init__(self, model: torch.nn.Module, ds_config: dict):
        self._rank_beyond = False
        self.on_nvme: list[torch.nn.Parameter] = []
        super().__init__(module=model, config_dict_or_path=ds_config)

    def _convert_to_zero_parameters(self, param_list):
        params = list(param_list)
        for param in params:
            if getattr(param, "is_placeholder", False):
                self._adopt(param)
        super()._convert_to_zero_parameters(params)  # adapters that are added later have values to keep

    def _adopt(self, param: torch.nn.Parameter) -> None:
        del param.is_placeholder
        self._convert_to_deepspeed_param(param)
        param.data = torch.empty(0, dtype=param.dtype, device=param.device)
        partition = -(-param.ds_numel // comm.get_world_size(group=param.ds_process_group))
        if self.remote_device == NVME and self.param_swapper.swappable_tensor(numel=partition):
            self.on_nvme.append(param)
        else:
            self._make_partition(param)

    def _make_partition(self, param: torch.nn.Parameter) -> None:
        with self._beyond_the_last_rank():
            param.partition()

    @contextlib.contextmanager
    def _beyond_the_last_rank(self) -> Iterator[None]:
        """Partition as a rank would that owns padding only: memory is made as for any rank, nothing is copied."""
        rank_in_group, self.rank_in_group, self._rank_beyond = self.rank_in_group, self.num_ranks_in_param_group, True
        try:
            yield
        finally:
            self.rank_in_group, self._rank_beyond = rank_in_group, False

    def _partition_rank(self, param):
        return (
            comm.get_world_size(group=param.ds_process_group) if self._rank_beyond else super()._partition_rank(param)
        )

    def get_partition_rank(self):
        return self.dp_world_size if self._rank_beyond else super().get_partition_rank()

    def secondary_rank(self) -> int:
        """This rank's place in its hpZ group."""
        return self.rank_in_group

    def store_on_nvme(self, param: torch.nn.Parameter, fill: Callable[[torch.nn.Parameter], None]) -> None:
        """Make the partition of an NVMe parameter in host memory, let `fill` write it, and move it to its file."""
        remote, pin, self.remote_device, self.pin_memory = self.remote_device, self.pin_memory, CPU, False
        try:
            self._make_partition(param)
        finally:
            self.remote_device, self.pin_memory = remote, pin
        fill(param)
        partition = param.ds_tensor
        buffer = self.param_swapper.get_buffer(param, partition.ds_numel)
        buffer.copy_(partition)
        partition.data, partition.final_location = buffer.data, NVME
        self.param_swapper.swap_out_and_release([param])
