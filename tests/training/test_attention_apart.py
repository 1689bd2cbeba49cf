"""Packed neighbours: what one segment computes must not depend on what stands beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from zerotune.errors import UsageError
from zerotune.training import attention, packed_apart
from zerotune.training.data.collate import Collate
from zerotune.training.data.packing import fill_block
from zerotune.training.trainer import row_loss_sums

BLOCK = 24


def model(attn: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=50, num_key_value_heads=2, **sizes)
    net = LlamaForCausalLM._from_config(config, attn_implementation=attn).eval()
    net.config.use_cache = False  # as in training: with a cache transformers ignores restarting positions
    return net


def segment(seed: int, length: int):
    ids = np.random.default_rng(seed).integers(0, 50, length)
    return ids, ids


@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_a_packed_segment_computes_what_it_computes_alone(attn):
    one, two, other = segment(1, 10), segment(2, 9), segment(3, 10)
    net, collate = model(attn), Collate(attn)
    with torch.no_grad():
        packed = collate([fill_block([one, two], BLOCK, 0)])
        logits = net(input_ids=packed["input_ids"], position_ids=packed["position_ids"]).logits
        alone = net(input_ids=torch.as_tensor(two[0])[None]).logits
        beside = collate([fill_block([other, two], BLOCK, 0)])
        changed = net(input_ids=beside["input_ids"], position_ids=beside["position_ids"]).logits
    torch.testing.assert_close(logits[0, 10:19], alone[0])
    torch.testing.assert_close(changed[0, 10:19], logits[0, 10:19])
    # The check can fail: without positions the second segment sees the first.
    blind = net(input_ids=packed["input_ids"]).logits
    assert (blind[0, 10:19] - alone[0]).abs().max() > 1e-3


def test_flash_batches_are_one_row_with_the_bounds_of_every_segment():
    rows = [fill_block([segment(1, 10), segment(2, 9)], BLOCK, 0), fill_block([segment(3, BLOCK)], BLOCK, 0)]
    batch = Collate("flash_attention_2")(rows)
    assert batch["input_ids"].shape == (1, 2 * BLOCK)
    assert batch["cu_seq_lens_q"].tolist() == [0, 10, 19, 24, 48]
    assert batch["max_length_q"] == 24
    assert batch["real_tokens"].tolist() == [19, 24]


def test_unpacked_batches_are_trimmed_to_the_longest_row_and_masked():
    rows = [fill_block([segment(1, 5)], BLOCK, 0), fill_block([segment(2, 11)], BLOCK, 0)]
    batch = Collate("flash_attention_2", packing=False)(rows)
    assert batch["input_ids"].shape == (2, 16)
    assert batch["attention_mask"].sum(dim=1).tolist() == [5, 11]
    assert "position_ids" not in batch


def other_model(model_type: str):
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
    }
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, vocab_size=50, **sizes))


def test_a_model_that_leaks_is_refused_and_one_that_does_not_passes():
    collate = Collate("sdpa")
    packed_apart.prove(model("sdpa"), collate, "llama", 50, "cpu")
    with pytest.raises(UsageError, match=r"opt.*attend to each other.*--packing False"):
        packed_apart.prove(other_model("opt"), collate, "opt", 50, "cpu")
    with pytest.raises(UsageError, match=r"bloom.*takes no position_ids"):
        packed_apart.require_positions(other_model("bloom"))


def test_the_loss_of_flattened_rows_is_that_of_the_rows():
    torch.manual_seed(0)
    logits, labels = torch.randn(3, 7, 11), torch.randint(0, 11, (3, 7))
    labels[:, 0] = -100
    labels[1, 3] = -100
    rows = row_loss_sums(logits, labels, 3)
    flat = row_loss_sums(logits.reshape(1, 21, 11), labels.reshape(1, 21), 3)
    torch.testing.assert_close(rows, flat)
    wanted = torch.nn.functional.cross_entropy(logits[1, :-1], labels[1, 1:], reduction="sum")
    assert rows[1, 0].item() == pytest.approx(wanted.item(), rel=1e-6)
    assert rows[:, 1].tolist() == [6, 5, 6]


def test_auto_takes_pytorch_without_gpu_and_says_why():
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert attention.choose("auto") == ("sdpa", "PyTorch's own kernels: no GPU")
