"""effective() against the object that DeepSpeed itself makes of a config."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("deepspeed")

from zerotune.ds_config import Context, resolve, template_names
from zerotune.ds_config.effective import effective
from zerotune.ds_config.generate import Options, generate
from zerotune.ds_config.schema import fields

HELD = {
    "zero_optimization": "zero_config",
    "bf16": "bfloat16_config",
    "fp16": "float16_config",
    "compile": "compile_config",
    "tensor_parallel": "tensor_parallel_config",
}
PLAIN = {
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "steps_per_print",
    "prescale_gradients",
    "gradient_predivide_factor",
    "gradient_allreduce_op",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "managed_gradient_accumulation",
    "dump_state",
    "memory_breakdown",
}
MICRO = {"train_micro_batch_size_per_gpu": 2}
CONFIGS = [
    MICRO,
    {"train_batch_size": 12, "gradient_accumulation_steps": 3},
    {"train_batch_size": 12, "train_micro_batch_size_per_gpu": 4},
    {"train_batch_size": 12},
    {**MICRO, "gradient_clipping": 0, "zero_optimization": {"stage": "3", "reduce_bucket_size": 5e8}},
    {**MICRO, "zero_optimization": {"stage": 2, "overlap_comm": None, "cpu_offload": True}},
    {**MICRO, "zero_optimization": {"stage": 3, "prefetch_bucket_size": 7, "max_live_parameters": "8"}},
    {**MICRO, "zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": True}},
    {**MICRO, "zero_optimization": {"stage": "auto", "overlap_comm": "yes"}, "bf16": {"enabled": "auto"}},
    {**MICRO, "bfloat16": {"enabled": True}},
    {**MICRO, "bf16": {"enabled": 1}, "bfloat16": {"enabled": False}, "fp16": {"loss_scale": "128"}},
    {**MICRO, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": "false"}}},
    {**MICRO, "compile": {"deepcompile": True}, "tensor_parallel": {"autotp_size": 1}, "unknown": 1},
]


def templates() -> list[dict]:
    """The templates as plain DeepSpeed could read them."""
    made = []
    for name in template_names():
        config = generate(name, resolve(name).config, Options("bf16", 2, 1, 0.5, 1e-4))
        config.pop("train_batch_size")
        config["optimizer"]["params"] = {"lr": 1e-4}
        made.append(config)
    return made


def held(config, path: str):
    """The engine's value of a key: models hold fields by their own names, without the stage3_ of JSON."""
    block, _, rest = path.partition(".")
    value = getattr(config, HELD[block])
    for name in rest.split("."):
        field = getattr(type(value), "model_fields", {})
        name = "replace_with_kernel_inject" if name == "kernel_inject" else name
        name = name if name in field else name.removeprefix("stage3_")
        value = getattr(value, name, None)
    return value


@pytest.mark.parametrize("config", CONFIGS + templates(), ids=str)
def test_equals_what_the_engine_holds(config):
    from deepspeed.runtime.config import DeepSpeedConfig

    theirs = DeepSpeedConfig(copy.deepcopy(config))
    compared = 0
    for row in effective(config, Context(entry="raw", world_size=1)).settings:
        if row.path in PLAIN:
            expected = getattr(theirs, row.path)
        elif row.path.split(".")[0] in HELD and row.path != "tensor_parallel.dtype":
            expected = held(theirs, row.path)
        else:
            continue
        if "leaf_module" in row.path or ".tensor_parallel" in row.path or ".tp." in row.path:
            continue
        value = str(row.value) if row.path.endswith("nvme_path") and row.value is not None else row.value
        expected = str(expected) if row.path.endswith("nvme_path") and expected is not None else expected
        assert value == expected, row
        compared += 1
    assert compared >= 60


def test_every_listed_key_is_in_the_schema():
    for row in effective({"zero_optimization": {"stage": 2}}, Context(training_args={})).settings:
        assert row.path in fields()
