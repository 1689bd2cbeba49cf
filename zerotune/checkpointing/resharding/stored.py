"""What a ZeRO checkpoint holds beside the weights, by parameter name: moments, step counts, hyperparameters, counters.

The optimizer's tensors lie in the ranks' files as the fp32 masters do (deepspeed 0.19.8, zero/stage_1_and_2.py and
stage3.py, `state_dict`), so `zero_shards.by_name` cuts them the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from zerotune.checkpointing.element_types import NUMPY_TYPES
from zerotune.checkpointing.same_run import STAGE12_VECTORS, RankStates
from zerotune.checkpointing.torch_archive import ITEM_BYTES, Opaque, StoredTensor
from zerotune.checkpointing.weight_reader import RangeReader
from zerotune.checkpointing.weights import SourceTensor
from zerotune.checkpointing.zero_shards import ZeroCheckpoint, by_name, index_weights
from zerotune.errors import UsageError


@dataclass(frozen=True)
class Stored:
    """A checkpoint, indexed; no tensor is read.

    Attributes:
        weights: masters, frozen parameters and buffers.
        masters: names of the parameters that the optimizer owns, in the order of the files.
        tensors: state key (such as "exp_avg") -> parameter name -> elements.
        scalars: parameter name -> state key (such as "step") -> number.
        hyperparameters: parameter name -> its group's settings (lr, betas, ...).
        loss_scaler: attributes of DeepSpeed's loss scaler.
        engine: global_steps, global_samples, skipped_steps and lr_scheduler of the engine.
    """

    weights: ZeroCheckpoint
    masters: list[str]
    tensors: dict[str, dict[str, SourceTensor]] = field(repr=False)
    scalars: dict[str, dict]
    hyperparameters: dict[str, dict]
    loss_scaler: dict
    engine: dict


def zero_folder(checkpoint: Path) -> Path:
    """The folder with the ranks' files: the one that `latest` names.

    Raises:
        UsageError: there is none.
    """
    from zerotune.checkpointing.checkpoint_folder import what_is_there

    latest = checkpoint / "latest"
    if not latest.is_file():
        raise UsageError(what_is_there(checkpoint))
    folder = checkpoint / latest.read_text().strip()
    if not folder.is_dir():
        raise UsageError(f"{checkpoint}: the file `latest` names {folder.name}, which is not there.")
    return folder


def index(states: RankStates) -> Stored:
    """Where everything lies.

    Raises:
        UsageError: the files do not belong together, or hold no optimizer that can be read here.
    """
    _same_shapes(states)
    vectors = [_states_of_vectors(states, rank) for rank in range(states.world_size)]
    scalars = _scalars(states, vectors)
    weights, first = index_weights(states), states.models[0]
    return Stored(
        weights=weights,
        masters=[name for group in first["param_shapes"] for name in group],
        tensors=_tensors(states, vectors),
        scalars=_for_each_name(states, scalars),
        hyperparameters=_for_each_name(states, _group_settings(states)),
        loss_scaler=_attributes(states.optimizers[0].get("loss_scaler")),
        engine={key: first.get(key) for key in ("global_steps", "global_samples", "skipped_steps", "lr_scheduler")},
    )


def _base(states: RankStates, rank: int) -> dict:
    """The state dict of the optimizer that DeepSpeed wraps."""
    base = states.optimizers[rank]["optimizer_state_dict" if states.stage == 3 else "base_optimizer_state"]
    if not isinstance(base, dict):
        raise UsageError(
            f"{states.files.optimizer[rank]}: written with zero_optimization.elastic_checkpoint, which is read by "
            "DeepSpeed alone: resume with the ranks and the config that wrote it."
        )
    return base


def _states_of_vectors(states: RankStates, rank: int) -> list[dict]:
    """The optimizer's state of each flat vector, in their order; empty before the first step."""
    base = _base(states, rank)
    indices = [index for group in base["param_groups"] for index in group["params"]]
    return [base["state"].get(index, {}) for index in indices]


def _tensors(states: RankStates, vectors: list[list[dict]]) -> dict[str, dict[str, SourceTensor]]:
    _one_number_a_weight(states, vectors[0])
    keys = dict.fromkeys(key for state in vectors[0] for key, value in state.items() if _is_vector(value))
    try:
        return {
            key: by_name(states, [[state[key] for state in rank] for rank in vectors]) for key in keys
        }  # fmt: skip
    except KeyError as error:
        raise UsageError(
            f"{states.files.folder}: the optimizer state {error} is there for some parameters or ranks only. "
            "Files of two runs are mixed."
        ) from None


def _one_number_a_weight(states: RankStates, of_vectors: list[dict]) -> None:
    """8-bit optimizers keep scales and tables too, which belong to blocks of a rank's vector."""
    optimizer = states.optimizers[0]
    masters = optimizer["fp32_flat_groups" if states.stage == 3 else STAGE12_VECTORS]
    paddings = optimizer.get("group_paddings") or [0] * len(masters)
    for state, master, padding in zip(of_vectors, masters, paddings, strict=False):
        for key, value in state.items():
            if _is_vector(value) and value.num_elements != master.num_elements + padding:
                raise UsageError(
                    f"{states.files.folder}: the optimizer's state {key} holds {value.num_elements:,} numbers for "
                    f"{master.num_elements:,} weights and cannot be cut anew: resume with the ranks, the stage and the "
                    "offload that wrote it."
                )


def _is_vector(value) -> bool:
    return isinstance(value, StoredTensor) and len(value.shape) > 0


def _scalars(states: RankStates, vectors: list[list[dict]]) -> list[dict]:
    """What is no vector, of each flat vector; every rank must agree."""
    reader = RangeReader()
    try:
        ranks = [
            [{key: _number(reader, value) for key, value in state.items() if not _is_vector(value)} for state in rank]
            for rank in vectors
        ]
    finally:
        reader.close()
    for rank, found in enumerate(ranks):
        if found != ranks[0]:
            one, other = states.files.optimizer[0].name, states.files.optimizer[rank].name
            raise UsageError(
                f"{states.files.folder}: files of two runs are mixed: {one} and {other} disagree about the optimizer's "
                f"steps ({_first_difference(ranks[0], found)})."
            )
    return ranks[0]


def _first_difference(one: list[dict], other: list[dict]) -> str:
    return next((f"{a} and {b}" for a, b in zip(one, other, strict=False) if a != b), f"{len(one)} and {len(other)}")


def _number(reader: RangeReader, value):
    """A Python number from a tensor without dimensions; anything else as it is."""
    if not isinstance(value, StoredTensor) or value.dtype not in ("F32", "F64"):
        return value
    raw = reader.read(value.path, value.offset, ITEM_BYTES[value.dtype])
    return float(np.frombuffer(raw, NUMPY_TYPES[value.dtype])[0])


def _group_settings(states: RankStates) -> list[dict]:
    """The hyperparameters of each flat vector's group."""
    groups = _base(states, 0)["param_groups"]
    return [
        {key: value for key, value in group.items() if key != "params"} for group in groups for _ in group["params"]
    ]


def _for_each_name(states: RankStates, of_vectors: list[dict]) -> dict[str, dict]:
    """`param_shapes` has one entry a flat vector: a parameter group (stages 1, 2) or a sub-group (stage 3)."""
    shapes = states.models[0]["param_shapes"]
    return {name: of_vectors[index] for index, group in enumerate(shapes) for name in group}


def _attributes(scaler) -> dict:
    return scaler.state if isinstance(scaler, Opaque) and isinstance(scaler.state, dict) else {}


def _same_shapes(states: RankStates) -> None:
    for path, state in zip(states.files.model, states.models, strict=True):
        if state["param_shapes"] != states.models[0]["param_shapes"]:
            raise UsageError(
                f"{states.files.folder}: files of two runs are mixed: {path.name} and {states.files.model[0].name} "
                "name different parameters or shapes."
            )
