"""Bytes of host memory of one rank, and of disk. The page cache is kept apart: the kernel gives it back."""

from __future__ import annotations

from .activations import activation_bytes, recomputed_layer_bytes
from .gpu_terms import GIB, MOMENTS
from .partition import (
    held_params,
    largest_param,
    owned_groups,
    owned_params,
    partition_numel,
    sub_groups,
    touched_params,
)
from .run import Run
from .shapes import Shapes

NVME_OPTIMIZER_BUFFERS, NVME_PARAM_BUFFERS, NVME_PARAM_BUFFER = 4, 5, 100_000_000  # zero/offload_config.py defaults
EXPORT_SHARD = 5 * 10**9
MMAP = 32 << 20
LOAD_PIECES, LOAD_PIECE = 2, 16 << 20  # loading/filling.py


def pinned_bytes(run: Run, requested: int) -> int:
    """What page-locked memory takes: torch's host allocator rounds each block up to a power of two
    (aten/src/ATen/core/CachingHostAllocator.h) and never gives it back."""
    if not run.zero.pin_memory or run.cluster.device.is_cpu or requested <= 0:
        return max(0, requested)
    return 1 << (requested - 1).bit_length()


def process_bytes(run: Run) -> int:
    """Python, torch, CUDA libraries and data: 2.0 GiB resident on one H200, 2.9 with NCCL over two
    (benchmarks/results/main_job.csv, the rows without offload); without CUDA 0.52 (benchmarks/results/plan_on_cpu.csv)."""
    if run.cluster.device.is_cpu:
        return int(0.52 * GIB)
    return int((2.0 if run.world == 1 else 2.9) * GIB)


def malloc_kept_bytes(run: Run) -> int:
    """On a CPU, freed blocks below 32 MiB that stay in the process: glibc takes them from its heap, not by mmap
    (M_MMAP_THRESHOLD, man 3 mallopt). Activations, and of small enough parameters the gradients, or at stage 3 the
    gathered weights."""
    if not run.cluster.device.is_cpu:
        return 0
    small = _small_param_bytes(run)
    if run.zero.stage in (1, 2):
        small = small * touched_params(run) // max(1, run.local.num_trainable)
    return activation_bytes(run) + recomputed_layer_bytes(run) + small


def _small_param_bytes(run: Run) -> int:
    """All parameters that malloc takes from its heap, whole."""
    sizes = ((param.numel * run.bytes_each, count) for param, count in run.local.groups)
    return sum(size * count for size, count in sizes if size < MMAP)


def unflattened_bytes(run: Run) -> int:
    """On a CPU, while the engine is built at stage 3: the parameters' own partitions, until the flat ones replace them."""
    if run.zero.stage < 3 or not run.cluster.device.is_cpu:
        return 0
    return _small_param_bytes(run) // run.zero_ranks


def _groups(run: Run) -> tuple[int, ...]:
    """Owned elements of each flat buffer: sub-groups at stage 3, optimizer groups below."""
    if run.zero.stage == 3:
        return sub_groups(run)
    return tuple(owned_groups(run))


def host_master_bytes(run: Run) -> int:
    """fp32 weights; pinned below stage 3 (stage_1_and_2.py:564), not at stage 3 (stage3.py:1163)."""
    if not run.zero.cpu_optimizer:
        return 0
    if run.zero.offload_optimizer == "nvme":
        return 0
    if run.zero.stage == 3:
        return owned_params(run) * 4
    return sum(pinned_bytes(run, numel * 4) for numel in _groups(run))


def host_optimizer_bytes(run: Run) -> int:
    """Moments: plain memory, made by DeepSpeedCPUAdam in the first step (ops/adam/cpu_adam.py)."""
    if run.zero.offload_optimizer != "cpu":
        return 0
    return owned_params(run) * 4 * MOMENTS[run.optimizer]


def host_grad_bytes(run: Run) -> int:
    """fp32 gradients of each group (stage_1_and_2.py:940, stage3.py:1338)."""
    if run.zero.offload_optimizer != "cpu":
        return 0
    return sum(pinned_bytes(run, numel * 4) for numel in _groups(run))


def host_grad_buffer_bytes(run: Run) -> int:
    """Stage 3: grad_partitions_flat_buffer in the accumulation's type (stage3.py:791-795). Below: one buffer of the
    largest parameter (stage_1_and_2.py:653), and with accumulation one for each parameter (stage_1_and_2.py:1824)."""
    if not run.zero.cpu_optimizer:
        return 0
    if run.zero.stage == 3:
        return pinned_bytes(run, owned_params(run) * run.grad_bytes_each)
    total = pinned_bytes(run, largest_param(run) * run.bytes_each)
    if run.accumulation > 1:
        groups = [(param, count) for param, count in run.local.groups if param.trainable]
        total += sum(pinned_bytes(run, p.numel * run.bytes_each) * count for p, count in groups) // run.zero_ranks
    return total


def host_param_bytes(run: Run) -> int:
    """16-bit weights on the host. Stage 3: one flat buffer for each optimizer group (stage3.py:906), or with NVMe
    its swap buffers. Below stage 3: the staging copy of the updated partition (stage_1_and_2.py:567-575)."""
    if run.zero.stage < 3:
        if not run.zero.cpu_optimizer:
            return 0
        return sum(pinned_bytes(run, numel * run.bytes_each) for numel in _groups(run))
    if run.zero.offload_param == "nvme":
        return pinned_bytes(run, NVME_PARAM_BUFFERS * NVME_PARAM_BUFFER * run.bytes_each)
    return pinned_bytes(run, held_params(run) * run.bytes_each) if run.zero.cpu_params else 0


def host_build_bytes(run: Run) -> int:
    """Left over from building: zero.Init pins the partition of each parameter by itself (partition_parameters.py),
    and the host allocator keeps the blocks after the flat buffer replaced them. On a CPU it is the whole parameters,
    made one by one between what stays, that leave holes in malloc's heap."""
    if run.cluster.device.is_cpu:
        return _small_param_bytes(run) if run.zero.stage == 3 else 0
    if not run.zero.cpu_params or not run.zero.pin_memory:
        return 0
    return sum(
        pinned_bytes(run, partition_numel(param.numel, run.sharers(param)) * run.bytes_each) * count
        for param, count in run.local.groups
    )


def host_swap_bytes(run: Run) -> int:
    """NVMe: buffer_count pinned buffers of the largest sub-group, for weights, moments and gradients in turn
    (swap_tensor/optimizer_utils.py)."""
    if run.zero.offload_optimizer != "nvme":
        return 0
    return pinned_bytes(run, NVME_OPTIMIZER_BUFFERS * max(_groups(run)) * 4)


def naive_load_bytes(shapes: Shapes, processes: int, bytes_each: int = 4) -> int:
    """Every process of a node reads the whole model into host memory: parameters x bytes x processes."""
    return shapes.num_params * bytes_each * processes


def load_bytes(run: Run) -> int:
    """Weights in host memory while they are read or drawn, beside where they end up.

    Pretrained: two pieces of 16 MiB, on their way to the GPU or to another type (loading/filling.py). From scratch
    below stage 3 every rank draws the whole model on the host and then moves it (transformers, from_config); under
    stage 3 zero.Init makes each module on the device. On CPU ranks the model stays where it is.
    """
    if not run.from_scratch:
        return LOAD_PIECES * LOAD_PIECE
    moved = run.zero.stage < 3 and not run.cluster.device.is_cpu
    return run.local.num_params * run.bytes_each if moved else 0


def save_bytes(run: Run) -> int:
    """torch.save brings one tensor at a time to the host: the largest flat one that lies on the GPU. In the background
    it writes from the snapshot."""
    if run.zero.cpu_optimizer or run.cluster.device.is_cpu or run.background_save:
        return 0
    return max(_groups(run), default=0) * 4 if run.zero.stage else owned_params(run) * 4


def snapshot_bytes(run: Run) -> int:
    """Saving in the background: memory for a copy of what this rank writes, its partition's fp32 weights and moments;
    made after the first step and kept (checkpointing/snapshot.py)."""
    return owned_params(run) * 4 * (1 + MOMENTS[run.optimizer]) if run.background_save else 0


def rank_0_snapshot_bytes(run: Run) -> int:
    """And below stage 3, on rank 0 of the job, the 16-bit weights."""
    return run.local.num_params * run.bytes_each if run.background_save and run.zero.stage < 3 else 0


def export_bytes(run: Run) -> int:
    """The exporter writes shards of at most 5 GB and holds one of them (checkpointing/shard_writer.py)."""
    return min(EXPORT_SHARD, run.shapes.num_params * run.bytes_each)


def checkpoint_disk_bytes(run: Run) -> int:
    """One checkpoint of all ranks: fp32 weights and moments of each partition, and below stage 3 the 16-bit weights
    once more, in rank 0's model states."""
    states = owned_params(run) * 4 * (1 + MOMENTS[run.optimizer])
    states = states * run.degrees.tensor * run.degrees.expert if run.zero.stage == 0 else states * run.world
    return states + (run.shapes.num_params * run.bytes_each if run.zero.stage < 3 else 0)


def export_disk_bytes(run: Run) -> int:
    """The exported model in 16 bits."""
    return run.shapes.num_params * run.bytes_each
