"""Which checkpoint a run continues from, and whether there is anything left to train."""

from __future__ import annotations

import json
from pathlib import Path

from zerotune.errors import UsageError
from zerotune.training import ranks


def point(wanted: str, run: Path, training: dict) -> Path:
    """The complete checkpoint to continue from.

    Args:
        wanted: the value of --resume_from_checkpoint.
        run: the run's output folder.
        training: the values of TrainingArguments.

    Raises:
        UsageError: no complete checkpoint, another number of ranks wrote it, or it is at the end of the training.
    """
    from zerotune.checkpointing import completion, saving

    found, passed_over = saving.find(wanted, run)
    for line in passed_over:
        ranks.say(f"resume: passed over {line}")
    wrote = completion.world_size_of(found)
    if wrote != ranks.world_size():
        raise UsageError(
            f"--resume_from_checkpoint {found}: {wrote} rank(s) wrote it and this job has {ranks.world_size()}. "
            f"DeepSpeed's shards fit the same number only: start {wrote}."
        )
    refuse_finished(found, training["max_steps"], training["num_train_epochs"])
    ranks.say(f"resume: {found}")
    return found


def how_to_continue(step: int, run: Path) -> str:
    """What to say when a run was stopped at `step`."""
    from zerotune.checkpointing import saving

    complete = saving.complete(run)
    if not complete:
        return f"stopped at step {step}; no checkpoint was saved to continue from"
    last = complete[-1].name
    return f"stopped at step {step}; continue with --output_dir {run} --resume_from_checkpoint last ({last})"


def refuse_finished(checkpoint: Path, max_steps: int, num_train_epochs: float) -> None:
    """The Trainer would train one step more, and the export would replace the finished model.

    Raises:
        UsageError: the checkpoint is at or past the last step (`max_steps` > 0) or the last epoch.
    """
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    if max_steps > 0:
        finished, flag = state["global_step"] >= max_steps, f"--max_steps {max_steps}"
    else:
        finished, flag = (state.get("epoch") or 0) >= num_train_epochs, f"--num_train_epochs {num_train_epochs:g}"
    if finished:
        raise UsageError(
            f"--resume_from_checkpoint: {checkpoint} is already at or past {flag}; raise it to train on. "
            f"The checkpoint as a model folder: zerotune-export {checkpoint} MODEL_FOLDER"
        )
