"""What is known about the run that a config is meant for. Everything is optional."""

from __future__ import annotations

from dataclasses import dataclass, field

from .hidden_size import hidden_size

TRAINER = "trainer"
ACCELERATE = "accelerate"
RAW = "raw"
ENTRIES = (TRAINER, ACCELERATE, RAW)

# Defaults of transformers.TrainingArguments (5.24) for the fields that the Trainer compares with the config.
# tests/engine/test_schema.py holds them against the installed transformers.
TRAINING_DEFAULTS = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "max_grad_norm": 1.0,
    "learning_rate": 5e-5,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "weight_decay": 0.0,
    "warmup_steps": 0,
    "max_steps": -1,
    "bf16": False,
    "bf16_full_eval": False,
    "fp16": False,
    "fp16_full_eval": False,
    "auto_find_batch_size": False,
}


@dataclass(frozen=True)
class Machine:
    """What the planner says of one config on one machine, for the rules on costs.

    shortage: what the run lacks, in words, by more than the plan's error band; None when it may fit.
    spare: offload block -> what dropping it (and those beside it here) would do, in words; where the plan has room.
    pinned_bytes: page-locked host memory of one rank. memlock_bytes: what one process may lock; None = no limit known.
    """

    name: str
    shortage: str | None = None
    spare: dict[str, str] = field(default_factory=dict)
    pinned_bytes: int = 0
    memlock_bytes: int | None = None


@dataclass(frozen=True)
class Context:
    """The run around the config.

    entry: who hands the config to DeepSpeed: "trainer" (HF Trainer), "accelerate" (Accelerator with a config
        file) or "raw" (deepspeed.initialize).
    world_size: number of ranks; None = unknown, then rules that need it stay silent.
    training_args: values of transformers.TrainingArguments; None = unknown. Names that are missing have
        the defaults of transformers.
    explicit: names of training_args that the user typed; None = all of them.
    unknown: names of TrainingArguments that are given a value which nobody can tell from here ($LR of a script).
    model: facts of the model's config.json (hidden_size, num_attention_heads ...).
    client_optimizer: class name of an optimizer passed to deepspeed.initialize.
    zero_init: the model is built under deepspeed.zero.Init.
    versions: package name -> version string.
    machine: the plan of this config on a machine; None = no machine was named.
    """

    entry: str = TRAINER
    world_size: int | None = None
    nodes: int | None = None
    training_args: dict | None = None
    explicit: frozenset | None = None
    unknown: frozenset = frozenset()
    model: dict | None = None
    client_optimizer: str | None = None
    zero_init: bool | None = None
    versions: dict = field(default_factory=dict)
    machine: Machine | None = None

    def argument(self, name: str):
        """The value of a TrainingArguments field: given, else transformers' default. None when unknown."""
        if self.training_args is None or name in self.unknown:
            return None
        value = self.training_args.get(name)
        return TRAINING_DEFAULTS.get(name) if value is None else value

    @property
    def hidden_size(self) -> int | None:
        """The size that "auto" buckets are made of; None when it isn't known."""
        return None if self.model is None else hidden_size(self.model, nested=self.entry == TRAINER)

    def typed(self, name: str) -> bool:
        """True when the user typed this TrainingArguments field himself."""
        if self.training_args is None or name not in self.training_args:
            return False
        return self.explicit is None or name in self.explicit
