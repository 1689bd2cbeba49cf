"""The model card says where the weights come from, in plain English."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zerotune.checkpointing.model_card import model_card


@pytest.mark.parametrize(("ranks", "words"), [(1, "ZeRO stage 2 on 1 rank |"), (8, "ZeRO stage 2 on 8 ranks |")])
def test_ranks_are_counted(ranks, words):
    zero = SimpleNamespace(stage=2, world_size=ranks, step=5, deepspeed_version="0.19.8")
    opened = SimpleNamespace(zero=zero, adapter=None, model_folder=None)
    card = model_card(opened, {"architectures": ["LlamaForCausalLM"], "transformers_version": "5"}, "bf16", 10)
    assert words in card
