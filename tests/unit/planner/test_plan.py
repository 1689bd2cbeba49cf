"""zerotune-config plan as a user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zerotune.cli import run
from zerotune.planner.model_rows import ROWS

ROOT = Path(__file__).resolve().parents[3]
TARGET = ("--model", "llama-2-70b", "--gpus", "2x8xA100-80GB", "--host-ram", "1TB")


@pytest.fixture
def call(capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        code = run(["plan", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_70b_target_fits_with_stage3(call):
    code, out, err = call(*TARGET, "--ds", "stage3", "--grad-checkpointing", "--attn", "flash", "--tokens", "1e9")
    assert (code, err) == (0, "")
    assert out.startswith("fits: llama-2-70b (68.98B) on 2x8xA100-80GB, stage 3, bf16, 2048 x 1, recompute")
    for word in ("load", "first step", "steady step", "evaluation", "save", "export", "error band", "left out", "disk"):
        assert word in out


def test_json_adds_up(call):
    code, out, _ = call(*TARGET, "--ds", "stage3", "--grad-checkpointing", "--format", "json")
    plan = json.loads(out)
    assert code == 0 and plan["fits"] and plan["parameters"] == 68_976_648_192
    for memory in ("gpu", "host"):
        for peak in plan[memory].values():
            assert peak["bytes"] == sum(term["bytes"] for term in peak["terms"])
    assert plan["host"]["load"]["node_bytes"] < 68_976_648_192  # every rank reads its own part


def test_what_does_not_fit_says_what_would(call):
    code, out, _ = call("--model", "llama-3-8b", "--gpus", "H100", "--ds", "stage2")
    assert code == 1
    assert "does not fit" in out and "H100-80GB lacks" in out
    assert "--ds stage3_offload: " in out and "--lora-rank 16: " in out and "--gpus 4xH100-80GB: " in out
    assert "--gpus 2xH100-80GB" not in out
    ways = [line.split(":")[0].strip() for line in out.split("it would fit with")[1].splitlines()[1:]]
    assert ways.index("--ds stage3_nvme") > ways.index("--ds stage3_offload_optimizer")  # the slowest of the templates
    assert ways[-2:] == ["--lora-rank 16", "--gpus 4xH100-80GB"]


def test_host_memory_counts(call):
    flags = ("--model", "llama-3-8b", "--gpus", "H100", "--ds", "stage3_offload")
    assert call(*flags, "--host-ram", "1TB")[0] == 0
    code, out, _ = call(*flags, "--host-ram", "64GB")
    assert code == 1 and "each node's memory lacks" in out


def test_best_is_ordered_and_names_commands(call):
    code, out, _ = call(*TARGET, "--best", "--attn", "flash", "--format", "json")
    rows = json.loads(out)
    assert code == 0
    speeds = [row["tokens_per_s"] for row in rows]
    assert speeds == sorted(speeds, reverse=True)
    assert rows[0]["ds"] == "stage3" and "--num_nodes 2" in rows[0]["command"]
    launch_file = (ROOT / "launch" / "two_nodes_8xA100.sh").read_text()
    assert "TEMPLATE:-" + rows[0]["ds"] + "}" in launch_file


def test_best_of_nothing_names_the_least(call):
    code, out, _ = call("--model", "llama-3.1-405b", "--gpus", "2xL4", "--host-ram", "64GB", "--best")
    assert code == 1
    assert out.startswith("nothing fits: the least is ")


def test_lora_takes_less(call):
    flags = ("--model", "llama-2-7b", "--gpus", "A100-40GB", "--ds", "stage2", "--grad-checkpointing")
    assert call(*flags)[0] == 1
    assert call(*flags, "--lora-rank", "16")[0] == 0


def test_a_config_file_decides_what_flags_leave_open(call, tmp_path):
    path = tmp_path / "ds.json"
    block = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    path.write_text(
        json.dumps({"zero_optimization": block, "train_micro_batch_size_per_gpu": 3, "fp16": {"enabled": True}})
    )
    out = call("--model", "gpt2", "--gpus", "V100", "--ds", str(path))[1]
    assert "stage 2, optimizer on cpu, fp16, 1024 x 3" in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1]", "is no config that DeepSpeed could read"),
        ('{"zero_optimization": true}', "zero_optimization is True"),
        ('{"zero_optimization": {"stage": 9}}', "zero_optimization.stage is 9"),
        ('{"zero_optimization": {"stage": 3, "offload_param": {"device": "disk"}}}', "none, cpu or nvme"),
        ('{"train_micro_batch_size_per_gpu": -4}', "--micro-batch -4 must be 1 or more"),
        ('{"data_types": {"grad_accum_dtype": "fp64"}}', "grad_accum_dtype is 'fp64'"),
    ],
)
def test_configs_that_cannot_be_planned(call, tmp_path, text, expected):
    path = tmp_path / "ds.json"
    path.write_text(text)
    code, _, err = call("--model", "gpt2", "--gpus", "H100", "--ds", str(path))
    assert code == 2 and expected in err and err.count("\n") == 1


def test_an_empty_config_is_stage_0(call, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text("{}")
    code, out, _ = call("--model", "gpt2", "--gpus", "H100", "--ds", str(path))
    assert code == 0 and "stage 0" in out


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--model", "lama-2-70b"), "nearest known: llama-2-70b"),
        (("--gpus", "8xA100-60GB"), "A100-80GB"),
        (("--gpus", "0xA100"), "is no number of devices"),
        (("--host-ram", "1XB"), "is no amount of memory"),
        (("--seq", "100000"), "longer than the 4096 positions"),
        (("--seq", "0"), "must be 1 or more"),
        (("--micro-batch", "-1"), "must be 1 or more"),
        (("--tokens", "-5"), "must be above 0"),
        (("--tokens", "nan"), "must be above 0"),
        (("--tokens", "inf"), "must be above 0"),
        (("--lora-rank", "0"), "must be 1 or more"),
        (("--optimizer", "adamm"), "nearest: adam"),
        (("--ds", "stag3"), "stage3"),
        (("--best",), "give either --ds"),
        (("--gpus", "V100", "--precision", "bf16"), "no bf16"),
        (("--plot", "/no/such/folder/plan.png"), "--plot"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(call, flags, expected):
    values = {"--model": "llama-2-7b", "--gpus": "A100", "--ds": "stage3_offload"}
    values |= dict(zip(flags[::2], flags[1::2], strict=False))
    arguments = [word for pair in values.items() for word in pair] + (["--best"] if "--best" in flags else [])
    code, _, err = call(*arguments)
    assert code == 2
    assert expected in err and err.count("\n") == 1 and "Traceback" not in err


def test_a_config_json_with_a_field_missing(call, tmp_path):
    config = {key: value for key, value in ROWS["llama-2-7b"].items() if key != "vocab_size"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, _, err = call("--model", str(tmp_path), "--gpus", "A100", "--ds", "stage3")
    assert code == 2 and "no 'vocab_size'" in err


def test_plot(call, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    assert call(*TARGET, "--ds", "stage3", "--grad-checkpointing", "--plot", str(path))[0] == 0
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_loads_no_heavy_package_and_answers_soon():
    """0.5 s and 3 s are the bars; CPU time, because a test machine is shared, and the best of three."""
    program = "import sys; from zerotune.cli import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    for flags, limit_s in ((("--ds", "stage3"), 0.5), (("--best",), 3.0)):
        spent = []
        for _ in range(3):
            before, started = os.times(), time.monotonic()
            done = subprocess.run(
                [sys.executable, "-c", program, "plan", *TARGET, *flags],
                capture_output=True,
                text=True,
                cwd=ROOT,
                timeout=60,
            )
            after = os.times()
            used = after.children_user + after.children_system - before.children_user - before.children_system
            spent.append(min(used, time.monotonic() - started))
        assert {"torch", "deepspeed", "transformers", "matplotlib", "numpy"}.isdisjoint(done.stderr.split())
        assert min(spent) < limit_s
