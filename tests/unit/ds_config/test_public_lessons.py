"""What configs of other projects taught: advice that would have made things worse."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from zerotune.ds_config import Context, check

LOG = Path(__file__).resolve().parents[2] / "cases" / "public.tsv"


def advice(config: dict, rule: str, **context) -> list[str]:
    return [finding.help for finding in check(config, Context(**context)) if finding.rule == rule]


@pytest.mark.parametrize(
    "config",
    [
        {"tensor_parallel": {"tensor_parallel_degree": 2}},  # not the block of that name
        {"tensor_parallel": {"enabled": True}},  # a key of a dozen blocks
        {"communication": {"prescale_gradients": True}},  # communication_data_type is no block
        {"checkpoint-activations": True},  # checkpoint is one
    ],
)
def test_no_key_of_another_kind_is_advised(config):
    base = {"train_micro_batch_size_per_gpu": 1}
    found = advice({**base, **config}, "ZT103", entry="raw") + advice({**base, **config}, "ZT102", entry="raw")
    assert found and not any("did you mean" in help or "it is a key" in help for help in found)


def test_a_float_warmup_is_one_mistake():
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 1e-5}},
    }
    errors = [finding.rule for finding in check(config, Context(entry="raw")) if finding.severity == "error"]
    assert errors == ["ZT624"]


def test_an_lfs_pointer_is_one_finding():
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:8d25d1f1\nsize 801\n"
    for entry in ("trainer", "raw"):
        assert [finding.rule for finding in check(text, Context(entry=entry))] == ["ZT027"]


def test_the_log_is_well_formed():
    """At least 100 files, at most 5 of one project, and no error without a rule."""
    with LOG.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    projects = [row["repo"] for row in rows]
    assert len(rows) >= 100 and max(map(projects.count, projects)) <= 5
    for row in rows:
        assert row["address"] == f"https://github.com/{row['repo']}/blob/{row['commit']}/{row['path']}"
        assert row["confirmed"] in ("hand", "engine") and row["remark"]
        assert bool(row["error_rules"]) == (row["verdict"] == "errors")
