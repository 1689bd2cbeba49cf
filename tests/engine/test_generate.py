"""Every combination of generate's options: clean for the validator, and taken by transformers, accelerate and DeepSpeed."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

from tests.engine.test_trainer_agreement import refusal
from zerotune.ds_config import Context, check, resolve, template_names
from zerotune.ds_config.flags import parse_flags
from zerotune.ds_config.generate import PRECISIONS, Options, flags_to_match, generate

CHOICES = {
    "micro_batch": (None, 2),
    "accumulation": (None, 4),
    "clip": (None, 0.0, 0.5),
    "lr": (None, 3e-4),
    "pin_memory": (None, False),
    "reduce_bucket": (None, 10_000_000),
}


def option_sets(name: str, precision: str):
    pins = "offload" in name or "nvme" in name
    for values in itertools.product(*CHOICES.values()):
        options = Options(precision, **dict(zip(CHOICES, values, strict=True)))
        if pins or options.pin_memory is None:
            yield options


@pytest.mark.parametrize("name", template_names())
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_combination(name, precision):
    template = resolve(name).config
    for options in option_sets(name, precision):
        config = generate(name, template, options)
        flags = parse_flags(" ".join(flags_to_match(options)))
        context = Context(training_args=flags, world_size=1, model={"hidden_size": 64})
        assert check(config, context) == [], options
        assert refusal(config, flags) is None, options
