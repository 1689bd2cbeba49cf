"""Tokenizer, sequences and model of a job, built without ranks."""

from __future__ import annotations

import json
from types import SimpleNamespace

import datasets
import pytest

from zerotune.training import arguments, build
from zerotune.training.data import corpus

SMALL = "hidden_size=32,intermediate_size=64,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=2"


@pytest.fixture
def tokenizer(tmp_path, monkeypatch) -> str:
    """A folder with a tokenizer that has no chat template."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets_cache")
    made = corpus.train_tokenizer(iter(["hello yes no user assistant"] * 9), 300)
    made.chat_template = None
    made.save_pretrained(tmp_path / "tokenizer")
    return str(tmp_path / "tokenizer")


def test_chats_in_the_validation_data_alone_get_a_template(tokenizer, tmp_path):
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"}]
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": "hello yes"}) + "\n")
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    data = ["--dataset_name", str(tmp_path / "texts.jsonl"), "--validation_name", str(tmp_path / "chats.jsonl")]
    flags = ["--tokenizer_name", tokenizer, "--config_overrides", SMALL, "--max_seq_length", "32", "--plan", "off"]
    training_args = SimpleNamespace(seed=1, eval_strategy="no", bf16=False, fp16=False)
    parts = build.build(arguments.parse([*data, *flags]), training_args)
    labels = parts.validation[0]["labels"]
    assert parts.tokenizer.decode(labels[labels >= 0]) == "yes<|im_end|>\n"
