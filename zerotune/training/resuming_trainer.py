"""A Trainer that resumes a ZeRO run of any number of ranks, stage and offload."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from transformers import Trainer, set_seed
from transformers.trainer_pt_utils import safe_globals

from zerotune.checkpointing import completion
from zerotune.checkpointing.resharding.load import load
from zerotune.training import ranks


class ResumingTrainer(Trainer):
    """Overrides what transformers 5.24 does by `deepspeed_load_checkpoint`, and the choice of a rank's random states."""

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        if resume_from_checkpoint is not None:
            self._load_zero(resume_from_checkpoint)
            self._load_optimizer_and_scheduler(resume_from_checkpoint)
        return prepared

    def _load_best_model(self):
        self._load_zero(self.state.best_model_checkpoint)

    def _load_zero(self, checkpoint: str) -> None:
        strict = not hasattr(self.model, "peft_config")
        load(self.model_wrapped, Path(checkpoint), ranks.say, strict)

    def _load_rng_state(self, checkpoint):
        wrote = completion.world_size_of(Path(checkpoint)) if checkpoint else None
        if wrote in (None, self.args.world_size):
            super()._load_rng_state(checkpoint)
            return
        restore_random_states(Path(checkpoint), wrote, self.args.process_index, self.args.seed, self.state.global_step)
        kept = min(wrote, self.args.world_size)
        rest = f", the other {self.args.world_size - kept} are seeded anew" if kept < self.args.world_size else ""
        ranks.say(f"resume: {kept} of {self.args.world_size} rank(s) go on with the random states of their rank{rest}")


def restore_random_states(checkpoint: Path, wrote: int, rank: int, seed: int, step: int) -> None:
    """Take the random states of the same rank where there was one, else draw from a seed of its own.

    Args:
        wrote: ranks of the run that saved.
    """
    file = checkpoint / ("rng_state.pth" if wrote == 1 else f"rng_state_{rank}.pth")
    if rank >= wrote or not file.is_file():
        set_seed((seed + 1_000_003 * step + rank) % 2**32)
        return
    with safe_globals():
        states = torch.load(file, weights_only=True)
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    if torch.cuda.is_available() and "cuda" in states:
        cuda = states["cuda"]
        if isinstance(cuda, list):  # of every GPU of the node
            cuda = cuda[min(torch.cuda.current_device(), len(cuda) - 1)]
        torch.cuda.set_rng_state(cuda)
