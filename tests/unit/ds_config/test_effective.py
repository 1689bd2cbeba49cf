"""Where values come from under the Trainer; plain DeepSpeed is compared in tests/engine/test_effective.py."""

from __future__ import annotations

import pytest

from zerotune.ds_config import Context, resolve, template_names
from zerotune.ds_config.effective import complete, effective, table


def rows(source, **context) -> dict[str, tuple]:
    return {row.path: (row.value, row.origin) for row in effective(source, Context(**context)).settings}


def test_flags_fill_auto():
    flags = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "bf16": True, "learning_rate": 1e-4}
    found = rows(resolve("stage2"), training_args=flags, world_size=8)
    assert found["train_batch_size"] == (64, "flag")
    assert found["train_micro_batch_size_per_gpu"] == (2, "flag")
    assert found["bf16.enabled"] == (True, "flag") and found["fp16.enabled"] == (False, "flag")
    assert found["optimizer.params.lr"] == (1e-4, "flag")
    assert found["optimizer.params.betas"] == ([0.9, 0.999], "flag")
    assert found["gradient_clipping"] == (1.0, "flag")
    assert found["zero_optimization.reduce_bucket_size"] == (200_000_000, "file")
    assert found["zero_optimization.round_robin_gradients"] == (False, "default")
    assert found["steps_per_print"] == (float("inf"), "accelerate")


def test_unknown_flags_stay_unknown():
    assert rows(resolve("stage2"))["gradient_clipping"] == ("auto", "unknown")
    assert rows(resolve("stage2"))["train_batch_size"][1] == "unknown"


def test_hidden_size_fills_buckets():
    config = {"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"}}
    config["zero_optimization"]["stage3_param_persistence_threshold"] = "auto"
    found = rows(config, training_args={}, model={"hidden_size": 100})
    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    assert [found[f"zero_optimization.{name}"] for name in names] == [
        (10_000, "model"),
        (9_000, "model"),
        (1_000, "model"),
    ]


def test_accelerate_fills_and_adds():
    config = {"zero_optimization": {"stage": "auto", "offload_optimizer": {"device": "auto"}}}
    found = rows(config, training_args={"bf16": True})
    assert found["zero_optimization.stage"] == (2, "accelerate")
    assert found["zero_optimization.offload_optimizer.device"] == ("none", "accelerate")
    assert found["bf16.enabled"] == (True, "accelerate")
    assert found["zero_allow_untested_optimizer"] == (True, "accelerate")


def test_what_is_written_in_vain():
    config = {"gradient_cliping": 1, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}
    found = effective(config, Context(entry="raw"))
    assert {finding.pointer for finding in found.in_vain} == {"/gradient_cliping", "/zero_optimization/offload_param"}
    assert "written in vain" in table(found)


@pytest.mark.parametrize("name", template_names())
def test_table_of_every_template(name):
    lines = table(effective(resolve(name), Context(training_args={}, world_size=2))).splitlines()
    assert len(lines) > 60
    assert all(len(line.split()) >= 3 for line in lines)


@pytest.mark.parametrize("config", [{}, [], None, {"zero_optimization": 3}, {"optimizer": [], "bf16": True}])
def test_broken_configs_do_not_raise(config):
    for entry in ("raw", "trainer", "accelerate"):
        table(effective(config, Context(entry=entry)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((12, None, 3), (12, 2, 3)),
        ((12, 3, None), (12, 3, 2)),
        ((None, 3, 2), (12, 3, 2)),
        ((12, None, None), (12, 6, 1)),
        ((None, 3, None), (6, 3, 1)),
        ((12, 3, 2), (12, 3, 2)),
    ],
)
def test_batch_triple_on_two_ranks(given, expected):
    assert complete(*given, 2) == expected
