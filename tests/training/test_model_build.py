"""A model built from scratch says its class, so that the export can be compared with it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zerotune.checkpointing import model_keys
from zerotune.training import arguments, model

TINY = "hidden_size=64,intermediate_size=128,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=2"


@pytest.fixture(scope="module")
def built():
    args = arguments.parse(["--config_overrides", TINY, "--attn", "sdpa"])
    config = model.config(args, 256, {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0})
    return model.build(args, config, SimpleNamespace(seed=1, bf16=False, fp16=False), 256)


def test_the_saved_config_is_enough_to_know_the_keys(built, tmp_path):
    built.config.save_pretrained(tmp_path)
    described = model_keys.describe(tmp_path)
    assert described["model_class"] == "LlamaForCausalLM"
    assert described["shapes"]["model.norm.weight"] == [64]


@pytest.mark.parametrize(("architectures", "reason"), [(None, "does not say"), (["Own"], "names Own, a class that")])
def test_why_the_keys_are_not_known(built, tmp_path, architectures, reason):
    built.config.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    changed = built.config.from_pretrained(tmp_path)
    changed.architectures = architectures
    changed.save_pretrained(tmp_path)
    assert (tmp_path / "config.json").read_text() != text
    assert reason in model_keys.describe(tmp_path)["unchecked"]
