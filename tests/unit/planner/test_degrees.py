"""Tensor, sequence and expert parallelism in a plan."""

from __future__ import annotations

import json

import pytest

from zerotune.cli import run as cli
from zerotune.planner import activations, link_terms
from zerotune.planner.degrees import Degrees, degrees_of, sliced
from zerotune.planner.gpu_terms import optimizer_bytes, param_bytes
from zerotune.planner.hardware import parse_gpus
from zerotune.planner.model_rows import ROWS
from zerotune.planner.models import find_model
from zerotune.planner.partition import aligned_groups, owned_groups
from zerotune.planner.run import Run, Zero
from zerotune.planner.timing import step_time


def planned(model: str = "llama-2-7b", stage: int = 1, gpus: str = "8xH100", degrees: Degrees | None = None, **values):
    return Run(find_model(model), parse_gpus(gpus), Zero(stage), degrees=degrees or Degrees(), **values)


def test_a_slice_of_llama():
    """By hand: 2 of 32 heads' shares and columns of every matrix, whole norms, whole lookup, half the output matrix."""
    whole = find_model("llama-2-7b")
    part = sliced(whole, 2, 1)
    layer = 4 * 4096 * 4096 + 3 * 4096 * 11008
    assert part.num_params == 32 * (layer // 2 + 2 * 4096) + 4096 + 32000 * 4096 + 32000 * 4096 // 2
    assert (part.heads, part.kv_heads, part.ffn, part.vocab) == (16, 16, 5504, 32000)


def test_a_tied_output_matrix_takes_its_lookup_along():
    part = sliced(find_model("llama-3.2-1b"), 2, 1)
    assert part.vocab == 64128
    assert next(param.shape for param in part.params() if "embed" in param.name) == (64128, 2048)


def test_tensor_parallel_ranks_share_zeros_partition():
    alone, shared = planned(stage=1), planned(stage=1, degrees=Degrees(tensor=4))
    assert shared.zero_ranks == 2 and alone.zero_ranks == 8
    assert optimizer_bytes(shared) == pytest.approx(
        optimizer_bytes(alone), rel=0.12
    )  # what stays whole is there 4 times
    assert param_bytes(shared) == pytest.approx(param_bytes(alone) / 4, rel=0.12)
    assert shared.step_tokens == alone.step_tokens / 4


def test_sequence_parallel_ranks_share_a_row():
    alone, shared = planned(seq=4096), planned(seq=4096, degrees=Degrees(sequence=8))
    assert activations.activation_bytes(shared) * 8 == activations.activation_bytes(alone)
    assert activations.logits_bytes(shared) * 8 == activations.logits_bytes(alone)
    assert param_bytes(shared) == param_bytes(alone) and optimizer_bytes(shared) == optimizer_bytes(alone)


def test_expert_parallel_ranks_share_the_experts():
    alone = planned("mixtral-8x7b", 1, "8xH200")
    shared = planned("mixtral-8x7b", 1, "8xH200", Degrees(expert=8))
    experts = 32 * 8 * 3 * 4096 * 14336
    assert param_bytes(alone) - param_bytes(shared) == pytest.approx(2 * experts * 7 / 8, rel=1e-4)
    assert optimizer_bytes(shared) == pytest.approx(optimizer_bytes(alone), rel=1e-4)  # each is there once either way
    assert owned_groups(shared)[-1] == aligned_groups(shared)[-1]  # nobody else has the same experts
    assert shared.local.num_active == pytest.approx(alone.local.num_active, rel=1e-6)


def test_what_the_links_carry():
    """7B, tp 4: 32 layers x 4 all-reduces x 2 x 3/4 of 2048 x 4096 x 2 bytes at 0.65 x 450 GB/s."""
    shared = planned(degrees=Degrees(tensor=4))
    moved = 32 * 4 * 2 * 3 / 4 * 2048 * 4096 * 2
    assert link_terms.tensor_sums_s(shared) == pytest.approx(moved / (0.65 * 450e9))
    apart = planned(gpus="2x2xH100", degrees=Degrees(tensor=4))  # over the network, which two GPUs share
    assert link_terms.tensor_sums_s(apart) == pytest.approx(moved / (0.8 * 400e9 / 2))
    terms = {term.name for term in step_time(shared).terms}
    assert "tensor parallel sums" in terms and "expert parallel exchanges" not in terms
    for term in (link_terms.tensor_sums_s, link_terms.sequence_exchange_s, link_terms.expert_exchange_s):
        assert term(planned()) == 0


def test_degrees_that_a_config_switches_on():
    config = {
        "tensor_parallel": {"autotp_size": 2},
        "sequence_parallel_size": 4,
        "expert_parallel": {"enabled": True, "autoep_size": 8},
    }
    assert degrees_of(config) == Degrees(2, 1, 8)  # sequence_parallel_size alone builds no group
    assert degrees_of({**config, "data_parallel_size": 2}) == Degrees(2, 4, 8)
    assert degrees_of({"expert_parallel": {"autoep_size": 8}, "tensor_parallel": None}) == Degrees()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--tp", "3"), "--tp 3 doesn't divide the 16 ranks; it may be 1, 2, 4, 8, 16"),
        (("--tp", "0"), "--tp 0 must be 1 or more"),
        (("--sp", "-1"), "--sp -1 must be 1 or more"),
        (("--ep", "2"), "can't spread the experts of llama"),
        (("--tp", "2", "--sp", "2"), "only one of --tp, --sp and --ep"),
        (("--sp", "8", "--seq", "100"), "--sp 8 doesn't divide the 100 tokens of a row"),
        (("--model", "qwen2.5-7b", "--tp", "8"), "--tp 8 doesn't divide the 28 attention heads"),
        (("--model", "mixtral-8x7b", "--ep", "16"), "the 8 experts; it may be 1, 2, 4, 8"),
        (("--model", "mixtral-8x7b", "--tp", "2"), "doesn't load experts under tensor parallelism"),
    ],
)
def test_degrees_that_cannot_be(capsys, flags, expected):
    given = {"--model": "llama-2-7b", "--gpus": "2x8xA100", "--ds": "stage1"} | dict(
        zip(flags[::2], flags[1::2], strict=True)
    )
    code = cli(["plan", *(word for pair in given.items() for word in pair)])
    error = capsys.readouterr().err
    assert code == 2 and expected in error and error.count("\n") == 1


def test_a_plan_says_its_degree(capsys):
    assert cli(["plan", "--model", "llama-2-70b", "--gpus", "2x8xA100", "--ds", "stage3", "--tp", "8", "--attn", "flash",
                "--grad-checkpointing", "--format", "json"]) == 0  # fmt: skip
    plan = json.loads(capsys.readouterr().out)
    assert any(term["function"] == "tensor_sums_s" for term in plan["step_terms"])


def test_best_names_faster_degrees_without_a_command(capsys):
    """131,072 tokens of 8B leave no room on 8 H100 unless ranks share a row."""
    flags = ("--model", "llama-3.1-8b", "--gpus", "8xH100", "--host-ram", "1TB", "--seq", "131072", "--attn", "flash")
    assert cli(["plan", *flags, "--best", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all((row["command"] is None) == (max(row["tp"], row["sp"], row["ep"]) > 1) for row in rows)
    assert any(row["sp"] > 1 for row in rows)
    assert cli(["plan", *flags, "--best"]) == 0
    assert "no command: train.py has no flag for it" in capsys.readouterr().out


def test_a_command_names_a_folder_that_is_there(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(ROWS["gpt2"]))
    flags = ("--gpus", "H100", "--best", "--format", "json")
    assert cli(["plan", "--model", "gpt2", *flags]) == 0
    assert "--model_name_or_path /path/to/gpt2 " in json.loads(capsys.readouterr().out)[0]["command"]
    assert cli(["plan", "--model", str(tmp_path), *flags]) == 0
    assert f"--config_name {tmp_path} " in json.loads(capsys.readouterr().out)[0]["command"]
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert cli(["plan", "--model", str(tmp_path / "config.json"), *flags]) == 0
    assert f"--model_name_or_path {tmp_path} " in json.loads(capsys.readouterr().out)[0]["command"]
