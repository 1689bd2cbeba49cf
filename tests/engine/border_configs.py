"""Random configs near the rules' borders: those that the agreement between validator and engine is measured on.

A trial is a config that runs, with one to five keys drawn anew, so that few rules meet at a time. Keys come from
three sources: hand-weighted ones where rules meet (CHOICES), any key of the schema with values on both sides of its
type and range, and fragments of the rules' own examples.
"""

from __future__ import annotations

import copy
import random
from functools import cache

from zerotune.ds_config.rules import all_rules
from zerotune.ds_config.schema import Field, fields

# Dotted key -> its weight in the draw, and values on both sides of some rule.
CHOICES: dict[str, tuple[float, list]] = {
    "train_batch_size": (0.15, [1, 2, 4, 0, "auto"]),
    "train_micro_batch_size_per_gpu": (0.95, [1, 2, 2.0, "2"]),
    "gradient_accumulation_steps": (0.2, [1, 2, 3]),
    "gradient_clipping": (0.4, [0, 1.0, 0.5, -1, None, "1.0", True]),
    "steps_per_print": (0.1, [0, 1, 10, "5", None]),
    "managed_gradient_accumulation": (0.1, [False, True]),
    "communication_data_type": (0.1, ["fp32", "bf16", "float32", None]),
    "prescale_gradients": (0.1, [True, False, "false"]),
    "gradient_predivide_factor": (0.1, [1.0, 2.0, 1]),
    "gradient_allreduce_op": (0.1, ["mean", "sum", "SUM", "avg"]),
    "zero_allow_untested_optimizer": (0.3, [True, False]),
    "wall_clock_breakdown": (0.1, [True, False, "false", 1]),
    "log_level": (0.05, ["info", "INFO", "loud"]),
    "misspelt_key": (0.1, [1]),
    "elasticity": (0.03, [{}]),
    "zero_optimization.stage": (0.95, [0, 1, 2, 3, 1, 2, 3, "2", "auto", 4]),
    "zero_optimization.overlap_comm": (0.3, [True, False, None, "yes"]),
    "zero_optimization.reduce_scatter": (0.2, [True, False]),
    "zero_optimization.contiguous_gradients": (0.1, [True, False]),
    "zero_optimization.reduce_bucket_size": (0.2, [5e8, 1000, 10, 0, "1000", 1.5]),
    "zero_optimization.allgather_bucket_size": (0.2, [1000, 1001, 0]),
    "zero_optimization.round_robin_gradients": (0.1, [True]),
    "zero_optimization.compute_grad_norm": (0.1, [False]),
    "zero_optimization.ignore_unused_parameters": (0.1, [False]),
    "zero_optimization.legacy_stage1": (0.05, [True, False]),
    "zero_optimization.elastic_checkpoint": (0.05, [True]),
    "zero_optimization.sub_group_size": (0.1, [0, 100, 1e9]),
    "zero_optimization.stage3_max_live_parameters": (0.1, [0, 100]),
    "zero_optimization.stage3_param_persistence_threshold": (0.1, [0, 100000]),
    "zero_optimization.prefetch_bucket_size": (0.1, [0, 100]),
    "zero_optimization.unknown": (0.03, [1]),
    "zero_optimization.zero_hpz_partition_size": (0.05, [0, 1]),
    "zero_optimization.cpu_offload": (0.05, [True, False]),
    "zero_optimization.offload_optimizer.device": (0.35, ["cpu", "cpu", "cpu", "none", "CPU", "auto"]),
    "zero_optimization.offload_optimizer.pin_memory": (0.35, [False, "false"]),
    "zero_optimization.offload_optimizer.ratio": (0.1, [1.0, 0.5, 0, 2]),
    "zero_optimization.offload_param.device": (0.2, ["cpu", "cpu", "none"]),
    "zero_optimization.offload_param.pin_memory": (0.2, [False]),
    "bf16.enabled": (0.5, [True, True, False, "true", "auto"]),
    "bf16.check_grad_overflow": (0.1, [True, False]),
    "bf16.bf16_master_weights_and_grads": (0.1, [True]),
    "bf16.bf16_optimizer_states": (0.1, [True]),
    "fp16.enabled": (0.1, [False, "false"]),
    "fp16.loss_scale": (0.1, [0, 128, -1, True]),
    "data_types.grad_accum_dtype": (0.15, ["fp32", "bf16", "bfloat16", "double", None]),
    "torch_autocast.enabled": (0.1, [True, False]),
    "torch_autocast.dtype": (0.1, ["bfloat16", "bf16", "half16"]),
    "optimizer.type": (
        0.9,
        [
            "AdamW",
            "AdamW",
            "Adam",
            "adamw",
            "SGD",
            "sgd",
            "Adagrad",
            "Muon",
            "RMSprop",
            "Adafactor",
            "LBFGS",
            "OneBitAdam",
            None,
        ],
    ),
    "optimizer.params.lr": (0.8, [1e-3, 0, "1e-3", 1]),
    "optimizer.params.betas": (0.2, [[0.9, 0.95]]),
    "optimizer.params.weight_decay": (0.2, [0.1, 0]),
    "optimizer.params.torch_adam": (0.2, [True, False]),
    "optimizer.params.momentum": (0.15, [0.9]),
    "optimizer.params.max_grad_norm": (0.03, [1.0]),
    "optimizer.lr": (0.05, [1e-3]),
    "scheduler.type": (
        0.2,
        ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "StepLR", "cosine", "ExponentialLR"],
    ),
    "scheduler.params.warmup_num_steps": (0.15, [1, 10, 0, 10.0]),
    "scheduler.params.total_num_steps": (0.15, [10, 100]),
    "scheduler.params.warmup_max_lr": (0.1, [1e-3]),
    "scheduler.params.gamma": (0.05, [0.9]),
    "checkpoint.tag_validation": (0.05, ["WARN", "fail", "strict"]),
    "activation_checkpointing.partition_activations": (0.05, [True]),
    "tensor_parallel.tp.tp_size": (0.03, [1, 2]),
    "aio.queue_depth": (0.05, [8]),
    "flops_profiler.enabled": (0.03, [False]),
    "comms_logger.enabled": (0.03, [False, "no"]),
}


# Keys whose work leaves the process (trackers, files of another host) or needs minutes of compiling.
NOT_DRAWN = ("wandb", "comet", "tensorboard", "csv_monitor", "nebula", "aio.use_gds", "hybrid_engine")
FLAGS = {
    "per_device_train_batch_size": [1, 2],
    "gradient_accumulation_steps": [1, 2],
    "max_grad_norm": [1.0, 0.0, 0.5],
    "learning_rate": [5e-5, 1e-3],
    "weight_decay": [0.0, 0.1],
    "adam_beta2": [0.999, 0.95],
    "bf16": [True, False],
    "fp16": [False, False, True],
    "warmup_steps": [0, 10, 0.1],
    "max_steps": [3, 5],
}
TRAINER_KEYS = {
    "train_batch_size": ["auto", 1, 4, 8, None],
    "train_micro_batch_size_per_gpu": ["auto", 1, 2, "2"],
    "gradient_accumulation_steps": ["auto", 1, 4],
    "gradient_clipping": ["auto", 1.0, 1, 0.5, 0, "1.0"],
    "optimizer.params.lr": ["auto", 5e-5, 1e-3, "5e-5"],
    "optimizer.params.betas": ["auto", [0.9, 0.999], [0.9, 0.95]],
    "optimizer.params.weight_decay": ["auto", 0, 0.1],
    "scheduler.type": ["WarmupLR", "WarmupDecayLR"],
    "scheduler.params.warmup_min_lr": ["auto", 0, 1e-6],
    "scheduler.params.warmup_num_steps": ["auto", 1, 10],
    "scheduler.params.total_num_steps": ["auto", 100],
    "fp16.enabled": ["auto", True, False],
    "bf16.enabled": ["auto", True, False, "true"],
    "zero_optimization.stage": ["auto", 0, 1, 2, 3, "3", 4],
    "zero_optimization.overlap_comm": [True, "auto"],
    "zero_optimization.reduce_bucket_size": ["auto", 1e6, 0],
    "zero_optimization.stage3_prefetch_bucket_size": ["auto", 1e6],
    "zero_optimization.sub_group_size": ["auto", 1e9],
    "zero_optimization.offload_optimizer.device": ["auto", "cpu", "none", "gpu"],
    "zero_optimization.offload_param.device": ["auto", "cpu"],
    "zero_optimization.offload_param": [None, {}],
    "zero_optimization.unknown": ["auto", 1],
    "unknown": ["auto", 1],
}


def draw(random_: random.Random) -> dict:
    """One trial: entry, config, flags (Trainer only), client_optimizer."""
    if random_.random() < 0.25:
        return _trainer_trial(random_)
    config = _raw_base(random_)
    for _ in range(random_.randint(1, 5)):
        path, value = random_.choices((_weighted, _any_key, _example), (0.6, 0.25, 0.15))[0](random_)
        put(config, path, value)
    client = random_.choice(["AdamW", "SGD", "DeepSpeedCPUAdam"]) if random_.random() < 0.1 else None
    return {"entry": "raw", "config": config, "client_optimizer": client}


def _raw_base(random_: random.Random) -> dict:
    config: dict = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": random_.choice([0, 1, 2, 3])}}
    kind = random_.choice(["AdamW", "AdamW", "Adam", "Adagrad", "Muon"])
    put(config, "optimizer", {"type": kind, "params": {"lr": 1e-3}})
    if random_.random() < 0.4:
        put(config, "bf16.enabled", True)
    if random_.random() < 0.4:
        put(config, "zero_optimization.offload_optimizer", {"device": "cpu", "pin_memory": False})
    return config


def _trainer_trial(random_: random.Random) -> dict:
    config: dict = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": random_.choice([1, 2, 3])}}
    config |= {"gradient_accumulation_steps": "auto", "train_batch_size": "auto", "gradient_clipping": "auto"}
    if random_.random() < 0.6:
        put(config, "optimizer", {"type": "AdamW", "params": {"lr": "auto"}})
    for path in random_.sample(sorted(TRAINER_KEYS), random_.randint(0, 3)):
        put(config, path, random_.choice(TRAINER_KEYS[path]))
        if path.startswith("scheduler."):
            put(config, "scheduler", {"type": "WarmupLR", "params": {}, **config["scheduler"]})
    if random_.random() < 0.3:
        put(config, *_any_key(random_))
    flags = {name: random_.choice(values) for name, values in FLAGS.items() if random_.random() < 0.25}
    if flags.get("fp16") and flags.get("bf16"):
        del flags["fp16"]  # TrainingArguments refuses both
    flags.setdefault("max_steps", 3)
    return {"entry": "trainer", "config": config, "flags": flags}


def _weighted(random_: random.Random) -> tuple[str, object]:
    paths = list(CHOICES)
    path = random_.choices(paths, [share for share, _ in CHOICES.values()])[0]
    return path, random_.choice(CHOICES[path][1])


def _any_key(random_: random.Random) -> tuple[str, object]:
    field = random_.choice(_drawn_fields())
    return field.path, random_.choice(border_values(field))


@cache
def _drawn_fields() -> tuple[Field, ...]:
    return tuple(f for f in fields().values() if "properties" not in f.node and not f.path.startswith(NOT_DRAWN))


def border_values(field: Field) -> list:
    """Values on both sides of a key's type and range, from its schema."""
    node = field.node
    kinds = node.get("type", "string")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    values = [*node.get("enum", ()), node.get("default")]
    if "boolean" in kinds:
        values += [True, False, "true", 1]
    if "integer" in kinds or "number" in kinds:
        low, high = node.get("minimum", node.get("exclusiveMinimum", 0)), node.get("maximum")
        values += [low, low + 1, low - 1, 1000, "1000", 2.5, *([high, high + 1] if high is not None else [])]
    if "string" in kinds:
        values += ["x"]
    if "array" in kinds:
        values += [[], [1]]
    return values


def _example(random_: random.Random) -> tuple[str, object]:
    """One key of one rule's raw example."""
    return random_.choice(_fragments())


@cache
def _fragments() -> tuple[tuple[str, object], ...]:
    found = []
    for rule in all_rules().values():
        for case in (*rule.bad, *rule.good):
            if isinstance(case.source, dict) and case.context.get("entry") == "raw":
                found += [pair for pair in _leaves(case.source) if not pair[0].startswith(NOT_DRAWN)]
    return tuple(found)


def _leaves(config: dict, path: str = "") -> list[tuple[str, object]]:
    found = []
    for name, value in config.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict) and value:
            found += _leaves(value, here)
        elif value is not ... and "." not in name:
            found.append((here, value))
    return found


def put(config: dict, path: str, value: object) -> None:
    """Set a dotted key; a block that was drawn as something else becomes a block again."""
    *parents, name = path.split(".")
    for parent in parents:
        if not isinstance(config.get(parent), dict):
            config[parent] = {}
        config = config[parent]
    config[name] = copy.deepcopy(value)
