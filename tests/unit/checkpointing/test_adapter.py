"""LoRA runs: names as PEFT has them, and the merge against numpy. The engine tests compare with PEFT itself."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from zerotune.checkpointing import weight_reader
from zerotune.checkpointing.adapter import adapter_only, is_adapter, merged
from zerotune.checkpointing.checkpoint_folder import OpenedCheckpoint
from zerotune.checkpointing.safetensors_source import read_safetensors_folder
from zerotune.checkpointing.shard_plan import plan_shards
from zerotune.checkpointing.shard_writer import ShardWriter
from zerotune.checkpointing.weight_reader import RangeReader, converted_chunks
from zerotune.checkpointing.zero_shards import ZeroCheckpoint
from zerotune.errors import UsageError

LAYER = "base_model.model.layers.0.q_proj"
ADAPTER = {"peft_type": "LORA", "r": 2, "lora_alpha": 8}


def numbers(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


@pytest.fixture
def trained():
    return {
        f"{LAYER}.lora_A.default.weight": numbers(2, 7),
        f"{LAYER}.lora_B.default.weight": numbers(5, 2),
        "base_model.model.head.modules_to_save.default.weight": numbers(3, 7),
        "base_model.model.head.original_module.weight": numbers(3, 7) * 0,
        "base_model.model.norm.weight": numbers(7),
    }


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "base"
    folder.mkdir()
    weights = {"layers.0.q_proj.weight": numbers(5, 7), "head.weight": numbers(3, 7) + 1, "norm.weight": numbers(7) + 1}
    save_file(weights, folder / "model.safetensors")
    return folder


@pytest.fixture
def opened(tmp_path, trained, base):
    folder = tmp_path / "trained"
    folder.mkdir()
    save_file(trained, folder / "model.safetensors")
    zero = ZeroCheckpoint(folder, 3, 2, tensors=read_safetensors_folder(folder))
    return OpenedCheckpoint(zero, None, adapter={**ADAPTER, "base_model_name_or_path": str(base)}, companions=folder)


def written(opened, folder):
    folder.mkdir()
    shards = plan_shards(opened.zero.tensors, "fp32", 10**9)
    ShardWriter(folder, workers=2).write(shards)
    return load_file(folder / "model.safetensors")


def test_the_adapter_alone_has_the_names_that_peft_saves(opened, trained, tmp_path):
    assert is_adapter(opened)
    weights = written(adapter_only(opened), tmp_path / "out")
    assert set(weights) == {
        f"{LAYER}.lora_A.weight",
        f"{LAYER}.lora_B.weight",
        "base_model.model.head.weight",
    }
    np.testing.assert_array_equal(weights[f"{LAYER}.lora_A.weight"], trained[f"{LAYER}.lora_A.default.weight"])


@pytest.mark.parametrize(
    ("change", "scale"),
    [
        ({}, 8 / 2),
        ({"use_rslora": True}, 8 / 2**0.5),
        ({"alpha_pattern": {"q_proj": 3}}, 3 / 2),
        ({"alpha_pattern": {"k_proj": 3}}, 8 / 2),
    ],
)
def test_merged_weights_are_base_plus_scaled_product(opened, trained, base, tmp_path, change, scale):
    opened.adapter.update(change)
    weights = written(merged(opened, None), tmp_path / "out")
    product = trained[f"{LAYER}.lora_B.default.weight"] @ trained[f"{LAYER}.lora_A.default.weight"]
    expected = load_file(base / "model.safetensors")["layers.0.q_proj.weight"] + np.float32(scale) * product
    np.testing.assert_allclose(weights["layers.0.q_proj.weight"], expected, rtol=1e-6)
    np.testing.assert_array_equal(weights["norm.weight"], trained["base_model.model.norm.weight"])
    np.testing.assert_array_equal(
        weights["head.weight"], trained["base_model.model.head.modules_to_save.default.weight"]
    )
    assert len(weights) == 3


def test_a_part_of_a_merged_weight_equals_the_whole_in_every_bit(opened, monkeypatch):
    """Samples and resumed shards are compared by reading ranges that cut rows and blocks."""
    monkeypatch.setattr(weight_reader, "CHUNK_ELEMENTS", 14)
    shard = plan_shards(merged(opened, None).zero.tensors, "bf16", 10**9)[0]
    slot = next(slot for slot in shard.slots if slot.source.delta)

    def read(first, last):
        chunks = [*converted_chunks(RangeReader(), slot, first, last)]
        assert chunks[0][0] == first
        return b"".join(data.tobytes() for _, data, _ in chunks)

    whole = read(0, 35)
    assert len(whole) == 70
    for first, last in [(0, 1), (3, 20), (13, 15), (28, 35), (34, 35)]:
        assert read(first, last) == whole[2 * first : 2 * last]


@pytest.mark.parametrize("option", ["use_dora", "fan_in_fan_out", "lora_bias"])
def test_what_cannot_be_merged_is_sent_to_peft(opened, option):
    opened.adapter[option] = True
    with pytest.raises(UsageError, match=rf"it uses {option}.*merge_and_unload"):
        merged(opened, None)


def test_another_base_model_is_recognised(opened, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    save_file({"layers.0.q_proj.weight": numbers(6, 7)}, other / "model.safetensors")
    with pytest.raises(UsageError, match=r"not the base model of this adapter.*\[5, 7\] has shape \[6, 7\] there"):
        merged(opened, other)


def test_a_base_model_that_is_not_here(opened, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    opened.adapter["base_model_name_or_path"] = "nobody/nothing-7b"
    with pytest.raises(UsageError, match="the base model nobody/nothing-7b is not on this machine"):
        merged(opened, None)


def test_a_damaged_base_is_named(opened, base):
    (base / "model.safetensors").write_bytes(json.dumps({}).encode())
    with pytest.raises(UsageError, match=r"model\.safetensors: missing or damaged"):
        merged(opened, None)
