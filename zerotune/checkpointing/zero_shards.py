"""What a DeepSpeed ZeRO checkpoint holds: for every weight, the byte ranges of the ranks' files that make it up.

Format, read from deepspeed/runtime/engine.py, zero/stage_1_and_2.py, zero/stage3.py and utils/zero_to_fp32.py of
DeepSpeed 0.19.8:

- `*zero_pp_rank_R_mp_rank_00_optim_states.pt`, one a rank: the fp32 master weights, flat, without names.
  Stages 1 and 2: one vector a parameter group, cut into ranks; rank slices in order are the whole group. Stage 3:
  one vector a sub-group; a parameter of n elements takes ceil(n / ranks) elements of every rank's vector.
- `mp_rank_00_model_states.pt` (stages 0-2) or one file a rank (stage 3): names and shapes in the order of the
  vectors, frozen parameters, buffers, and which names share one tensor (said by rank 0 alone).
"""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from zerotune.checkpointing.same_run import STAGE12_VECTORS, RankStates, read_rank_states
from zerotune.checkpointing.torch_archive import ITEM_BYTES, StoredTensor
from zerotune.checkpointing.weights import Piece, SourceTensor
from zerotune.errors import UsageError


@dataclass
class ZeroCheckpoint:
    """Everything needed to write the weights.

    Attributes:
        folder: where the ranks' files lie.
        stage: ZeRO stage 0-3.
        world_size: data-parallel ranks.
        tensors: name -> weight or buffer, each stored tensor once.
        shared: name -> the name in `tensors` that holds the same tensor.
        buffers: names in `tensors` that are buffers.
        step: optimizer steps done, None if unknown.
        deepspeed_version: of the writer, None if unknown.
    """

    folder: Path
    stage: int
    world_size: int
    tensors: dict[str, SourceTensor] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    buffers: set[str] = field(default_factory=set)
    step: int | None = None
    deepspeed_version: str | None = None


def read_zero_checkpoint(folder: Path) -> ZeroCheckpoint:
    """Index the ranks' files in `folder` (the one that holds `*_model_states.pt`); reads no weights.

    Raises:
        UsageError: a rank's file is missing, truncated, of another run, or of a layout that cannot be exported.
    """
    return index_weights(read_rank_states(folder))


def index_weights(states: RankStates) -> ZeroCheckpoint:
    """Where the weights lie in files whose trees are read already; raises as `read_zero_checkpoint`."""
    first = states.models[0]
    checkpoint = ZeroCheckpoint(
        folder=states.files.folder,
        stage=states.stage,
        world_size=states.world_size,
        step=first.get("global_steps"),
        deepspeed_version=first.get("ds_version"),
    )
    _add_buffers(checkpoint, first)
    _add_frozen(checkpoint, states.models)
    if states.stage:
        masters = "fp32_flat_groups" if states.stage == 3 else STAGE12_VECTORS
        checkpoint.tensors.update(by_name(states, [optimizer[masters] for optimizer in states.optimizers]))
    _add_shared(checkpoint, first)
    return checkpoint


def by_name(states: RankStates, vectors: list[list[StoredTensor]]) -> dict[str, SourceTensor]:
    """Cut flat vectors, laid out as the fp32 masters are, into tensors of the parameters' shapes.

    Args:
        vectors: of every rank, one a parameter group (stages 1 and 2) or sub-group (stage 3).
    """
    return (_stage3 if states.stage == 3 else _stage12)(states, vectors)


def _whole(name: str, stored: StoredTensor, shape=None) -> SourceTensor:
    if not stored.contiguous:
        return SourceTensor(name, stored.shape, (), strided=stored)
    piece = Piece(stored.path, stored.dtype, stored.offset, stored.num_elements)
    return SourceTensor(name, tuple(shape or stored.shape), (piece,) if stored.num_elements else ())


def _add_buffers(checkpoint: ZeroCheckpoint, state: dict) -> None:
    for name in state["buffer_names"]:
        if name in state["module"]:
            checkpoint.tensors[name] = _whole(name, state["module"][name])
            checkpoint.buffers.add(name)


def _add_frozen(checkpoint: ZeroCheckpoint, states: list[dict]) -> None:
    """Weights that the optimizer does not own. Stages 0 and 1 keep them only in `module`, in the compute precision;
    zero_to_fp32 leaves those out (deepspeed/runtime/engine.py: _save_checkpoint saves fragments from stage 2 on)."""
    shapes = states[0].get("frozen_param_shapes")
    if checkpoint.stage == 3:
        for name, shape in (shapes or {}).items():
            fragments = [state["frozen_param_fragments"][name] for state in states]
            ranks = [[Run(fragment, 0, fragment.num_elements)] for fragment in fragments]
            checkpoint.tensors[name] = _joined(name, shape, ranks)
        return
    if shapes:
        fragments = states[0]["frozen_param_fragments"]
        checkpoint.tensors.update({name: _whole(name, fragments[name], shape) for name, shape in shapes.items()})
        return
    optimized = {name for group in states[0].get("param_shapes") or [] for name in group}
    aliases = states[0].get("shared_params") or {}
    stored_once = {}
    for name, stored in states[0]["module"].items():
        if name in optimized or name in aliases or name in checkpoint.buffers or not isinstance(stored, StoredTensor):
            continue
        first = stored_once.setdefault(stored, name)  # torch.save writes a storage that tensors share once
        if first == name or not stored.num_elements:
            checkpoint.tensors[name] = _whole(name, stored)
        else:
            checkpoint.shared[name] = first


@dataclass(frozen=True)
class Run:
    """Elements [first, last) of a flat stored vector."""

    vector: StoredTensor
    first: int
    last: int


def _joined(name: str, shape, ranks: list[list[Run]]) -> SourceTensor:
    """The ranks' runs, cut where the padding of the last ones begins."""
    left = math.prod(shape)
    pieces = []
    for run in (run for runs in ranks for run in runs):
        take = min(run.last - run.first, left)
        if take > 0:
            offset = run.vector.offset + run.first * ITEM_BYTES[run.vector.dtype]
            pieces.append(Piece(run.vector.path, run.vector.dtype, offset, take))
            left -= take
    if left:
        raise UsageError(
            f"{name}: the ranks' files hold {left:,} elements too few for its shape {tuple(shape)}. "
            "Weights offloaded to NVMe are not inside the checkpoint; otherwise a file is damaged."
        )
    return SourceTensor(name, tuple(shape), tuple(pieces))


def _runs(vectors: list[StoredTensor], ends: list[int], first: int, last: int) -> list[Run]:
    """Elements [first, last) of the vectors' concatenation. `ends` are their cumulative lengths."""
    runs = []
    index = bisect_right(ends, first)
    while first < last and index < len(vectors):
        start = ends[index] - vectors[index].num_elements
        stop = min(last, ends[index])
        if stop > first:
            runs.append(Run(vectors[index], first - start, stop - start))
            first = stop
        index += 1
    return runs


def _stage12(states: RankStates, vectors: list[list[StoredTensor]]) -> dict[str, SourceTensor]:
    found = {}
    paddings = states.optimizers[0].get("param_alignment_paddings")
    for index, shapes in enumerate(states.models[0]["param_shapes"]):
        slices = [rank[index] for rank in vectors]
        ends = list(accumulate(vector.num_elements for vector in slices))
        first = 0
        for position, (name, shape) in enumerate(shapes.items()):
            last = first + math.prod(shape)
            found[name] = _joined(name, shape, [_runs(slices, ends, first, last)])
            first = last + (paddings[index][position] if paddings else 0)
        _check_consumed(states, first, ends[-1], 2 * states.world_size)
    return found


def _stage3(states: RankStates, vectors: list[list[StoredTensor]]) -> dict[str, SourceTensor]:
    found = {}
    ends = [list(accumulate(vector.num_elements for vector in rank)) for rank in vectors]
    first = 0
    for name, shape in ((name, shape) for group in states.models[0]["param_shapes"] for name, shape in group.items()):
        last = first + math.ceil(math.prod(shape) / states.world_size)
        ranks = [_runs(rank, end, first, last) for rank, end in zip(vectors, ends, strict=True)]
        found[name] = _joined(name, shape, ranks)
        first = last
    for end in ends:
        _check_consumed(states, first, end[-1], 1)
    return found


def _check_consumed(states: RankStates, used: int, available: int, alignment: int) -> None:
    if math.ceil(used / alignment) != math.ceil(available / alignment):
        raise UsageError(
            f"{states.files.folder}: the names and shapes account for {used:,} elements but the optimizer files hold "
            f"{available:,}. Files of two different models are mixed."
        )


def _add_shared(checkpoint: ZeroCheckpoint, state: dict) -> None:
    for alias, kept in (state.get("shared_params") or {}).items():
        if kept in checkpoint.tensors:
            checkpoint.tensors.pop(alias, None)
            checkpoint.shared[alias] = kept
