"""What the validator says about a job before it starts."""

from __future__ import annotations

import dataclasses

import pytest

from zerotune.ds_config import Context, check
from zerotune.ds_config.resolve import ResolvedConfig
from zerotune.errors import UsageError
from zerotune.training.setup import refuse_errors

transformers = pytest.importorskip("transformers")


def test_a_refusal_holds_no_notes(tmp_path):
    text = (
        '{"train_batch_size": 33, "train_micro_batch_size_per_gpu": 4, "gradient_cliping": 1, "zero_optimization": {}}'
    )
    resolved = ResolvedConfig("ds.json", tmp_path / "ds.json", text, {})
    with pytest.raises(UsageError) as refusal:
        refuse_errors(resolved, Context("trainer"))
    lines = str(refusal.value).splitlines()
    assert [word for word in ("error: ", "warning: ", "note: ") if any(word in line for line in lines)] == [
        "error: ",
        "warning: ",
    ]


def test_no_flag_of_the_trainer_counts_as_misspelt():
    names = [field.name for field in dataclasses.fields(transformers.TrainingArguments)]
    found = check({"zero_optimization": {}}, Context("trainer", training_args=dict.fromkeys(names)))
    assert [finding.message for finding in found if finding.slug == "misspelt-flag"] == []
