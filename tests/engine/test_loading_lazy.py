"""transformers' own conversions on tensors that only know where their bytes lie, against the same on real ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers import core_model_loading as conversions

from tests.engine import tiny_models
from zerotune.errors import UsageError
from zerotune.loading import engine_config, extents, lazy_tensor, load_pretrained, stock, weight_files
from zerotune.loading.filling import Goal, Reader

EXPERTS = {f"mlp.experts.{number}.{name}.weight": (6, 4) for number in range(3) for name in ("gate_proj", "up_proj")}
CASES = {
    "experts stacked and joined": (
        EXPERTS,
        ["mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"],
        "mlp.experts.gate_up_proj",
        [conversions.MergeModulelist(dim=0), conversions.Concatenate(dim=1)],
    ),
    "chunks": ({"qkv": (12, 5)}, "qkv", ["q", "k", "v"], [conversions.Chunk(dim=0)]),
    "chunks of columns": ({"qkv": (5, 12)}, "qkv", ["q", "k", "v"], [conversions.Chunk(dim=1)]),
    "list of one": ({"w": (3, 4, 5)}, "w", "x.*.w", [conversions.SplitModulelist(dim=0)]),
    "joined": ({"a": (3, 4), "b": (5, 4)}, ["a", "b"], "ab", [conversions.Concatenate(dim=0)]),
    "transposed": ({"a": (3, 4)}, "a", "b", [conversions.Transpose(0, 1)]),
    "experts transposed": ({"a": (3, 4, 6)}, "a", "b", [conversions.Transpose(1, 2)]),
    "interleaved": ({"a": (3, 8)}, "a", "b", [conversions.Interleave(dim=1)]),
    "interleaved and cut": ({"a": (8, 3)}, "a", ["b", "c"], [conversions.Interleave(dim=0), conversions.Chunk(dim=0)]),
    "flattened": ({"a": (4, 3, 2, 2, 2)}, "a", "b", [conversions.Conv3dToLinear(3, (2, 2, 2))]),
}


def converted(tensors: dict, sources, targets, operations) -> dict:
    """Run a WeightConverter as transformers' loading does."""
    converter = conversions.WeightConverter(sources, targets, operations)
    for name in sorted(tensors, key=conversions.dot_natural_key):
        renamed, pattern = converter.rename_source_key(name)
        converter.add_tensor(renamed, name, pattern, lambda one=tensors[name]: one)
    outcome = converter.convert(renamed)
    return {name: one[0] if isinstance(one, list) else one for name, one in outcome.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("case", CASES)
def test_conversions(case, dtype, tmp_path):
    shapes, *converter = CASES[case]
    real = {name: torch.randn(shape).to(torch.bfloat16) for name, shape in shapes.items()}
    save_file(real, tmp_path / "model.safetensors")
    lazy = {name: lazy_tensor.stored(one) for name, one in weight_files.read_folder(tmp_path).items()}
    expected = converted({name: one.to(dtype) for name, one in real.items()}, *converter)
    found = converted({name: one.to(dtype) for name, one in lazy.items()}, *converter)
    assert list(found) == list(expected)
    for name, weight in found.items():
        assert (weight.shape, weight.dtype) == (expected[name].shape, dtype)
        assert weight.extent is not None, "read in parts, not computed"
        for ranks in (1, 3, 4):
            assert torch.equal(in_parts(weight, ranks), expected[name].reshape(-1))


def in_parts(weight, ranks: int) -> torch.Tensor:
    """What all ranks read together; the padding must be zero."""
    share = -(-weight.numel() // ranks)
    parts = [torch.full((share,), torch.nan, dtype=weight.dtype) for _ in range(ranks)]
    for rank, part in enumerate(parts):
        reader = Reader()
        reader.fill([Goal(weight, part, share * rank)])
        assert reader.bytes_read == 2 * max(0, min(share, weight.numel() - share * rank))
        reader.close()
    together = torch.cat(parts)
    assert not together[weight.numel() :].any()
    return together[: weight.numel()]


def test_what_computes_is_repeated_on_whole_tensors(tmp_path):
    real = {"a": torch.randn(4, 6), "b": torch.randn(6, 5)}
    save_file(real, tmp_path / "model.safetensors")
    lazy = {name: lazy_tensor.stored(one) for name, one in weight_files.read_folder(tmp_path).items()}
    product = (lazy["a"] @ lazy["b"]).transpose(0, 1).reshape(2, 10) * 2
    assert product.extent is None
    part = torch.empty(7)
    Reader().fill([Goal(product, part, 3)])
    expected = (real["a"] @ real["b"]).transpose(0, 1).reshape(2, 10) * 2
    assert torch.equal(part, expected.reshape(-1)[3:10])


def test_a_large_transpose_is_read_whole_and_is_right(tmp_path, monkeypatch):
    monkeypatch.setattr(extents, "MOST_RUNS", 5)
    real = torch.randn(8, 6)
    save_file({"a": real}, tmp_path / "model.safetensors")
    lazy = lazy_tensor.stored(weight_files.read_folder(tmp_path)["a"]).transpose(0, 1)
    part, reader = torch.empty(10), Reader()
    reader.fill([Goal(lazy, part, 5)])
    assert torch.equal(part, real.t().reshape(-1)[5:15])
    assert reader.bytes_read == 8 * 6 * 4


def test_equality_is_asked_of_whoever_reads(tmp_path):
    save_file({"a": torch.zeros(3), "b": torch.zeros(3)}, tmp_path / "model.safetensors")
    one, other = (lazy_tensor.stored(tensor) for tensor in weight_files.read_folder(tmp_path).values())
    for answer in (True, False):
        with lazy_tensor.comparing(lambda *pair, answer=answer: answer):
            assert torch.equal(one, other) is answer


@pytest.mark.parametrize(
    ("config", "ds_config", "reason"),
    [
        ({"quantization_config": {"bits": 4}}, {}, "quantized"),
        ({"auto_map": {"AutoModelForCausalLM": "own.Model"}}, {}, "code comes with the model"),
        ({}, {"tensor_parallel": {"autotp_size": 2}}, "autotp_size"),
    ],
)
def test_what_is_left_to_from_pretrained(config, ds_config, reason):
    assert reason in stock.why(SimpleNamespace(**config), engine_config.read(ds_config))
    assert stock.why(SimpleNamespace(), engine_config.read({})) is None


def test_the_switch_says_so_and_gives_the_same_model(tmp_path, monkeypatch, capsys):
    folder = tiny_models.save("qwen3_moe", tmp_path / "model")
    mine = load_pretrained(folder)
    monkeypatch.setenv(stock.SWITCH, "1")
    theirs = load_pretrained(folder)
    assert "loaded by transformers' from_pretrained" in capsys.readouterr().out
    assert mine.load_report.compared and not hasattr(theirs, "load_report")
    assert mine.dtype == theirs.dtype == torch.bfloat16
    assert all(torch.equal(one, theirs.state_dict()[name]) for name, one in mine.state_dict().items())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ds_config": {"zero_optimization": {"stage": 3}}}, "init_distributed"),
        ({"ds_config": "none.json"}, "none.json: cannot be read"),
        ({"dtype": "bf17"}, "no such type"),
        ({"allow_keys": ["("]}, "no regular expression"),
        ({"model_class": transformers.AutoModelForSeq2SeqLM}, "no model of this type"),
    ],
)
def test_arguments_that_cannot_be(arguments, message, tmp_path):
    folder = tiny_models.save("llama", tmp_path / "model")
    with pytest.raises(UsageError, match=message):
        load_pretrained(folder, **arguments)


def test_all_shapes_that_differ_are_named_at_once(tmp_path):
    folder = tiny_models.save("llama", tmp_path / "model")
    config = transformers.AutoConfig.from_pretrained(folder, intermediate_size=80)
    with pytest.raises(UsageError, match="other shape") as raised:
        load_pretrained(folder, config=config)
    told = str(raised.value)
    assert "other shape (6)" in told
    assert "model.layers.{0, 1}.mlp.down_proj.weight: [66, 90] in the files, [66, 80] in the model" in told
    assert "allow_keys" not in told


@pytest.mark.parametrize("name", ["llama", "not/a/name/of/a/hub", "./none", "~/none"])
def test_folders_that_are_not_there(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="no such folder"):
        load_pretrained(name)
