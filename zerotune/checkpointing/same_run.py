"""Do the ranks' files belong to one run, and to a kind of run that can be exported?"""

from zerotune.checkpointing.zero_files import RankFiles
from zerotune.errors import UsageError

STAGE12_VECTORS = "single_partition_of_fp32_groups"


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
