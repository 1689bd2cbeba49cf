"""How train.py saves: the background saver, tied to the flags, the ranks and DeepSpeed's engine."""

from __future__ import annotations

from transformers import TrainerCallback
from transformers.trainer_utils import SaveStrategy

from zerotune.checkpointing import background, checkpoint_engine, folders, retention
from zerotune.preflight import output_folder
from zerotune.training import ranks


def make_saver(args, training_args, num_parameters: int) -> background.BackgroundSaver:
    """The saver of this job. All ranks together."""
    limit, every = args.training["save_total_limit"], args.run.save_keep_every

    def retain(save: background.Save) -> None:
        for folder in retention.superfluous(save.folder.parent, save.folder, limit, every, save.best):
            folders.remove(folder)

    saver = background.BackgroundSaver(
        rank=ranks.rank(),
        world_size=ranks.world_size(),
        per_node=ranks.local_world_size(),
        gather=ranks.new_gather(),
        gather_in_thread=ranks.new_gather(),
        retain=retain,
        say=ranks.say,
        expected_bytes=output_folder.checkpoint_bytes(num_parameters, training_args.bf16 or training_args.fp16),
    )
    saver.in_background = args.run.save_in_background
    return saver


class InBackground(TrainerCallback):
    """Ties the saver to DeepSpeed's engine after the first step, and waits for its last checkpoint at the end."""

    def __init__(self, trainer):
        self.trainer, self.saver = trainer, trainer.saver
        self.installed = False

    def on_step_end(self, args, state, control, **kwargs):
        """The optimizer's states exist now: memory for their copies is made while the next steps run."""
        if self.installed:
            return
        self.installed = True
        engine = self.trainer.deepspeed
        wanted = self.saver.in_background
        why_not = checkpoint_engine.install(engine, self.saver)
        if why_not and wanted:
            ranks.say(f"saving in the foreground: {why_not}")
        if self.saver.in_background and args.save_strategy != SaveStrategy.NO:
            self.saver.prepare(checkpoint_engine.state_bytes(engine))

    def on_train_end(self, args, state, control, **kwargs):
        self.saver.wait()
