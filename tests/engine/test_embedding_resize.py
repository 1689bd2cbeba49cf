"""Tokens that a tokenizer gained: the embedding grows by rows, under every stage, and keeps what it knew."""

from __future__ import annotations

import pytest

from tests.engine import forked_ranks
from tests.jobs import REPO

pytestmark = pytest.mark.slow
OLD, NEW = 100, 103


def resize_and_train(template: str, tied: bool, model_folder: str, out: str) -> dict:
    """Load a saved model of OLD tokens for NEW tokens, compare its rows, and take two optimizer steps."""
    import deepspeed
    import torch
    from datasets import Dataset
    from transformers import AutoConfig, Trainer, TrainingArguments

    from zerotune.training import arguments, model

    deepspeed.init_distributed(verbose=False)
    options = {"per_device_train_batch_size": 2, "max_steps": 2, "save_strategy": "no", "disable_tqdm": True}
    config_file = str(REPO / "ds_configs" / f"{template}.json")
    training_args = TrainingArguments(output_dir=out, deepspeed=config_file, use_cpu=True, logging_steps=1, **options)
    args = arguments.parse(["--model_name_or_path", model_folder, "--attn", "sdpa"])
    built = model.build(args, AutoConfig.from_pretrained(model_folder), training_args, NEW)
    rows = {}
    for name, parameter in (("in", built.get_input_embeddings().weight), ("out", built.get_output_embeddings().weight)):
        with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
            rows[name] = parameter.detach().clone().float()
    tokens = [[OLD + 1, 5, OLD + 2, 7, 8, 9, OLD, 3]] * 16
    data = Dataset.from_dict({"input_ids": tokens, "labels": tokens})
    trainer = Trainer(model=built, args=training_args, train_dataset=data)
    trainer.train()
    partitioned = [hasattr(one, "ds_id") for one in trainer.model.parameters()]
    return {
        "rows": {name: value.tolist() for name, value in rows.items()},
        "vocab_size": built.config.vocab_size,
        "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
        "tied": built.get_input_embeddings().weight is built.get_output_embeddings().weight,
        "partitioned": all(partitioned) if template.startswith("stage3") else not any(partitioned),
        "finite": bool(torch.isfinite(torch.tensor(rows["in"].tolist())).all()),
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folders = {}
    for tied in (True, False):
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = LlamaConfig(vocab_size=OLD, num_key_value_heads=2, tie_word_embeddings=tied, **sizes)
        made = LlamaForCausalLM(config)
        folder = tmp_path_factory.mktemp("tied" if tied else "untied")
        made.save_pretrained(folder)
        folders[tied] = (folder, made.lm_head.weight.detach(), made.model.embed_tokens.weight.detach())
    return folders


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("template", ["stage2", "stage3", "stage3_offload"])
def test_rows_are_added_and_the_old_ones_kept(template, tied, saved, tmp_path):
    import torch

    folder, head, embedding = saved[tied]
    for held in forked_ranks.run(resize_and_train, 2, template, tied, str(folder), str(tmp_path)):
        assert held["vocab_size"] >= NEW
        torch.testing.assert_close(torch.tensor(held["rows"]["in"])[:OLD], embedding)
        torch.testing.assert_close(torch.tensor(held["rows"]["out"])[:OLD], head)
        assert len(held["rows"]["in"]) == len(held["rows"]["out"]) == held["vocab_size"]
        assert held["finite"]
        assert held["tied"] == tied
        assert held["partitioned"]
        assert held["losses"][1] < held["losses"][0]
