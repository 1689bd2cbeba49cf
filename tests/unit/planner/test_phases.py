"""Each phase by its own terms: load, first step, steady step, evaluation, save, export."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from zerotune.ds_config.resolve import resolve
from zerotune.planner import gpu_terms as gpu
from zerotune.planner import host_terms as host
from zerotune.planner.hardware import parse_gpus
from zerotune.planner.host_phases import host_peak, node_host_bytes, settled
from zerotune.planner.memory import PHASES, gpu_peak
from zerotune.planner.models import find_model
from zerotune.planner.plan import make_plan
from zerotune.planner.run import Run, zero_of

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
MODEL = find_model("llama-2-7b")


def run_of(ds: str, gpus: str = "8xH100", **values) -> Run:
    return Run(MODEL, parse_gpus(gpus), zero_of(resolve(ds).config, MODEL), **values)


def names(peak) -> set[str]:
    return {term.name for term in peak.terms}


def test_pretrained_weights_pass_through_two_pieces():
    """From scratch below stage 3 every rank draws the whole model on the host; under stage 3 none does."""
    for ds in ("stage2", "stage3"):
        assert host.load_bytes(run_of(ds)) == 32 << 20
    assert host.load_bytes(run_of("stage2", from_scratch=True)) == 2 * MODEL.num_params
    assert host.load_bytes(run_of("stage3", from_scratch=True)) == 0
    assert host.load_bytes(run_of("stage2", "2xCPU", from_scratch=True)) == 0  # it is where it will stay


def test_an_offloading_engine_has_its_host_buffers_before_the_first_step():
    load, first = (host_peak(run_of("stage3_offload"), phase) for phase in ("load", "first step"))
    assert names(first) - names(load) == {"optimizer moments"}
    assert names(load) - names(first) == {"weights on their way"}


def test_the_first_forward_pass_has_no_moments_yet():
    steady, first = (gpu_peak(run_of("stage1", micro_batch=8), phase) for phase in ("steady step", "first step"))
    assert steady.num_bytes - first.num_bytes == gpu.optimizer_bytes(run_of("stage1"))
    assert steady.moment == first.moment == "loss"


def test_evaluation_keeps_nothing_for_a_backward_pass():
    evaluation = gpu_peak(run_of("stage2"), "evaluation")
    assert "activations" not in names(evaluation) and "gradients" not in names(evaluation)
    assert "logits" in names(evaluation) and "optimizer moments" in names(evaluation)


def test_a_snapshot_comes_after_the_first_step_and_is_kept():
    plain, saving = run_of("stage2"), run_of("stage2", background_save=True)
    copied = host.owned_params(plain) * 12 + 2 * MODEL.num_params
    for phase in ("load", "first step", "steady step", "evaluation", "export"):
        more = host_peak(saving, phase).num_bytes - host_peak(plain, phase).num_bytes
        assert more == (copied if phase in ("steady step", "evaluation") else 0)
    assert host_peak(saving, "save").num_bytes == host_peak(saving, "steady step").num_bytes  # nothing else is copied
    assert host_peak(plain, "save").num_bytes - host_peak(plain).num_bytes == host.save_bytes(plain) > 0
    one, node = host_peak(saving, "save").num_bytes, node_host_bytes(saving, "save")
    assert node == 8 * one - 7 * 2 * MODEL.num_params  # the 16-bit weights are rank 0's alone
    assert gpu_peak(saving, "save").num_bytes == gpu_peak(saving, "steady step").num_bytes  # training goes on
    assert gpu_peak(plain, "save").num_bytes < gpu_peak(plain, "steady step").num_bytes


def test_without_memory_for_a_snapshot_saving_waits():
    run = run_of("stage3_offload", background_save=True)
    needed = max(node_host_bytes(run, phase) for phase in PHASES)
    small = replace(run, cluster=replace(run.cluster, host_bytes=needed - 1))
    assert settled(run).background_save and not settled(small).background_save
    assert make_plan(small).verdict.fits


def test_a_bucket_of_several_ranks_is_copied_flat():
    """stage_1_and_2.py:2367: nothing to copy on one rank, where the whole bucket is one tensor."""
    assert gpu.reduce_scatter_bytes(run_of("stage2", "H100")) == 0
    two = run_of("stage2", "2xH100")
    assert gpu.reduce_scatter_bytes(two) == two.zero.reduce_bucket_size * 2
    assert gpu.reduce_scatter_bytes(replace(two, zero=replace(two.zero, reduce_scatter=False))) == 0


def test_cpu_ranks_hold_everything_in_host_memory():
    run = Run(MODEL, parse_gpus("2xCPU"), zero_of(resolve("stage2").config, MODEL), precision="fp32")
    assert all(gpu_peak(run, phase).num_bytes == 0 for phase in PHASES)
    held = {term.name: term.num_bytes for term in host_peak(run).terms}
    assert held["weights"] == gpu.param_bytes(run) and held["optimizer moments"] == gpu.optimizer_bytes(run)
    assert "CUDA context" not in held and "NCCL buffers" not in held


def measured_on_cpu() -> list[dict]:
    with (BENCHMARKS / "results" / "plan_on_cpu.csv").open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["step_s"]]


@pytest.mark.parametrize("row", measured_on_cpu(), ids=lambda row: f"{row['model']}-{row['template']}-{row['seq']}")
def test_what_two_cpu_ranks_held(row, monkeypatch):
    """Resident bytes of a rank while the engine is built, in a steady step, while it saves: within a tenth."""
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    from plan_vs_measured import ratios_of

    for name, (planned, seen) in ratios_of(row).items():
        assert planned == pytest.approx(seen, rel=0.10), name
