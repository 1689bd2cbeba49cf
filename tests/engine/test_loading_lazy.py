"""transformers' own conversions on tensors that only know where their bytes lie, against the same on real ones."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from transformers import core_model_loading as conversions

from zerotune.loading import extents, lazy_tensor, weight_files
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
