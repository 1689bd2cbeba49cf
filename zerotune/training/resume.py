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
        UsageError: no complete checkpoint, or it is at the end of the training.
    """
    from zerotune.checkpointing import saving
    from zerotune.checkpointing.completion import what_is_damaged

    gather = ranks.new_gather()

    def damaged(folder: Path) -> str | None:
        """Every rank reads its share of the files; all hear of the first that is wrong."""
        found = gather(what_is_damaged(folder, ranks.rank(), ranks.world_size()))
        return next((wrong for wrong in found if wrong), None)

    found, passed_over = saving.find(wanted, run, damaged)
    for line in passed_over:
        ranks.say(f"resume: passed over {line}")
    refuse_finished(found, training["max_steps"], training["num_train_epochs"])
    ranks.say(f"resume: {found}")
    return found


def keep_global_batch(checkpoint: Path, training: dict, explicit: set[str], config: dict) -> None:
    """Fit micro batch and accumulation in `training` to this job's ranks; refuse files that are no ZeRO checkpoint.

    Args:
        explicit: the flags that the user typed.
        config: the DeepSpeed config; a number there is as fixed as a flag.

    Raises:
        UsageError: damaged or mixed files, or a global batch that cannot be kept.
    """
    from zerotune.checkpointing.resharding.stored import zero_folder
    from zerotune.checkpointing.same_run import read_rank_states
    from zerotune.training import global_batch

    states = read_rank_states(zero_folder(checkpoint))
    wrote = states.models[0].get("ds_config") or {}
    sizes = [wrote.get(key) for key in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")]
    if training.get("ignore_data_skip") or not all(isinstance(size, int) for size in sizes):
        return
    was = global_batch.Batch(states.world_size, *sizes)
    names = {
        global_batch.MICRO: "train_micro_batch_size_per_gpu",
        global_batch.ACCUMULATION: "gradient_accumulation_steps",
    }
    fixed = {name for name, key in names.items() if name in explicit or isinstance(config.get(key), int)}
    now = global_batch.keep(was, ranks.world_size(), training, fixed)
    global_batch.refuse_other_order(was, now, training)
    if now != was:
        ranks.say(f"resume: global batch {was}; now {now}")


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
        UsageError: the checkpoint is at or past the last step (`max_steps` > 0) or the last epoch, or it isn't the
            Trainer's.
    """
    try:
        state = json.loads((checkpoint / "trainer_state.json").read_text())
    except (OSError, ValueError):
        raise UsageError(
            f"--resume_from_checkpoint {checkpoint}: trainer_state.json is missing or damaged, so the step to go on "
            "from is unknown. Name a checkpoint-N folder that train.py wrote."
        ) from None
    if max_steps > 0:
        finished, flag = state["global_step"] >= max_steps, f"--max_steps {max_steps}"
    else:
        finished, flag = (state.get("epoch") or 0) >= num_train_epochs, f"--num_train_epochs {num_train_epochs:g}"
    if finished:
        raise UsageError(
            f"--resume_from_checkpoint: {checkpoint} is already at or past {flag}; raise it to train on. "
            f"The checkpoint as a model folder: zerotune-export {checkpoint} MODEL_FOLDER"
        )
