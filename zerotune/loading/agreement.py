"""All ranks go on together, or none does: a rank that fails alone leaves the others in a collective until it times out."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator

import torch.distributed as dist

from zerotune.errors import UsageError


@contextlib.contextmanager
def together() -> Iterator[list]:
    """Run the block on every rank; afterwards all of them must have got through, and have seen the same.

    Yields:
        A list; what a rank puts there (by its repr) must be what the others put there.

    Raises:
        UsageError: some rank raised one, or the ranks saw different things. On every rank.
    """
    seen: list = []
    problem = None
    try:
        yield seen
    except UsageError as error:
        if not _are_many():
            raise
        problem = str(error)
    if not _are_many():
        return
    answers = [None] * dist.get_world_size()
    dist.all_gather_object(answers, (problem, hashlib.sha256(repr(seen).encode()).hexdigest()))
    for rank, (said, _) in enumerate(answers):
        if said is not None:
            alone = sum(one is not None for one, _ in answers) < len(answers)
            raise UsageError(f"{said} (seen by rank {rank})" if alone else said)
    different = [rank for rank, (_, digest) in enumerate(answers) if digest != answers[0][1]]
    if different:
        raise UsageError(
            f"rank 0 and rank(s) {', '.join(map(str, different[:8]))} see different weight files under the same name. "
            "Copy one and the same model folder to every node."
        )


def all_true(here: bool) -> bool:
    """Is it so on every rank?"""
    if not _are_many():
        return here
    answers = [None] * dist.get_world_size()
    dist.all_gather_object(answers, here)
    return all(answers)


def my_share() -> tuple[int, int]:
    """This rank and the number of ranks."""
    return (dist.get_rank(), dist.get_world_size()) if _are_many() else (0, 1)


def _are_many() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
