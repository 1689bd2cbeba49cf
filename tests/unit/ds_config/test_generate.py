"""generate: every combination of options is deterministic and validates clean with its flags."""

from __future__ import annotations

import json

import pytest

from zerotune.ds_config import Context, check, resolve, template_names
from zerotune.ds_config.flags import parse_flags
from zerotune.ds_config.generate import PRECISIONS, Options, flags_to_match, generate, text_of
from zerotune.errors import UsageError


@pytest.mark.parametrize("name", template_names())
@pytest.mark.parametrize("precision", PRECISIONS)
def test_options_give_clean_configs(name, precision):
    """None and all of the options; tests/engine/test_generate.py tries every combination."""
    template = resolve(name).config
    for options in (Options(precision), Options(precision, 2, 4, 0.0, 3e-4, reduce_bucket=10_000_000)):
        config = generate(name, template, options)
        arguments = parse_flags(" ".join(flags_to_match(options)))
        assert check(config, Context(training_args=arguments, world_size=4)) == []
        assert text_of(config) == text_of(generate(name, template, options))
    assert template == resolve(name).config


def test_without_options_it_is_the_template():
    for name in template_names():
        assert text_of(generate(name, resolve(name).config, Options())) == resolve(name).text


def test_offload_options():
    config = generate("stage3_nvme", resolve("stage3_nvme").config, Options(nvme_path="/nvme", pin_memory=False))
    for block in ("offload_optimizer", "offload_param"):
        assert config["zero_optimization"][block]["nvme_path"] == "/nvme"
        assert config["zero_optimization"][block]["pin_memory"] is False


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("stage2", Options(nvme_path="/nvme")),
        ("stage2", Options(pin_memory=False)),
        ("stage2", Options(prefetch_bucket=10)),
        ("stage3", Options(allgather_bucket=10)),
        ("stage2", Options(allgather_bucket=11)),
    ],
)
def test_options_without_use_are_refused(name, options):
    with pytest.raises(UsageError, match="--"):
        generate(name, resolve(name).config, options)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--bf16 true --learning_rate 1e-4", {"bf16": True, "learning_rate": 1e-4}),
        ("--bf16 --max_steps=5", {"bf16": True, "max_steps": 5}),
        ("deepspeed train.py --per-device-train-batch-size 4", {"per_device_train_batch_size": 4}),
        ("--optim adamw_torch --fp16 False", {"optim": "adamw_torch", "fp16": False}),
        ("--max_grad_norm -1", {"max_grad_norm": -1.0}),
        ("", {}),
    ],
)
def test_flags(text, expected):
    assert parse_flags(text) == expected


@pytest.mark.parametrize("text", ["--learning_rate fast", "--bf16 maybe", "--max_steps 1.5", "--a 'b"])
def test_flags_that_are_wrong(text):
    with pytest.raises(UsageError, match="--training-args"):
        parse_flags(text)


def test_text_is_json_with_a_newline():
    assert json.loads(text_of({"a": 1})) == {"a": 1}
    assert text_of({"a": 1}).endswith("}\n")
