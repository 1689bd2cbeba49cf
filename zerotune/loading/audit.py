"""After loading: do the keys fit, does every rank hold its share, do values equal the files?"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterable, Sequence

import torch
from deepspeed import comm
from transformers.utils.loading_report import update_key_name

from zerotune.errors import UsageError
from zerotune.loading.extents import Run
from zerotune.loading.filling import Goal
from zerotune.loading.lazy_tensor import DTYPES
from zerotune.loading.weight_files import STORED_BYTES

SAMPLED_WEIGHTS, SAMPLED_ELEMENTS = 64, 4


def require_keys(info, where: str, allow_keys: Sequence[str] = ()) -> None:
    """Refuse files that do not hold the model.

    Args:
        info: transformers' loading info.
        where: the folder, for the message.
        allow_keys: regular expressions for keys that may be absent or too many.

    Raises:
        UsageError: missing, unexpected and mis-shaped keys, all of them named at once.
    """
    for pattern in allow_keys:
        _require_regex(pattern)
    missing = _not_allowed(info.missing_keys, allow_keys)
    unexpected = _not_allowed(info.unexpected_keys, allow_keys)
    shapes = {key: f"{list(found)} in the files, {list(wanted)} in the model" for key, found, wanted in
              info.mismatched_keys}  # fmt: skip
    if not (missing or unexpected or shapes):
        return
    lines = [f"{where}: the weight files do not fit the model."]
    if shapes:
        lines.append(f"  other shape ({len(shapes)}):")
        lines += [f"    {key}: {text}" for key, text in sorted(update_key_name(shapes).items())]
    for title, keys in (("not in the files", missing), ("not in the model", unexpected)):
        if keys:
            lines.append(f"  {title} ({len(keys)}):")
            lines += [f"    {key}" for key in sorted(update_key_name(keys))]
    lines.append("Is config.json the one of these files, and is it the right model class?")
    if missing or unexpected:
        lines.append(
            "If so, allow_keys (--allow_keys) takes a regular expression of keys that may be absent, and are then "
            "initialised, or may be too many."
        )
    raise UsageError("\n".join(lines))


def _require_regex(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"allow_keys {pattern!r}: no regular expression: {error}.") from None


def _not_allowed(keys: Iterable[str], patterns: Sequence[str]) -> set[str]:
    return {key for key in keys if not any(re.search(pattern, key) for pattern in patterns)}


def require_shares(model: torch.nn.Module) -> None:
    """Every parameter must be partitioned: ceil(n / ranks) elements here, nothing more.

    Raises:
        RuntimeError: one is not, which is a bug.
    """
    for name, param in model.named_parameters():
        world = comm.get_world_size(group=param.ds_process_group)
        share = -(-param.ds_numel // world)
        if param.ds_tensor.ds_numel != share or param.numel() != 0:
            raise RuntimeError(
                f"{name}: {param.ds_numel} elements over {world} ranks are {share} each; here are "
                f"{param.ds_tensor.ds_numel} and {param.numel()} of the whole."
            )


def require_values(goals: Sequence[Goal], seed: int = 0) -> int:
    """Compare elements drawn at random with the files, read one by one.

    Returns:
        Number of elements compared.

    Raises:
        RuntimeError: one differs: the file changed meanwhile, or this is a bug.
    """
    draw = random.Random(seed)
    compared = 0
    plain = [goal for goal in goals if goal.weight.extent is not None]
    for goal in draw.sample(plain, min(SAMPLED_WEIGHTS, len(plain))):
        stop = min(goal.start + goal.tensor.numel(), goal.weight.numel())
        for _ in range(SAMPLED_ELEMENTS if stop > goal.start else 0):
            place = draw.randrange(goal.start, stop)
            (run,) = goal.weight.extent.runs(place, place + 1)
            expected = _element(run).to(goal.tensor.dtype)
            found = goal.tensor[place - goal.start].cpu()
            if not torch.equal(expected.nan_to_num(), found.nan_to_num()):
                raise RuntimeError(f"{run.stored.path}: element {place} of a weight is {expected}, loaded was {found}")
            compared += 1
    return compared


def _element(run: Run) -> torch.Tensor:
    item = STORED_BYTES[run.stored.dtype]
    with run.stored.path.open("rb", buffering=0) as file:
        data = bytearray(os.pread(file.fileno(), item, run.stored.offset + run.first * item))
    return torch.frombuffer(data, dtype=DTYPES[run.stored.dtype])[0]
