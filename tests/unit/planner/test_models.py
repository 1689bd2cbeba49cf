"""Shipped rows against published counts; what is wrong in a config.json is said in one line."""

from __future__ import annotations

import json
import re

import pytest

from zerotune.errors import UsageError
from zerotune.planner.model_rows import ROWS
from zerotune.planner.model_sources import REPOSITORIES, address
from zerotune.planner.models import find_model, read_model, with_lora

# Parameters that the hub shows for the safetensors of each model (tied weights once).
PUBLISHED = {
    "tinyllama-1.1b": 1_100_048_384,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-7b": 8_537_680_896,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-neox-20b": 20_554_567_680,
    "mixtral-8x7b": 46_702_792_704,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "t5-base": 222_903_552,
    "t5-11b": 11_307_321_344,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    assert find_model(name).num_params == PUBLISHED[name]


@pytest.mark.parametrize("name", ROWS)
def test_every_row_reads_and_lists_what_it_counts(name):
    shapes = find_model(name)
    listed = list(shapes.params())
    assert sum(param.numel for param in listed) == shapes.num_params
    assert len({param.name for param in listed}) == len(listed)
    assert shapes.num_active == shapes.num_params or shapes.experts > shapes.active_experts > 0


@pytest.mark.parametrize("name", ["Llama-2-70B", "meta-llama/Llama-2-70b-hf", "llama-2-70b"])
def test_names_as_people_write_them(name):
    assert find_model(name).num_params == PUBLISHED["llama-2-70b"]


def test_active_parameters_of_experts():
    assert find_model("mixtral-8x7b").num_active == pytest.approx(12.9e9, rel=0.01)
    assert find_model("qwen3-30b-a3b").num_active == pytest.approx(3.3e9, rel=0.02)


def test_a_folder_or_a_file(tmp_path):
    config = {"model_type": "llama", **ROWS["llama-2-7b"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert find_model(str(tmp_path)).num_params == PUBLISHED["llama-2-7b"]
    assert find_model(str(tmp_path / "config.json")).num_params == PUBLISHED["llama-2-7b"]


def test_lora_freezes_everything_else():
    shapes = find_model("llama-2-7b")
    adapted = with_lora(shapes, 16)
    per_layer = 16 * (4 * (4096 + 4096) + 3 * (4096 + 11008))
    assert adapted.num_trainable == 32 * per_layer
    assert adapted.num_params == shapes.num_params + 32 * per_layer


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "no model_type"),
        ({"hidden_size": None}, "no 'hidden_size'"),
        ({"hidden_size": None, "hiden_size": 64}, "it has 'hiden_size'"),
        ({"hidden_size": 0}, "must be a count above 0"),
        ({"hidden_size": -4096}, "must be a count above 0"),
        ({"hidden_size": "big"}, "must be a count above 0"),
        ({"hidden_size": True}, "must be a count above 0"),
        ({"num_hidden_layers": 1e30}, "must be a count above 0"),
        ({"num_key_value_heads": 5}, "must be a multiple of num_key_value_heads"),
        ({"num_attention_heads": 24, "num_key_value_heads": 24}, "no multiple of its 24 heads"),
    ],
)
def test_absurd_configs(config, expected):
    base = {} if not config else {**ROWS["llama-2-7b"], **config}
    with pytest.raises(UsageError, match=expected):
        read_model({key: value for key, value in base.items() if value is not None}, "x")


def test_unknown_names():
    with pytest.raises(UsageError, match=r"llama-2-70b"):
        find_model("lama-2-70b")


@pytest.mark.parametrize(("text", "expected"), [("{", "is no JSON"), ("[]", "holds no object")])
def test_files_that_are_no_config(tmp_path, text, expected):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=expected):
        find_model(str(path))


def test_every_row_has_an_address():
    assert set(REPOSITORIES) == set(ROWS)
    assert all(
        re.fullmatch(r"https://huggingface.co/[\w.-]+/[\w.-]+/blob/main/config.json", address(name)) for name in ROWS
    )
