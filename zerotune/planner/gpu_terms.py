"""Bytes on one GPU, term by term. Sources are files of DeepSpeed 0.19.8's runtime/zero unless said otherwise.

Every function takes a Run and returns bytes on one rank.
"""

from __future__ import annotations

from .partition import held_params, largest_param, owned_params, persistent_params, sub_groups, touched_params
from .run import Run

# Moments per weight, in numbers of 4 bytes. Adam keeps two (ops/adam/fused_adam.py), Lion and SGD with momentum one.
MOMENTS = {"adamw": 2, "adam": 2, "lamb": 2, "lion": 1, "sgd": 1, "adagrad": 1, "muon": 1}
MIB, GIB = 2**20, 2**30
DDP_BUCKET = 500_000_000


def param_bytes(run: Run) -> int:
    """Weights kept: the flat buffer of stages 1 and 2 (stage_1_and_2.py:505), the partition of stage 3
    (stage3.py:975, lp_param_buffer); none when stage 3 keeps them on the host."""
    return 0 if run.zero.cpu_params else held_params(run) * run.bytes_each


def secondary_param_bytes(run: Run) -> int:
    """hpZ: a second partition of the weights, over the GPUs of one group only (partition_parameters.py, ds_secondary)."""
    if run.zero.stage < 3 or run.zero.hpz <= 1:
        return 0
    return -(-run.local.num_params // run.zero.hpz) * run.bytes_each


def live_param_bytes(run: Run) -> int:
    """Weights gathered whole under stage 3: the persistent ones always, others up to max_live_parameters.

    A parameter is released only when it isn't used again within max_reuse_distance (partitioned_param_coordinator.py:653),
    so a model below the limit stays whole. On one rank without offload nothing is copied (NoGatherCoalescedHandle,
    partition_parameters.py:105).
    """
    if run.zero.stage < 3 or (run.zero_ranks == 1 and not run.zero.cpu_params):
        return 0
    persistent = persistent_params(run)
    passing = min(run.local.num_params - persistent, max(run.zero.max_live_parameters, largest_param(run)))
    return (persistent + passing) * run.bytes_each


def master_bytes(run: Run) -> int:
    """fp32 weights of the owned partition; a copy even when the model is fp32 (stage_1_and_2.py:560), but not under
    stage 3 then (stage3.py:1166)."""
    if run.zero.cpu_optimizer or (run.zero.stage == 0 and run.precision == "fp32"):
        return 0
    if run.zero.stage == 3 and run.precision == "fp32" and not run.zero.cpu_params:
        return 0
    return owned_params(run) * 4


def optimizer_bytes(run: Run) -> int:
    """fp32 moments of the owned partition, made in the first step."""
    return 0 if run.zero.cpu_optimizer else owned_params(run) * 4 * MOMENTS[run.optimizer]


def reduces_eagerly(run: Run) -> bool:
    """Stage 1 reduces each gradient as it comes only with overlap_comm, and only in the last micro batch of a step
    (stage_1_and_2.py:975-981); otherwise all gradients are there before the first is reduced."""
    return run.zero.stage >= 2 or (run.zero.stage == 1 and run.zero.overlap_comm and run.accumulation == 1)


def grad_partition_bytes(run: Run) -> int:
    """Gradients kept for the step. Stage 3: grad_partitions_flat_buffer, there from the start (stage3.py:791).

    Stages 1 and 2: grads_in_partition, allocated at the first reduced bucket (stage_1_and_2.py:2192), with the whole of
    each parameter that reaches into the partition; with data_types.grad_accum_dtype fp32 the partition itself
    (stage_1_and_2.py:1262). Stage 0, and stage 1 unless it reduces eagerly, keep every gradient whole. With the
    optimizer on the host none is kept after its reduction.
    """
    if not reduces_eagerly(run):
        return run.local.num_trainable * run.grad_bytes_each
    return _reduced_bytes(run)


def reduced_copy_bytes(run: Run) -> int:
    """Stage 1 that doesn't reduce eagerly: the partition's gradients once more."""
    return _reduced_bytes(run) if run.zero.stage == 1 and not reduces_eagerly(run) else 0


def _reduced_bytes(run: Run) -> int:
    if run.zero.cpu_optimizer:
        return 0
    whole = run.zero.stage < 3 and run.grad_bytes_each == run.bytes_each
    return (touched_params(run) if whole else owned_params(run)) * run.grad_bytes_each


def reduce_bucket_bytes(run: Run) -> int:
    """reduce_bucket_size elements: two such buffers with overlap_comm at stages 1 and 2 (stage_1_and_2.py:3261-3278,
    made for each backward pass), one at stage 3 (stage3.py:782, kept). On a CPU only what gradients touch is there."""
    if run.zero.stage == 0 or not run.zero.contiguous_gradients:
        return 0
    buffers = 2 if run.zero.stage < 3 and run.zero.overlap_comm else 1
    elements = buffers * run.zero.reduce_bucket_size
    return (min(elements, run.local.num_trainable) if run.cluster.device.is_cpu else elements) * run.bytes_each


def reduce_scatter_bytes(run: Run) -> int:
    """Stage 3 over several ranks: the bucket's padded copy that reduce_scatter_coalesced makes
    (runtime/comm/coalesced_collectives.py). Stages 1 and 2: the flat copy of a bucket that belongs to several ranks, as
    at least one does (stage_1_and_2.py:2367). Stage 0: of 500 million gradients at a time (runtime/engine.py:3921)."""
    if run.zero_ranks == 1 or (run.zero.stage in (1, 2) and not run.zero.reduce_scatter):
        return 0
    if run.zero.stage == 0:
        return min(DDP_BUCKET, run.local.num_trainable) * run.grad_bytes_each
    return min(run.zero.reduce_bucket_size, run.local.num_trainable) * run.bytes_each


def gloo_bytes(run: Run) -> int:
    """On CPU ranks at stage 3: gloo reduces a clone of the bucket (torch, ProcessGroupGloo.cpp, reduce_scatter)."""
    return reduce_scatter_bytes(run) if run.cluster.device.is_cpu and run.zero.stage == 3 else 0


def offload_grad_bytes(run: Run) -> int:
    """temp_grad_buffer_for_gpu_offload, kept: the largest parameter (stage_1_and_2.py:659)."""
    return largest_param(run) * run.bytes_each if run.zero.cpu_optimizer and run.zero.stage < 3 else 0


def offload_upcast_bytes(run: Run) -> int:
    """Below stage 3 a gradient is made fp32 on the GPU before it goes to the host: the largest one
    (stage_1_and_2.py:1900)."""
    return largest_param(run) * 4 if offload_grad_bytes(run) and run.precision != "fp32" else 0


def step_grad_bytes(run: Run) -> int:
    """The step's own copies of the owned gradients: flattened, and that in fp32 (stage_1_and_2.py:3114-3118).

    Stage 3 does it one sub-group at a time (stage3.py, _prepare_sub_group). Under fp32 `.to` copies nothing.
    Stage 0 in 16 bits: an fp32 copy of each gradient, then all of them flattened (runtime/fp16/fused_optimizer.py:286).
    """
    if run.zero.cpu_optimizer:
        return 0
    if run.zero.stage == 0:
        return 0 if run.precision == "fp32" else owned_params(run) * 8
    owned = max(sub_groups(run), default=0) if run.zero.stage == 3 else owned_params(run)
    flat = owned * run.grad_bytes_each
    return flat if run.grad_bytes_each == 4 else flat + owned * 4


def init_bytes(run: Run) -> int:
    """Peak while the engine is built, beside weights and master weights: the unflattened weights of stages 1 and 2
    until the flat buffer replaces them (stage_1_and_2.py:505), a gradient buffer as large as the largest sub-group
    at stage 3 (stage3.py:1306). Stage 0 makes no copies."""
    if run.zero.stage == 0:
        return 0
    if run.zero.stage == 3:
        return 0 if run.zero.cpu_optimizer else max(sub_groups(run), default=0) * 4
    return run.local.num_params * run.bytes_each


def workspace_bytes(run: Run) -> int:
    """cuBLAS's workspaces, from the allocator: of the main thread and of autograd's, 32 MiB each since Hopper, 8 MiB
    before (aten/src/ATen/cuda/CublasHandlePool.cpp)."""
    if run.cluster.device.is_cpu:
        return 0
    return 2 * (32 if run.cluster.device.bf16 >= 700 else 8) * MIB


def context_bytes(run: Run) -> int:
    """The CUDA context with its loaded kernels: 0.5 GiB on H100-class devices, outside the allocator."""
    return 0 if run.cluster.device.is_cpu else GIB // 2


def nccl_bytes(run: Run) -> int:
    """NCCL's channels outside the allocator, once the world's communicator is up: 16 channels of 2 peers with the
    simple, LL and LL128 buffers of 4 MiB + 0.5 MiB + 4.7 MiB (nccl, src/include/device.h)."""
    if run.world == 1 or run.cluster.device.is_cpu:
        return 0
    return int(16 * 2 * (4 + 0.5 + 4.7) * MIB)


def rounding_bytes(run: Run) -> int:
    """The caching allocator cuts large requests into 2 MiB units: half a unit lost on each saved tensor.

    About 12 tensors a layer (activations.py), unless layers are recomputed: one each (c10/cuda/CUDACachingAllocator)."""
    tensors = run.local.layers * (1 if run.recompute else 12)
    return 0 if run.cluster.device.is_cpu else tensors * MIB
