"""Do the ranks' files belong to one run, and to a kind of run that can be exported?"""

from dataclasses import dataclass
from pathlib import Path

from zerotune.checkpointing.torch_archive import read_archive
from zerotune.checkpointing.zero_files import RankFiles, find_rank_files
from zerotune.errors import UsageError

STAGE12_VECTORS = "single_partition_of_fp32_groups"


@dataclass(frozen=True)
class RankStates:
    """The object trees of the ranks' files, in rank order, with places instead of tensors.

    Attributes:
        models: of the model states files; one below stage 3.
        optimizers: of the optimizer files; none at stage 0.
    """

    files: RankFiles
    stage: int
    models: list[dict]
    optimizers: list[dict]

    @property
    def world_size(self) -> int:
        return len(self.optimizers) or int(self.models[0].get("dp_world_size") or 1)


def read_rank_states(folder: Path) -> RankStates:
    """Read the trees of every rank's files in `folder`, the one that holds `*_model_states.pt`.

    Raises:
        UsageError: a rank's file is missing, truncated, of another run, or of a layout that cannot be read.
    """
    files = find_rank_files(folder)
    models = [read_archive(path) for path in files.model]
    optimizers = [read_archive(path).get("optimizer_state_dict") for path in files.optimizer]
    return RankStates(files, checked_stage(files, models, optimizers), models, optimizers)


def checked_stage(files: RankFiles, states: list[dict], optimizers: list[dict]) -> int:
    """The ZeRO stage, after every file agreed about ranks, stage and step."""
    for path, state in zip(files.model, states, strict=True):
        if not isinstance(state, dict) or "module" not in state or "buffer_names" not in state:
            raise UsageError(f"{path}: not a model states file of DeepSpeed.")
    if not optimizers:
        return 0
    facts = []
    for path, state in zip(files.optimizer, optimizers, strict=True):
        if not isinstance(state, dict) or not {"zero_stage", STAGE12_VECTORS} & set(state):
            raise UsageError(f"{path}: not an optimizer states file of DeepSpeed ZeRO.")
        facts.append((path, "ranks", _largest(state["partition_count"])))
        facts.append((path, "ZeRO stage", _stage(state)))
    for path, state in zip(files.model, states, strict=True):
        facts.append((path, "ranks", state.get("dp_world_size")))
        facts.append((path, "step", state.get("global_steps")))
    problems = _disagreements(facts) + files.count_problems(_largest(optimizers[0]["partition_count"]))
    if problems:
        raise UsageError(f"{files.folder}: the files do not make one whole checkpoint:\n  " + "\n  ".join(problems))
    _refuse_expert_partitions(files, states, optimizers)
    return _stage(optimizers[0])


def _disagreements(facts) -> list[str]:
    problems = []
    for what in dict.fromkeys(what for _, what, _ in facts):
        named = [(path, value) for path, fact, value in facts if fact == what and value is not None]
        path, value = named[0] if named else (None, None)
        other = next(((p, v) for p, v in named if v != value), None)
        if other:
            problems.append(
                f"files of two runs are mixed: {path.name} was written with {what} {value}, "
                f"{other[0].name} with {what} {other[1]}"
            )
    return problems


def _refuse_expert_partitions(files: RankFiles, states, optimizers) -> None:
    if any("ds_zero_partition_groups" in state for state in optimizers) or states[0].get("ds_autoep_layers"):
        raise UsageError(
            f"{files.folder}: expert parameters are partitioned over groups of ranks of their own (AutoEP); "
            "convert with DeepSpeed's ds_to_universal.py instead."
        )


def _largest(count) -> int:
    return max(count) if isinstance(count, (list, tuple)) else int(count)


def _stage(state: dict) -> int:
    """ZeroStageEnum(2), read as an Opaque with its arguments, or a plain int of an old version. BF16_Optimizer
    (stage 1 with fp32 gradient accumulation) writes none, and vectors as stage 1 does."""
    stage = state.get("zero_stage", 1)
    return int(stage.args[0]) if hasattr(stage, "args") else int(stage)
