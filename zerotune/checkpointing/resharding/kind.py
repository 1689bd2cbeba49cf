"""In how many parts, and where, a run keeps its states: what a checkpoint was, and what it becomes."""

from __future__ import annotations

from dataclasses import dataclass

from zerotune.checkpointing.same_run import RankStates

NVME = "nvme"


@dataclass(frozen=True)
class Kind:
    """How a run is cut.

    Attributes:
        ranks: data-parallel ranks.
        stage: ZeRO stage 0-3.
        optimizer, parameters: where they are kept: "none" for the training device, "cpu" or "nvme".
        precision: "bf16", "fp16" or "fp32".
        masters: "fp32", or `precision` where the optimizer keeps no fp32 weights.
    """

    ranks: int
    stage: int
    optimizer: str
    parameters: str
    precision: str
    masters: str

    def __str__(self) -> str:
        places = {"optimizer": self.optimizer, "parameters": self.parameters}
        away = [
            f"{what} on {where.upper() if where == 'cpu' else 'NVMe'}"
            for what, where in places.items()
            if where != "none"
        ]
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        return f"{ranks}, stage {self.stage}, {', '.join(away) or 'no offload'}, {self.precision}"


def of_checkpoint(states: RankStates) -> Kind:
    """The kind of run that wrote the ranks' files."""
    return _kind(states.models[0].get("ds_config") or {}, states.world_size, states.stage)


def of_engine(engine) -> Kind:
    """The kind of run that a DeepSpeed engine is in."""
    return _kind(engine.config, engine.dp_world_size, engine.zero_optimization_stage())


def _kind(config: dict, ranks: int, stage: int) -> Kind:
    zero = config.get("zero_optimization") or {}
    precision = next((name for name in ("bf16", "fp16") if (config.get(name) or {}).get("enabled") is True), "fp32")
    low = (config.get(precision) or {}).get(f"{precision}_master_weights_and_grads") is True
    optimizer, parameters = (_device(zero, f"offload_{what}", stage) for what in ("optimizer", "param"))
    return Kind(ranks, stage, optimizer, parameters, precision, precision if low else "fp32")


def _device(zero: dict, key: str, stage: int) -> str:
    if key == "offload_param" and stage < 3:  # the engine ignores it
        return "none"
    return (zero.get(key) or {}).get("device") or "none"
