"""Put a ZeRO checkpoint into an engine of any number of ranks, stage and offload."""

from __future__ import annotations

import torch

from zerotune.checkpointing.resharding import layout, matching
from zerotune.checkpointing.resharding.reading import fill
from zerotune.checkpointing.resharding.stored import Stored
from zerotune.checkpointing.weight_reader import RangeReader

# How an optimizer computes, not what: they belong to the machine.
IMPLEMENTATION = {"params", "step", "foreach", "fused", "capturable", "differentiable", "name"}


def restore(engine, stored: Stored) -> None:
    """Masters, optimizer states, 16-bit weights, frozen parameters, buffers, scheduler, loss scaler and counters.

    Every rank reads its own elements; a few MiB beside them are in memory. All ranks call it.

    Raises:
        UsageError: an engine that keeps its states elsewhere, or in fewer bits.
    """
    reader = RangeReader()
    try:
        if layout.stage_of(engine) == 3:
            engine.optimizer.checkpoint_event_prologue()
        parts = layout.parts(engine)
        for part in parts:
            _fill_part(reader, stored, engine.optimizer.optimizer, part)
        _restore_groups(stored, engine.optimizer.optimizer, parts)
        _restore_rest(reader, stored, engine)
    finally:
        reader.close()
    if layout.stage_of(engine) == 3:
        _weights_from_masters(engine.optimizer)
        engine.optimizer.checkpoint_event_epilogue()
    else:
        engine.optimizer.update_lp_params()
        engine.optimizer._link_all_hp_params()
    restore_counters(stored, engine)


def _fill_part(reader: RangeReader, stored: Stored, optimizer, part: layout.Part) -> None:
    with torch.no_grad():
        _fill_vector(reader, stored, "fp32", part.vector, part, stored.weights.tensors)
        state = optimizer.state[part.vector]
        for key, sources in stored.tensors.items():
            if not torch.is_tensor(state.get(key)) or state[key].shape != part.vector.shape:
                state[key] = torch.zeros_like(part.vector, dtype=_state_dtype(optimizer, part.vector))
            _fill_vector(reader, stored, key, state[key], part, sources)
    group, scalars = optimizer.param_groups[part.group], stored.scalars[part.name]
    state.update({key: counted(optimizer, group, part.vector, value) for key, value in scalars.items()})


def _fill_vector(reader, stored: Stored, key: str, vector: torch.Tensor, part: layout.Part, sources: dict) -> None:
    vector.zero_()  # padding too
    for span in part.spans:
        if span.length:
            source = sources[span.name]
            matching.require_no_rounding(stored, key, span.name, source.dtype, vector.dtype)
            fill(reader, vector[span.at : span.at + span.length], source, span.first)


def _state_dtype(optimizer, vector: torch.Tensor) -> torch.dtype:
    """DeepSpeedCPUAdam keeps fp32 moments beside masters of fewer bits, unless told otherwise."""
    return torch.float32 if getattr(optimizer, "fp32_optimizer_states", False) else vector.dtype


def counted(optimizer, group: dict, vector: torch.Tensor, value):
    """A step count as the optimizer keeps it: torch's in a tensor, on the GPU where a fused kernel reads it there."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if type(optimizer).__module__.startswith("torch."):
        on_device = group.get("fused") or group.get("capturable")
        return torch.tensor(float(value), dtype=torch.float32, device=vector.device if on_device else "cpu")
    return int(value) if float(value).is_integer() else value


def _restore_groups(stored: Stored, optimizer, parts: list[layout.Part]) -> None:
    """Learning rate and the rest of each group, and the group's own step count where it keeps one (FusedAdam)."""
    for name, group in {part.name: optimizer.param_groups[part.group] for part in parts}.items():
        saved = stored.hyperparameters[name]
        group.update({key: saved[key] for key in set(saved) & (set(group) | {"initial_lr"}) - IMPLEMENTATION})
        step = saved.get("step", stored.scalars[name].get("step"))
        if step is not None and type(optimizer).__name__ == "FusedAdam":
            group["step"] = int(step)


def _restore_rest(reader: RangeReader, stored: Stored, engine) -> None:
    """Frozen parameters and buffers."""
    frozen = layout.frozen(engine)
    with torch.no_grad():
        if matching.require_same_frozen(stored, engine, [span.name for _, span in frozen]):
            for values, span in frozen:
                fill(reader, values[: span.length], stored.weights.tensors[span.name], span.first)
        for name, buffer in engine.module.named_buffers():
            if name in stored.weights.buffers:
                values = torch.empty(buffer.numel(), dtype=buffer.dtype)
                fill(reader, values, stored.weights.tensors[name], 0)
                buffer.copy_(values.view(buffer.shape))


def _weights_from_masters(optimizer) -> None:
    for masters, weights, partitions in zip(
        optimizer.fp32_partitioned_groups_flat,
        optimizer.fp16_partitioned_groups_flat,
        optimizer.fp16_partitioned_groups,
        strict=True,
    ):
        weights.data.copy_(masters.data)
        for partition, values in zip(partitions, optimizer.unflatten(weights, partitions), strict=True):
            partition.data = values.data


def restore_counters(stored: Stored, engine) -> None:
    """Loss scaler, schedule, steps and samples."""
    scaler = vars(engine.optimizer.loss_scaler)
    if set(scaler) == set(stored.loss_scaler):  # else static became dynamic, or the other way round
        scaler.update({key: value for key, value in stored.loss_scaler.items() if isinstance(value, int | float)})
    if engine.lr_scheduler is not None and stored.engine["lr_scheduler"] is not None:
        engine.lr_scheduler.load_state_dict(stored.engine["lr_scheduler"])
    engine.global_steps = stored.engine["global_steps"]
    engine.global_samples = stored.engine["global_samples"] or engine.global_steps * engine.train_batch_size()
    engine.skipped_steps = stored.engine["skipped_steps"] or 0
    engine.loaded_checkpoint_dp_world_size = stored.weights.world_size
