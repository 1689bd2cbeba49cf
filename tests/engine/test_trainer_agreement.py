"""Random configs and flags through the code of transformers and accelerate that fills and compares them.

Everything up to DeepSpeed's parser runs as the Trainer runs it, with a stand-in for the arguments and the model; no
ranks are started. What any of them refuses must have an error-level finding, and the other way round, apart from
rules about later phases.
"""

from __future__ import annotations

import copy
import random
from types import SimpleNamespace

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

from tests.engine import border_configs
from tests.engine.test_parser_agreement import LATER
from zerotune.ds_config import Context, check
from zerotune.ds_config.context import TRAINING_DEFAULTS
from zerotune.ds_config.finding import ERROR

LATER_HERE = LATER | {"ZT110", "ZT112", "ZT408", "ZT409", "ZT502", "ZT507", "ZT602", "ZT603", "ZT604", "ZT606", "ZT607"}
LATER_HERE |= {"ZT622", "ZT623", "ZT624"}
# Without an engine nothing waits for a step: longer accumulation, epochs, and keys that only the later phases look at.
FLAGS = border_configs.FLAGS | {"gradient_accumulation_steps": [1, 4], "max_steps": [-1, 100]}
KEYS = border_configs.TRAINER_KEYS | {
    "steps_per_print": [10, "auto", "x"],
    "optimizer.params.eps": ["auto", 1e-8, 1e-6],
    "optimizer.params.torch_adam": [True, "auto"],
    "scheduler.params.warmup_max_lr": ["auto", 5e-5, 1e-3],
    "fp16.loss_scale": [0, "auto"],
    "zero_optimization.prefetch_bucket_size": ["auto", 1e6],
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": ["auto", True],
    "zero_optimization.offload_optimizer.ratio": ["auto", 1.0],
    "zero_optimization.offload_param": ["auto", None, {}],
    "aio.block_size": ["auto", 1048576],
    "bfloat16.enabled": ["auto", True],
    "elasticity": [{}],
}


def draw(random_: random.Random) -> tuple[dict, dict]:
    config: dict = {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 2}}
    config |= {"gradient_accumulation_steps": "auto", "train_batch_size": "auto", "gradient_clipping": "auto"}
    config["optimizer"] = {"type": "AdamW", "params": {"lr": "auto"}}
    for path in random_.sample(sorted(KEYS), random_.randint(0, 4)):
        border_configs.put(config, path, random_.choice(KEYS[path]))
        if path.startswith("scheduler."):
            config["scheduler"].setdefault("type", "WarmupLR")
            config["scheduler"].setdefault("params", {})
    if random_.random() < 0.1:
        del config[random_.choice(["gradient_accumulation_steps", "train_batch_size", "zero_optimization"])]
    flags = {name: random_.choice(values) for name, values in FLAGS.items() if random_.random() < 0.25}
    if flags.get("fp16") and flags.get("bf16"):
        del flags["fp16"]  # TrainingArguments refuses both
    if flags.get("max_steps", -1) < 0:
        # Needs the number of steps, which nobody knows before the data is there.
        config.get("scheduler", {}).get("params", {}).pop("total_num_steps", None)
    if flags.get("warmup_steps") == 0.1 and flags.get("max_steps", -1) < 0:
        del flags["warmup_steps"]  # a share of a number that nobody knows before the data is there
    return config, flags


def refusal(config: dict, flags: dict) -> str | None:
    """What transformers, accelerate or DeepSpeed's parser says against it."""
    from accelerate.utils import DeepSpeedPlugin
    from deepspeed.runtime.config import DeepSpeedConfig
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    values = {**TRAINING_DEFAULTS, **flags}
    arguments = SimpleNamespace(**values, world_size=1, save_on_each_node=False)
    arguments.get_warmup_steps = lambda steps: warmup(values["warmup_steps"], steps)
    steps = values["max_steps"] if values["max_steps"] > 0 else 60
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=64))
    try:
        ours = HfTrainerDeepSpeedConfig(copy.deepcopy(config))
        ours.trainer_config_process(arguments)
        plugin = DeepSpeedPlugin(hf_ds_config=ours)
        plugin.set_mixed_precision("fp16" if values["fp16"] else "bf16" if values["bf16"] else "no")
        ours.trainer_config_finalize(arguments, model, steps)
        plugin.deepspeed_config_process(must_match=False, **accelerate_values(values, plugin))
        DeepSpeedConfig(copy.deepcopy(plugin.deepspeed_config))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


def accelerate_refusal(config: dict) -> str | None:
    """What accelerate or DeepSpeed's parser says against a config file of an Accelerator, with batches of 1."""
    from accelerate.utils import DeepSpeedPlugin
    from deepspeed.runtime.config import DeepSpeedConfig

    values = {**TRAINING_DEFAULTS, "per_device_train_batch_size": 1}
    try:
        plugin = DeepSpeedPlugin(hf_ds_config=copy.deepcopy(config))
        plugin.set_mixed_precision("no")
        micro = plugin.get_value("train_micro_batch_size_per_gpu")
        values["per_device_train_batch_size"] = 1 if micro in ("auto", None) else micro
        plugin.fill_match("gradient_accumulation_steps", must_match=False, gradient_accumulation_steps=1)
        plugin.deepspeed_config_process(must_match=False, **accelerate_values(values, plugin))
        DeepSpeedConfig(copy.deepcopy(plugin.deepspeed_config))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


def warmup(asked: float, steps: int) -> int:
    import math

    return int(asked) if asked >= 1 else math.ceil(steps * asked)


def accelerate_values(values: dict, plugin) -> dict:
    """accelerator.py:2223 (_prepare_deepspeed), for DummyOptim and a model of hidden size 64."""
    micro = values["per_device_train_batch_size"]
    return {
        "gradient_clipping": 1.0,
        "zero_optimization.stage3_gather_16bit_weights_on_model_save": False,
        "train_micro_batch_size_per_gpu": micro,
        "train_batch_size": micro * plugin.get_value("gradient_accumulation_steps"),
        "zero_optimization.reduce_bucket_size": 64 * 64,
        "zero_optimization.stage3_prefetch_bucket_size": int(0.9 * 64 * 64),
        "zero_optimization.stage3_param_persistence_threshold": 640,
        "optimizer.params.lr": 0.001,
        "optimizer.params.weight_decay": 0,
        "scheduler.params.warmup_min_lr": 0,
        "scheduler.params.warmup_max_lr": 0.001,
        "scheduler.params.warmup_num_steps": 1,
    }


@pytest.mark.parametrize("seed", range(8))
def test_agreement(seed):
    random_ = random.Random(seed)
    refused = 0
    for _ in range(150):
        config, flags = draw(random_)
        said = refusal(config, flags)
        refused += said is not None
        context = Context(world_size=1, training_args=flags, model={"hidden_size": 64})
        errors = {finding.rule for finding in check(config, context) if finding.severity == ERROR}
        if said:
            assert errors, (config, flags, said)
        else:
            assert errors <= LATER_HERE, (config, flags, errors)
    assert 30 < refused < 140


@pytest.mark.parametrize("seed", range(4))
def test_accelerate_agreement(seed):
    random_ = random.Random(1000 + seed)
    for _ in range(150):
        config, _ = draw(random_)
        said = accelerate_refusal(config)
        if said and "Check batch related" in said:
            continue  # hangs on the dataloader and the Accelerator, which the config doesn't show
        context = Context(entry="accelerate", world_size=1, model={"hidden_size": 64})
        errors = {finding.rule for finding in check(config, context) if finding.severity == ERROR}
        if said:
            assert errors, (config, said)
        else:
            assert errors <= LATER_HERE, (config, errors)
