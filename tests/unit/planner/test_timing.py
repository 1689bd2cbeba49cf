"""Step times against measured ones, and what must hold for every run."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from tests.unit.planner.test_memory import DEFAULT, LIGER, LIVE, ONE_B, PACKED, RECIPE, run_of
from zerotune.planner import timing
from zerotune.planner.hardware import parse_gpus
from zerotune.planner.models import find_model
from zerotune.planner.timing import step_time

EIGHT_B = find_model("llama-3-8b")
# Seconds of a step on H200; origins as in test_memory.py. HOOK_S of stage 3 was fitted to these and others.
MEASURED = [
    (16384 / 37652, DEFAULT, "stage3_offload", 1, {}, PACKED),
    (16384 / 41619, ONE_B, "stage2", 1, {}, PACKED),
    (16384 / 17687, ONE_B, "stage3_offload", 1, {}, PACKED),
    (1.510, ONE_B, "stage3_offload", 1, {}, RECIPE),
    (0.360, ONE_B, "stage2", 1, {}, {"seq": 2048, "micro_batch": 8}),
    (0.487, ONE_B, "stage2", 1, {}, {"seq": 2048, "micro_batch": 16, **LIGER}),
    (0.749, ONE_B, "stage3_offload", 1, {}, {"seq": 2048, "micro_batch": 8, **LIGER}),
    (0.617, ONE_B, "stage3", 2, {}, {"seq": 2048, "micro_batch": 16, **LIGER}),
    (
        0.900,
        EIGHT_B,
        "stage3",
        2,
        {"stage3_prefetch_bucket_size": 250_000_000},
        {"seq": 4096, "micro_batch": 2, **LIGER},
    ),
    (0.840, EIGHT_B, "stage3", 2, LIVE, {"seq": 4096, "micro_batch": 2, **LIGER}),
    (1.202, EIGHT_B, "stage3", 2, LIVE, {"seq": 4096, "micro_batch": 3, **LIGER}),
    (8.2, EIGHT_B, "stage3_offload_optimizer", 2, {}, {"seq": 4096, "micro_batch": 8, "recompute": True, **LIGER}),
]


def test_measured_steps():
    errors = [
        abs(step_time(run_of(shapes, ds, gpus, changes, **values)).seconds / seconds - 1)
        for seconds, shapes, ds, gpus, changes, values in MEASURED
    ]
    assert statistics.median(errors) < 0.15
    assert max(errors) < 0.30


def test_six_flops_for_each_weight_and_token():
    run = run_of(ONE_B, "stage2", seq=2048, micro_batch=1)
    matrices = ONE_B.num_params - 32000 * 2048  # the lookup is no product
    assert timing.matmul_flops(run) == pytest.approx(6 * matrices * 2048)
    assert timing.matmul_flops(replace(run, recompute=True)) == pytest.approx(8 * matrices * 2048)


def test_experts_compute_what_is_active():
    shapes = find_model("mixtral-8x7b")
    run = run_of(shapes, "stage3", 8, seq=1024)
    assert timing.matmul_flops(run) == pytest.approx(6 * (shapes.num_active - 32000 * 4096) * 1024)


def test_more_ranks_train_more_tokens_and_a_slower_network_fewer():
    runs = [run_of(EIGHT_B, "stage3", seq=4096, micro_batch=2, **LIGER) for _ in range(3)]
    speeds = [
        step_time(replace(run, cluster=parse_gpus(gpus))).tokens_per_s
        for run, gpus in zip(runs, ("8xH200", "2x8xH200", "2x8xL4"), strict=True)
    ]
    assert speeds[0] < speeds[1] > speeds[2]


def test_accumulation_spreads_the_step():
    once = step_time(run_of(ONE_B, "stage3_offload", seq=2048))
    eight = step_time(run_of(ONE_B, "stage3_offload", seq=2048, accumulation=8))
    assert eight.tokens == 8 * once.tokens
    assert once.seconds < eight.seconds < 8 * once.seconds


def test_without_overlap_nothing_is_faster():
    run = run_of(EIGHT_B, "stage3", 8, seq=4096, micro_batch=4, **LIGER)
    slow = replace(run, zero=replace(run.zero, overlap_comm=False))
    assert step_time(slow).seconds > step_time(run).seconds
