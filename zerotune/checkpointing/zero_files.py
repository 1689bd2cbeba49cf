"""Which files of a DeepSpeed checkpoint folder belong to which rank, and which are absent."""

import re
from dataclasses import dataclass
from pathlib import Path

from zerotune.errors import UsageError

OPTIMIZER_FILE = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
STAGE3_MODEL_FILE = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
MODEL_FILE = re.compile(r"mp_rank_(\d+)_model_states\.pt")


@dataclass(frozen=True)
class RankFiles:
    """Paths in rank order. `model` has one entry below stage 3. `optimizer` is empty for ZeRO stage 0."""

    folder: Path
    model: list[Path]
    optimizer: list[Path]

    def count_problems(self, world_size: int) -> list[str]:
        """What is wrong with the set of files of a run on `world_size` ranks, one line each."""
        problems = _absent(self.optimizer, OPTIMIZER_FILE, world_size)
        if STAGE3_MODEL_FILE.fullmatch(self.model[0].name):
            problems += _absent(self.model, STAGE3_MODEL_FILE, world_size)
        return problems


def find_rank_files(folder: Path) -> RankFiles:
    """Sort the files of `folder` (such as checkpoint-40/global_step40) by rank.

    Raises:
        UsageError: no model states file, or a layout of tensor, pipeline or expert parallelism.
    """
    names = sorted(entry.name for entry in folder.iterdir())
    _refuse_other_parallelism(folder, names)
    model = _by_rank(folder, names, STAGE3_MODEL_FILE) or _by_rank(folder, names, MODEL_FILE)
    optimizer = _by_rank(folder, names, OPTIMIZER_FILE)
    if not model:
        raise UsageError(
            f"{folder}: {'the model states file (mp_rank_00_model_states.pt) is missing' if optimizer else 'no'}"
            f"{'' if optimizer else ' DeepSpeed checkpoint: it holds ' + (', '.join(names[:6]) or 'nothing')}."
        )
    if STAGE3_MODEL_FILE.fullmatch(model[0].name) and not optimizer:
        raise UsageError(f"{folder}: every optimizer file (*_optim_states.pt) is missing; the weights are in them.")
    return RankFiles(folder, model, optimizer)


def _by_rank(folder: Path, names: list[str], pattern: re.Pattern) -> list[Path]:
    found = [(int(match[1]), folder / name) for name in names if (match := pattern.fullmatch(name))]
    return [path for _, path in sorted(found)]


def _absent(paths: list[Path], pattern: re.Pattern, world_size: int) -> list[str]:
    ranks = [int(pattern.fullmatch(path.name)[1]) for path in paths]
    sample = paths[0].name
    problems = [
        f"missing: {re.sub(r'pp_rank_[0-9]+', f'pp_rank_{rank}', sample)} (the run had {world_size} ranks)"
        for rank in range(world_size)
        if rank not in ranks
    ]
    for path, rank in zip(paths, ranks, strict=True):
        if rank >= world_size:
            problems.append(f"files of two runs are mixed: {path.name}, but the run had {world_size} ranks")
        elif ranks.count(rank) > 1:
            problems.append(f"files of two runs are mixed: rank {rank} is there twice, as {path.name}")
    return problems


def _refuse_other_parallelism(folder: Path, names: list[str]) -> None:
    patterns = (OPTIMIZER_FILE, STAGE3_MODEL_FILE)
    tensor_parallel = any((match := p.fullmatch(name)) and int(match[2]) for name in names for p in patterns)
    tensor_parallel |= any((match := MODEL_FILE.fullmatch(name)) and int(match[1]) for name in names)
    if tensor_parallel:
        raise UsageError(f"{folder}: written with tensor parallelism (mp_rank_01 exists), which cannot be exported.")
    if any(re.fullmatch(r"(expp_rank|layer|expert)_\d+.*\.pt", name) for name in names):
        raise UsageError(f"{folder}: holds pipeline or expert files (layer_*, expert_*), which cannot be exported.")
