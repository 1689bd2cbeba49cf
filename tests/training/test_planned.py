"""The plan that train.py makes before its model, and what it writes beside it."""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

import pytest

transformers = pytest.importorskip("transformers")

from zerotune.ds_config.resolve import resolve  # noqa: E402
from zerotune.errors import UsageError  # noqa: E402
from zerotune.planner import this_machine  # noqa: E402
from zerotune.planner.model_rows import ROWS  # noqa: E402
from zerotune.planner.search import TRAIN_FLAGS  # noqa: E402
from zerotune.reporting.metrics import Meter, MetricsFile  # noqa: E402
from zerotune.reporting.planned import Beside, figures, in_words  # noqa: E402
from zerotune.training import arguments, planned  # noqa: E402


@pytest.fixture(autouse=True)
def h100(monkeypatch):
    """Two H100 in one node with 1 TiB."""
    monkeypatch.setattr(this_machine, "host_bytes", lambda: 2**40)
    monkeypatch.setattr(planned, "cluster", lambda: this_machine.of_ranks("NVIDIA H100 80GB HBM3", 79 << 30, 1, 2))


def model(name: str):
    row = dict(ROWS[name])
    return transformers.AutoConfig.for_model(row.pop("model_type"), **row)


def check(config, *flags: str, ds: str = "stage3", seq: int = 1024, vocab: int = 100, **values):
    args = arguments.parse(["--ds", ds, "--attn", "sdpa", *flags])
    given = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "bf16": True, **values}
    made = SimpleNamespace(hf_deepspeed_config=SimpleNamespace(config=resolve(ds).config), **given)
    return planned.check(args, config, made, seq, vocab)


def test_a_run_that_fits_is_told_in_three_lines(capsys):
    plan = check(model("llama-3.2-1b"))
    lines = capsys.readouterr().out.splitlines()
    assert plan.verdict.fits and len(lines) == 3
    assert lines[0] == "zerotune: plan: fits: 1.24B on 2xH100-80GB, stage 3"
    assert "of H100-80GB" in lines[1] and "each node's memory" in lines[1] and "tokens/s" in lines[2]


def test_a_run_that_cannot_fit_is_refused_with_terms_and_ways_out():
    with pytest.raises(UsageError) as refusal:
        check(model("llama-3-8b"), ds="stage1")
    text = str(refusal.value)
    assert text.startswith("this run cannot fit: H100-80GB lacks ")
    for words in ("79.0 GiB there", "Rank 0 would hold\n", "fp32 weights", "--ds stage3_offload: ", "--plan warn"):
        assert words in text
    assert "lora" not in text and "--grad-checkpointing" not in text  # flags of zerotune-config plan


def test_ways_out_are_flags_of_train():
    known = {option for action in arguments.parser()._actions for option in action.option_strings}
    named = [words.split()[0] for words in vars(TRAIN_FLAGS).values() if words and words.startswith("--")]
    assert len(named) == 4 and set(named) <= known
    with pytest.raises(UsageError, match="--activation_checkpointing and --use_liger_kernel"):
        check(model("llama-3.2-1b"), ds="stage3_offload", seq=65536)


def test_warn_goes_on_and_off_is_silent(capsys):
    assert not check(model("llama-3-8b"), "--plan", "warn", ds="stage1").verdict.fits
    assert "zerotune: warning: this run cannot fit" in capsys.readouterr().out
    assert check(model("llama-3-8b"), "--plan", "off", ds="stage1") is None
    assert capsys.readouterr().out == ""


def test_what_is_near_the_limit_starts(monkeypatch, capsys):
    needed = check(model("llama-3.2-1b")).gpu_worst.num_bytes
    barely = this_machine.of_ranks("NVIDIA H100 80GB HBM3", int(needed * 0.98), 1, 2)
    monkeypatch.setattr(planned, "cluster", lambda: barely)
    capsys.readouterr()
    assert not check(model("llama-3.2-1b")).verdict.fits
    assert "plan: does not fit, within the error band: " in capsys.readouterr().out


class Unheard(transformers.PretrainedConfig):
    model_type = "unheard"


@pytest.mark.parametrize(
    ("values", "config", "gpu"),
    [
        ({"optim": "adamw_8bit"}, model("gpt2"), None),
        ({}, Unheard(hidden_size=8), None),
        ({}, model("gpt2"), "Quadro 9"),
        ({"fp16": True, "bf16": False}, model("gpt2"), "cpu"),
    ],
)
def test_what_no_plan_can_be_made_of_starts_all_the_same(monkeypatch, capsys, values, config, gpu):
    if gpu:
        found = None if gpu == "cpu" else gpu
        monkeypatch.setattr(planned, "cluster", lambda: this_machine.of_ranks(found, 2**33, 1, 1))
    ds = "stage1" if "optim" not in values else "stage2"
    given = SimpleNamespace(
        hf_deepspeed_config=SimpleNamespace(config={"zero_optimization": {"stage": int(ds[-1])}}),
        **{"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "bf16": True, **values},
    )
    args = arguments.parse(["--ds", ds, "--attn", "sdpa"])
    assert planned.check(args, config, given, 64, 100) is None
    out = capsys.readouterr().out
    assert out.startswith("zerotune: no plan could be made: ") and out.count("\n") == 1


def test_the_embedding_grows_to_the_tokenizer():
    before, after = check(model("llama-3.2-1b")), check(model("llama-3.2-1b"), vocab=128300)
    assert after.run.shapes.num_params - before.run.shapes.num_params == 2048 * (128320 - 128256)


def test_a_plan_costs_next_to_nothing():
    check(model("gpt2"))
    started = time.process_time()
    plan = check(model("llama-2-70b"), "--plan", "warn", ds="stage3_offload")
    assert plan.run.shapes.num_params == 68_976_648_192
    assert time.process_time() - started < 1.0  # 0.3 s on an idle machine


class WandbRun:
    def __init__(self):
        self.logged = []

    def log(self, values):
        self.logged.append(values)


def test_planned_stands_beside_measured(tmp_path, capsys, monkeypatch):
    run = WandbRun()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    plan = check(model("llama-3.2-1b"))
    capsys.readouterr()
    assert set(figures(plan)) == {"gpu_peak_gib", "load_host_gib", "host_peak_gib", "step_s"}
    metrics, meter = MetricsFile(tmp_path / "metrics.jsonl"), Meter(1.0, None)
    beside = Beside({"host_peak_gib": 2.0, "step_s": 3.0}, meter, metrics)
    state = SimpleNamespace(is_world_process_zero=True, global_step=0)
    beside.on_train_begin(None, state, None)
    for step_s in (9.0, 2.0, 4.0):
        beside.on_log(None, state, None, logs={"step_s": step_s})
    beside.on_train_end(None, state, None)
    first, last = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert first["planned/step_s"] == 3.0 and first["measured/load_host_gib"] > 0
    assert last["measured/step_s"] == 3.0 and last["planned/step_s"] == 3.0
    assert [one["measured/step_s"] for one in run.logged] == [9.0, 2.0, 4.0, 3.0]
    assert all(one["planned/step_s"] == 3.0 and "train/global_step" in one for one in run.logged)
    seen = last["measured/host_peak_gib"]
    assert f"host peak of a rank 2 GiB (measured {seen:.3g}" in capsys.readouterr().out


def test_by_how_much_a_plan_was_off():
    planned_values = {"gpu_peak_gib": 50.0, "host_peak_gib": 3.0, "step_s": 0.5}
    assert in_words(planned_values, {"gpu_peak_gib": 40.0, "step_s": 1.0}) == (
        "GPU peak 50 GiB (measured 40, plan +25.0%), step 0.5 s (measured 1, plan -50.0%)"
    )
