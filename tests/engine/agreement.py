"""Random configs near the rules' borders: our verdict against a real engine's.

    python -m tests.engine.agreement --n 150 --seed 7

Plain DeepSpeed on one CPU rank, a fork per config. Prints every disagreement with the smallest config that still
shows it, and ends with 1 when there is one.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
from collections.abc import Iterator

from tests.engine.test_rule_examples import NOT_HERE
from tests.engine.trials import judge_all
from zerotune.ds_config import Context, check
from zerotune.ds_config.finding import ERROR

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


def draw(random_: random.Random) -> dict:
    """A config that runs, with one to five keys drawn anew: few rules at a time, and their pairs."""
    config: dict = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": random_.choice([0, 1, 2, 3])}}
    put(
        config,
        "optimizer",
        {"type": random_.choice(["AdamW", "AdamW", "Adam", "Adagrad", "Muon"]), "params": {"lr": 1e-3}},
    )
    if random_.random() < 0.4:
        put(config, "bf16.enabled", True)
    if random_.random() < 0.4:
        put(config, "zero_optimization.offload_optimizer", {"device": "cpu", "pin_memory": False})
    paths = list(CHOICES)
    weights = [share for share, _ in CHOICES.values()]
    for path in random_.choices(paths, weights, k=random_.randint(1, 5)):
        put(config, path, copy.deepcopy(random_.choice(CHOICES[path][1])))
    return config


def put(config: dict, path: str, value: object) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        config = config.setdefault(parent, {})
    config[name] = value


def errors(config: dict) -> list[str]:
    return [f.rule for f in check(config, Context(entry="raw", world_size=1)) if f.severity == ERROR]


# Stage 3 without an optimizer is an engine for inference: it is built and runs forward; only training fails.
INFERENCE = ("DeepSpeedZeRoOffload",)


def disagrees(config: dict, answer: dict) -> bool:
    if any(text in answer["error"] for text in NOT_HERE + INFERENCE):
        return False
    return (answer["verdict"] != "accepted") != bool(errors(config))


def smaller(config: dict) -> Iterator[dict]:
    """Configs with one key less."""
    for name, value in config.items():
        yield {key: item for key, item in config.items() if key != name}
        if isinstance(value, dict):
            for less in smaller(value):
                yield {**config, name: less}


def shrink(config: dict, answer: dict) -> tuple[dict, dict]:
    """The smallest config that still disagrees in the same direction."""
    while True:
        for less in smaller(config):
            found = next(judge_all([{"config": less}]))
            if disagrees(less, found) and (found["verdict"] == "accepted") == (answer["verdict"] == "accepted"):
                config, answer = less, found
                break
        else:
            return config, answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random_ = random.Random(options.seed)
    configs = [draw(random_) for _ in range(options.n)]
    wrong = refused = 0
    for config, answer in zip(configs, judge_all([{"config": config} for config in configs]), strict=True):
        refused += answer["verdict"] != "accepted"
        if disagrees(config, answer):
            wrong += 1
            least, why = shrink(config, answer)
            print(
                f"{json.dumps(least)}\n  engine: {why['verdict']} {why['error'][:200]}\n  errors: {errors(least)}",
                flush=True,
            )
    print(f"{options.n} configs, seed {options.seed}: {refused} refused by the engine, {wrong} disagreements")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
