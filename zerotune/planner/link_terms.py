"""Seconds on the links between GPUs: ZeRO's collectives, and what tensor, sequence and expert parallelism exchange."""

from __future__ import annotations

from .run import Run

LINK_FRACTION = 0.65  # 269 and 313 of 450 GB/s in all-gather and all-reduce
NETWORK_FRACTION = 0.80


def collective_s(run: Run, num_bytes: float) -> float:
    """All-gather or reduce-scatter of `num_bytes` (whole, not of one rank) over the ranks that ZeRO divides by.

    Inside a node each GPU receives all but its own part; a node receives all but its own through its network, which
    every tensor parallel slice does for itself.
    """
    cluster, ranks = run.cluster, run.zero_ranks
    if ranks == 1:
        return 0.0
    inside = num_bytes * (ranks - 1) / ranks / (cluster.device.peer_gbs * 1e9 * LINK_FRACTION)
    inside = inside if cluster.per_node > 1 else 0.0
    whole = num_bytes * run.degrees.tensor
    outside = whole * (cluster.nodes - 1) / cluster.nodes / (cluster.device.network_gbs * 1e9 * NETWORK_FRACTION)
    return max(inside, outside)


def group_rate(run: Run, size: int) -> float:
    """Bytes a second of one GPU to the others of its group of consecutive ranks: over the node's links, or where the
    group spans nodes over its share of the network."""
    cluster = run.cluster
    if size <= cluster.per_node:
        return cluster.device.peer_gbs * 1e9 * LINK_FRACTION
    return cluster.device.network_gbs * 1e9 * NETWORK_FRACTION / cluster.per_node


def tensor_sums_s(run: Run) -> float:
    """Of one micro batch: two all-reduces of [tokens, hidden] a layer forward and two backward, and the forward ones
    again with recompute (Megatron-LM, arxiv.org/abs/1909.08053, section 3). An all-reduce moves 2 (n - 1) / n of it."""
    size = run.degrees.tensor
    times = run.shapes.layers * (6 if run.recompute else 4)
    moved = times * 2 * (size - 1) / size * run.tokens * run.shapes.hidden * run.bytes_each
    return moved / group_rate(run, size)


def sequence_exchange_s(run: Run) -> float:
    """Of one micro batch: queries, keys, values and the output exchanged all to all, forward, backward, and forward
    again with recompute (Ulysses, arxiv.org/abs/2309.14509, section 3). A rank sends (n - 1) / n of its part."""
    size, shapes = run.degrees.sequence, run.shapes
    width = 2 * (shapes.heads + max(shapes.kv_heads, size)) * shapes.head_dim
    times = shapes.layers * (3 if run.recompute else 2)
    return times * (size - 1) / size * run.tokens * width * run.bytes_each / group_rate(run, size)


def expert_exchange_s(run: Run) -> float:
    """Of one micro batch: each token goes to its active experts and comes back, forward, backward, and forward again
    with recompute (GShard, arxiv.org/abs/2006.16668, section 3). Balanced: (n - 1) / n of them leave the rank."""
    size, shapes = run.degrees.expert, run.shapes
    times = shapes.sparse_layers * 2 * (3 if run.recompute else 2)
    moved = times * (size - 1) / size * run.tokens * shapes.active_experts * shapes.hidden * run.bytes_each
    return moved / group_rate(run, size)
