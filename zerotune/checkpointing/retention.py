"""Which checkpoints of a run stay."""

from __future__ import annotations

from pathlib import Path

from zerotune.checkpointing.completion import MARKER
from zerotune.checkpointing.saving import checkpoints, step_of


def superfluous(
    run: Path, newest: Path, limit: int | None, every: int | None = None, best: Path | None = None
) -> list[Path]:
    """Folders that go once `newest` is complete.

    Args:
        limit: complete checkpoints that stay, the newest ones; None for all (then nothing goes).
        every: steps divisible by it stay too, for ever.
        best: stays too.

    Returns:
        The older complete checkpoints beyond `limit`, and what is left of saves that were cut short before `newest`.
    """
    if limit is None:
        return []
    older = [folder for folder in checkpoints(run) if step_of(folder) < step_of(newest)]
    finished = [folder for folder in older if (folder / MARKER).is_file()]
    spared = set(finished[max(0, len(finished) - limit + 1) :])
    return [
        folder
        for folder in older
        if folder not in spared
        and not (folder in finished and (folder == best or (every and step_of(folder) % every == 0)))
    ]
