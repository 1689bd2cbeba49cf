"""Whole jobs, started as a user starts them, judged by what they print and leave on disk."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CASES = Path(__file__).resolve().parent.parent / "cases"
TINY = (
    "--config_overrides",
    "hidden_size=64,intermediate_size=128,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=2",
)
SMALL = (*TINY, "--vocab_size", "1024", "--report_to", "none")


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses(folder: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in metrics(folder) if "loss" in row}


def plain_loss(model_folder: Path, rows) -> float:
    """Validation loss by plain transformers on plain batches of one: no zerotune code computes it."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    total, count = 0.0, 0
    with torch.no_grad():
        for row in rows:
            tensors = {key: torch.as_tensor(row[key])[None] for key in ("input_ids", "position_ids")}
            log_probability = model(**tensors).logits[0, :-1].log_softmax(-1)
            wanted = torch.as_tensor(row["labels"])[1:]
            kept = wanted != -100
            total -= log_probability[kept].gather(-1, wanted[kept][:, None]).sum().item()
            count += int(kept.sum())
    return total / count


@pytest.fixture(scope="module")
def default_run(jobs):
    """The default job on 2 ranks under `deepspeed`, shortened, with a checkpoint half way."""
    folder = jobs.cwd / "default"
    ended = jobs.train(
        *("--ds", "stage3_offload", "--max_steps", "40", "--save_steps", "20", "--logging_steps", "1"),
        *("--output_dir", str(folder)),
        launcher="deepspeed",
        ranks=2,
        WANDB_MODE="",
    )
    assert ended.code == 0, ended.output[-4000:]
    return folder, ended


def test_the_default_job_beats_the_unigram_model(default_run):
    _, ended = default_run
    unigram = float(re.search(r"unigram validation loss: ([\d.]+)", ended.output)[1])
    last = float(re.search(r"last evaluation: validation loss ([\d.]+)", ended.output)[1])
    assert last < unigram - 0.2


def test_one_rank_speaks(default_run):
    _, ended = default_run
    assert len(ended.lines("unigram validation loss")) == 1
    assert len(ended.lines("zerotune: model:")) == 1


def test_metrics_hold_speed_and_memory(default_run):
    folder, _ = default_run
    row = next(row for row in metrics(folder) if row["step"] == 30 and "loss" in row)
    assert {"loss", "learning_rate", "grad_norm", "tokens_per_s", "all_tokens_per_s", "host_rss_gib"} <= set(row)
    assert 0 < row["tokens_per_s"] <= row["all_tokens_per_s"]


def test_the_plan_stands_beside_what_was_measured(default_run):
    folder, ended = default_run
    assert len(ended.lines("zerotune: plan: ")) == 3
    assert len(ended.lines("zerotune: planned: host peak of a rank")) == 1
    rows = [row for row in metrics(folder) if "planned/host_peak_gib" in row]
    assert [row["step"] for row in rows] == [0, 40]
    for name in ("host_peak_gib", "step_s"):
        assert rows[-1][f"planned/{name}"] > 0 and rows[-1][f"measured/{name}"] > 0
    # Tokenising in this process leaves more behind than the model takes; the plan counts the training alone.
    assert rows[-1]["planned/host_peak_gib"] < rows[-1]["measured/host_peak_gib"] + 0.3


def test_a_run_that_cannot_fit_is_refused_before_its_model(jobs):
    """800 layers of 8192 in fp32: on no machine that runs these tests."""
    size = "hidden_size=8192,intermediate_size=28672,num_hidden_layers=800,num_attention_heads=64,num_key_value_heads=8"
    ended = jobs.train("--ds", "stage1", "--config_overrides", size, "--output_dir", str(jobs.cwd / "too_large"))
    assert ended.code == 2, ended.output[-4000:]
    assert "zerotune: error: this run cannot fit: each node's memory lacks" in ended.output
    assert "Traceback" not in ended.output and not ended.lines("zerotune: model:")
    assert not (jobs.cwd / "too_large").exists()


def test_wandb_is_one_offline_run_without_a_key(default_run):
    folder, ended = default_run
    assert "W&B: offline (no API key" in ended.output
    assert len(list((folder / "wandb").glob("offline-run-*"))) == 1


def test_the_exported_model_scores_the_last_evaluation(default_run, jobs, monkeypatch):
    folder, _ = default_run
    for name in ("ZEROTUNE_CACHE", "HF_HOME"):
        monkeypatch.setenv(name, jobs.environment[name])
    from zerotune.training import arguments, model
    from zerotune.training.data import prepare, sources

    args = arguments.parse(["--max_eval_samples", "64"])
    _, raw = sources.load(args.data, 42)
    rows, _ = prepare.make(raw, args.data, model.tokenizer(args), 256, "validation", 1, 64)
    reported = json.loads((folder / "train_results.json").read_text())["eval_loss"]
    assert plain_loss(folder / "model", rows) == pytest.approx(reported, abs=0.01)  # the export is bf16


def test_resume_repeats_the_uninterrupted_losses(default_run, jobs):
    folder, _ = default_run
    before = losses(folder)
    again = jobs.cwd / "resumed"
    ended = jobs.train(
        *("--ds", "stage3_offload", "--max_steps", "40", "--save_steps", "20", "--logging_steps", "1"),
        *("--output_dir", str(again), "--resume_from_checkpoint", str(folder / "checkpoint-20")),
        *("--report_to", "none", "--export", "False"),
        launcher="deepspeed",
        ranks=2,
    )
    assert ended.code == 0, ended.output[-4000:]
    after = losses(again)
    assert sorted(after) == list(range(21, 41))
    # One unit in the last place of fp32: CPU sums of the same numbers depend on how a buffer happens to be aligned.
    assert after == {step: pytest.approx(before[step], abs=1e-6) for step in after}


def test_old_checkpoints_go_and_plain_python_trains_chats(jobs):
    folder = jobs.cwd / "chats"
    ended = jobs.train(
        *("--ds", "stage2", "--dataset_name", str(CASES / "chats.jsonl"), *SMALL, "--max_seq_length", "128"),
        *("--max_steps", "6", "--save_steps", "2", "--save_total_limit", "2", "--output_dir", str(folder)),
        *("--per_device_train_batch_size", "2", "--logging_steps", "1"),
    )
    assert ended.code == 0, ended.output[-4000:]
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]
    assert not (folder / "wandb").exists()


def test_torchrun_trains_prompts_without_packing_in_bf16(jobs):
    folder = jobs.cwd / "prompts"
    ended = jobs.train(
        *("--ds", "stage3", "--dataset_name", str(CASES / "prompts.csv"), *SMALL, "--packing", "False", "--bf16"),
        *("--max_steps", "3", "--output_dir", str(folder), "--max_seq_length", "128", "--logging_steps", "1"),
        *("--per_device_train_batch_size", "2"),
        launcher="torchrun",
        ranks=2,
    )
    assert ended.code == 0, ended.output[-4000:]
    assert (folder / "model" / "model.safetensors").is_file()
    row = [row for row in metrics(folder) if "loss" in row][-1]
    assert row["tokens_per_s"] < row["all_tokens_per_s"]  # padded: fewer real tokens than positions


def test_the_launch_file_for_one_machine(jobs, tmp_path):
    from tests.jobs import REPO, free_port, start_and_wait

    port = free_port()
    flags = [*SMALL, "--max_steps", "2", "--output_dir", str(tmp_path / "run"), "--max_seq_length", "64"]
    environment = {**jobs.environment, "MASTER_PORT": str(port), "NUM_GPUS": "1"}
    ended = start_and_wait(["bash", str(REPO / "launch" / "one_machine.sh"), *flags], port, environment, jobs.cwd, 300)
    assert ended.code == 0, ended.output[-4000:]
    assert (tmp_path / "run" / "train_results.json").is_file()
