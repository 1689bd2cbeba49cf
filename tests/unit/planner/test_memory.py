"""The arithmetic that others published, measured peaks, and what must hold for every run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zerotune.ds_config.resolve import resolve, template_names
from zerotune.errors import UsageError
from zerotune.planner import gpu_terms as gpu
from zerotune.planner import host_terms as host
from zerotune.planner.hardware import parse_gpus
from zerotune.planner.host_phases import host_peak, host_peak_bytes, node_host_bytes
from zerotune.planner.memory import PHASES, gpu_peak, gpu_peak_bytes
from zerotune.planner.model_rows import ROWS
from zerotune.planner.models import find_model, read_model, with_lora
from zerotune.planner.partition import aligned_groups, held_params, owned_params, sub_groups, touched_params
from zerotune.planner.plan import plan_for
from zerotune.planner.run import Run, Zero, zero_of
from zerotune.planner.shapes import Block, Param, Shapes

GIB = 2**30


def flat_model(numel: int) -> Shapes:
    """A model of equal matrices of a million: for arithmetic that only knows a number of parameters."""
    blocks = (Block("{}.", (Param("weight", (1000, 1000)),), tuple(range(numel // 10**6))),)
    sizes = {"hidden": 1000, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 1000, "ffn": 1000, "vocab": 1000}
    return Shapes("flat", "flat", blocks, **sizes, max_positions=4096, tied=True)


def llama(hidden, ffn, layers, heads, kv_heads, vocab, tied) -> Shapes:
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    config = dict(zip(keys, (hidden, ffn, layers, heads, kv_heads), strict=True))
    config |= {"vocab_size": vocab, "tie_word_embeddings": tied, "max_position_embeddings": 8192}
    return read_model({"model_type": "llama", **config})


DEFAULT = llama(1024, 2752, 16, 16, 16, 4096, True)  # training/defaults.py, the row for 60 GiB
ONE_B = llama(2048, 5632, 22, 32, 4, 32000, False)


def run_of(shapes, ds: str, gpus: int = 1, changes: dict | None = None, **values) -> Run:
    config = resolve(ds).config
    config = {**config, "zero_optimization": {**config["zero_optimization"], **(changes or {})}}
    return Run(shapes, parse_gpus(f"{gpus}xH200"), zero_of(config, shapes), **values)


@pytest.mark.parametrize(("stage", "expected_gb"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_table_of_the_zero_paper(stage, expected_gb):
    """7.5 B parameters on 64 GPUs (arXiv 1910.02054, figure 1): weights, gradients and states, mixed precision."""
    run = Run(
        flat_model(7_500_000_000), parse_gpus("8x8xV100"), Zero(stage=stage, overlap_comm=False), precision="fp16"
    )
    terms = (gpu.param_bytes, gpu.grad_partition_bytes, gpu.master_bytes, gpu.optimizer_bytes)
    assert sum(term(run) for term in terms) / 1e9 == pytest.approx(expected_gb, abs=0.05)


def test_arithmetic_of_one_billion():
    """4 GB of fp32 weights; 12 more of gradients and Adam states."""
    run = Run(flat_model(10**9), parse_gpus("A100"), Zero(), precision="fp32")
    assert gpu.param_bytes(run) == 4 * 10**9
    assert gpu.grad_partition_bytes(run) + gpu.optimizer_bytes(run) == 12 * 10**9


def test_two_terabytes_to_load_70b_naively():
    assert host.naive_load_bytes(find_model("llama-2-70b"), 8) == 8 * 4 * 68_976_648_192
    assert host.naive_load_bytes(find_model("llama-2-70b"), 8) / 1e12 == pytest.approx(2.2, abs=0.05)


PACKED = {"seq": 2048, "micro_batch": 8, "packed": True}
LIGER = {"fused_loss": True, "fused_kernels": True}
RECIPE = {"seq": 512, "micro_batch": 1, "recompute": True, "precision": "fp16"}
LIVE = {"stage3_max_live_parameters": 10**10}
AUTO = dict.fromkeys(
    ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold"), "auto"
)
# max_memory_allocated() in GiB on H200. The first seven: benchmarks/results/main_job.csv; then another trainer, same
# versions (docs/development.md).
MEASURED = [
    (14.092, DEFAULT, "stage3_offload", 1, {}, PACKED),
    (53.565, ONE_B, "stage2", 1, {}, PACKED),
    (41.462, ONE_B, "stage3_offload", 1, {}, PACKED),
    (16.282, DEFAULT, "stage2", 1, {}, {**PACKED, "precision": "fp16"}),
    (27.821, DEFAULT, "stage1", 1, {}, {**PACKED, "precision": "fp32"}),
    (16.786, DEFAULT, "stage3", 1, {}, PACKED),
    (15.248, DEFAULT, "stage3", 2, {}, PACKED),
    (22.6, ONE_B, "stage2", 1, {}, RECIPE),
    (49.8, ONE_B, "stage2", 1, {}, {"seq": 2048, "micro_batch": 8}),
    (56.7, ONE_B, "stage2", 1, {}, {"seq": 2048, "micro_batch": 16, **LIGER}),
    (22.7, ONE_B, "stage3_offload", 1, {}, {"seq": 2048, "micro_batch": 8, **LIGER}),
    (50.7, ONE_B, "stage3", 2, {}, {"seq": 2048, "micro_batch": 16, **LIGER}),
    (97.1, find_model("llama-3-8b"), "stage3", 2, AUTO, {"seq": 4096, "micro_batch": 2, **LIGER}),
    (99.3, find_model("llama-3-8b"), "stage3", 2, {}, {"seq": 4096, "micro_batch": 2, **LIGER}),
    (112.9, find_model("llama-3-8b"), "stage3", 2, LIVE, {"seq": 4096, "micro_batch": 2, **LIGER}),
    (130.1, find_model("llama-3-8b"), "stage3", 2, LIVE, {"seq": 4096, "micro_batch": 3, **LIGER}),
]
# Too low by more than the 3 % that are allowed: max_live_parameters is a limit on prefetching alone, so that the
# 1.86 GiB planned for gathered weights can become the model's 2.05.
KNOWN_LOW = [(2.6, ONE_B, "stage3_offload", 1, {}, RECIPE)]


@pytest.mark.parametrize(("gib", "shapes", "ds", "gpus", "changes", "values"), MEASURED)
def test_measured_peaks(gib, shapes, ds, gpus, changes, values):
    predicted = gpu_peak_bytes(run_of(shapes, ds, gpus, changes, **values)) / GIB
    assert 0.97 <= predicted / gib <= 1.05


@pytest.mark.parametrize(("gib", "shapes", "ds", "gpus", "changes", "values"), KNOWN_LOW)
def test_peaks_known_to_be_low(gib, shapes, ds, gpus, changes, values):
    predicted = gpu_peak_bytes(run_of(shapes, ds, gpus, changes, **values)) / GIB
    assert 0.94 <= predicted / gib <= 1.0


@pytest.mark.parametrize(("gib", "shapes"), [(30.094, ONE_B), (7.73, DEFAULT)])
def test_measured_host_memory_of_both_offloads(gib, shapes):
    assert host_peak_bytes(run_of(shapes, "stage3_offload", **PACKED)) / GIB == pytest.approx(gib, rel=0.13)


def test_step_of_stage_0_holds_fp32_gradients_twice():
    """2 of weights, 4 + 8 of states, 2 + 4 + 4 of gradients: 24 bytes a parameter."""
    run = Run(flat_model(10**9), parse_gpus("H200"), Zero(), seq=1)
    assert gpu_peak(run, "steady step", allocated_only=True).moment == "optimizer step"
    assert gpu_peak_bytes(run) == 24 * 10**9 + gpu.workspace_bytes(run)


def test_padding_of_stages_1_and_2():
    run = Run(flat_model(1_000_000), parse_gpus("1x7xA100"), Zero(stage=2))
    assert aligned_groups(run) == [1_000_006]  # the next multiple of 14
    assert owned_params(run) * 7 == held_params(run) == 1_000_006
    assert touched_params(run) == 1_000_000  # the one matrix reaches into every rank's partition


def test_stage_1_keeps_whole_gradients_unless_it_reduces_as_they_come():
    eager = Run(flat_model(10**9), parse_gpus("8xA100"), Zero(stage=1))
    assert gpu.grad_partition_bytes(eager) == 2 * touched_params(eager) and gpu.reduced_copy_bytes(eager) == 0
    for late in (replace(eager, accumulation=2), replace(eager, zero=replace(eager.zero, overlap_comm=False))):
        assert gpu.grad_partition_bytes(late) == 2 * 10**9
        assert gpu.reduced_copy_bytes(late) == 2 * touched_params(late)


def test_one_optimizer_group_when_the_config_names_the_optimizer():
    named = Run(ONE_B, parse_gpus("2xA100"), zero_of({"optimizer": {}, "zero_optimization": {"stage": 2}}, ONE_B))
    unnamed = Run(ONE_B, parse_gpus("2xA100"), zero_of({"zero_optimization": {"stage": 2}}, ONE_B))
    norms = (2 * 22 + 1) * 2048
    assert aligned_groups(named) == [ONE_B.num_params]
    assert aligned_groups(unnamed) == [ONE_B.num_params - norms, norms]


def test_padding_of_stage_3_is_of_each_parameter():
    run = run_of(ONE_B, "stage3")
    run = replace(run, cluster=parse_gpus("3xH200"))
    assert owned_params(run) == sum(-(-param.numel // 3) for param in ONE_B.params())
    assert sum(sub_groups(run)) == owned_params(run)


@pytest.mark.parametrize("ds", template_names())
@pytest.mark.parametrize("phase", PHASES)
def test_every_template_and_phase_has_terms_above_zero(ds, phase):
    run = run_of(ONE_B, ds, 2)
    for peak in (gpu_peak(run, phase), host_peak(run, phase)):
        assert all(term.num_bytes > 0 for term in peak.terms)
        assert peak.num_bytes == sum(term.num_bytes for term in peak.terms)
    assert node_host_bytes(run, phase) >= host_peak(run, phase).num_bytes


@pytest.mark.parametrize("ds", template_names())
def test_more_tokens_never_take_less(ds):
    sizes = [
        gpu_peak_bytes(run_of(ONE_B, ds, 2, seq=seq, micro_batch=micro))
        for seq, micro in ((512, 1), (512, 4), (4096, 4))
    ]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]


def test_recompute_and_fused_loss_and_flash_save_memory():
    base = run_of(ONE_B, "stage2", seq=4096, micro_batch=4, packed=True)
    for saving in ({"recompute": True}, {"fused_loss": True}, {"attn": "flash"}, {"fused_kernels": True}):
        assert gpu_peak_bytes(replace(base, **saving)) < gpu_peak_bytes(base)
    assert gpu_peak_bytes(replace(base, attn="eager")) > gpu_peak_bytes(base)


def test_frozen_weights_have_neither_gradients_nor_states():
    adapted = with_lora(ONE_B, 16)
    run = run_of(adapted, "stage2", 2)
    assert owned_params(run) < 0.02 * ONE_B.num_params
    assert gpu.param_bytes(run) >= 2 * ONE_B.num_params
    assert gpu.optimizer_bytes(run) == 8 * owned_params(run)


def test_gpu_bytes_of_states_on_the_host_are_none():
    run = run_of(ONE_B, "stage3_offload", 2)
    assert gpu.master_bytes(run) == gpu.optimizer_bytes(run) == gpu.param_bytes(run) == 0
    assert host.host_optimizer_bytes(run) == 8 * owned_params(run)


def test_pinned_blocks_are_powers_of_two():
    run = run_of(ONE_B, "stage3_offload")
    assert host.pinned_bytes(run, 2**30 + 1) == 2**31 and host.pinned_bytes(run, 2**30) == 2**30
    unpinned = replace(run, zero=replace(run.zero, pin_memory=False))
    assert host.pinned_bytes(unpinned, 12345) == 12345


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"seq": 0}, "--seq 0 must be 1 or more"),
        ({"micro_batch": -1}, "--micro-batch -1 must be 1 or more"),
        ({"seq": 9000}, "longer than the 8192 positions"),
    ],
)
def test_sizes_no_run_can_have(values, expected):
    with pytest.raises(UsageError, match=expected):
        run_of(ONE_B, "stage2", **values)


def test_precisions_the_device_lacks():
    with pytest.raises(UsageError, match="no bf16; use --precision fp16"):
        Run(ONE_B, parse_gpus("V100"), Zero(stage=2))


@pytest.mark.parametrize("value", ["many", -5, True, {}])
def test_values_that_are_no_numbers(value):
    with pytest.raises(UsageError, match="reduce_bucket_size"):
        zero_of({"zero_optimization": {"stage": 2, "reduce_bucket_size": value}}, ONE_B)


def test_a_plan_from_plain_values():
    config = {"model_type": "llama", **ROWS["tinyllama-1.1b"]}
    plan = plan_for(config, "stage2", "2xH200", seq=2048, micro_batch=4, recompute=True)
    run = run_of(ONE_B, "stage2", 2, seq=2048, micro_batch=4, recompute=True)
    assert plan.allocated_bytes == gpu_peak_bytes(run) < plan.gpu_worst.num_bytes
    assert plan.wall_s(2 * plan.step.tokens) == pytest.approx(2 * plan.step.seconds)
    assert plan_for(config, {"zero_optimization": {"stage": 0}}, "H200").verdict.fits
