"""Flag values that used to end in a traceback, some of them after the training: one message each."""

from __future__ import annotations

import importlib.util

import pytest

from zerotune import train
from zerotune.errors import UsageError
from zerotune.training import arguments, build, flag_checks, model


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max_train_samples", "0"], r"--max_train_samples 0: use at least 1"),
        (["--max_train_samples", "-3"], r"--max_train_samples -3: use at least 1"),
        (["--max_eval_samples", "0"], r"--max_eval_samples 0: .*--eval_strategy no"),
        (["--dataset_name", ""], r"--dataset_name is empty"),
        (["--validation_name", ""], r"--validation_name is empty"),
        (["--validation_percent", "100"], r"--validation_percent 100: .*less than 100"),
        (["--validation_percent", "-1"], r"--validation_percent -1: .*at least 0"),
        (["--validation_percent", "nan"], r"--validation_percent nan"),
        (["--prediction_loss_only", "true"], r"--prediction_loss_only: .*Leave it out"),
    ],
)
def test_a_value_that_cannot_work_is_refused(flags, said):
    with pytest.raises(UsageError, match=said):
        flag_checks.refuse_values(arguments.parse(flags))


@pytest.mark.parametrize(
    "flags", [[], ["--max_train_samples", "1"], ["--validation_percent", "0"], ["--prediction_loss_only", "false"]]
)
def test_other_values_pass(flags):
    flag_checks.refuse_values(arguments.parse(flags))


def test_an_unknown_reporter_names_the_nearest():
    with pytest.raises(UsageError, match=r"--report_to tensorbord: .*Did you mean tensorboard\?"):
        flag_checks.refuse_reporters(["tensorbord"])


def test_a_reporter_that_is_not_installed():
    absent = [name for name in ("mlflow", "azure_ml", "comet_ml", "flyte") if not available(name)]
    assert absent, "no integration is left to test with"
    for name in absent:
        with pytest.raises(UsageError, match=f"--report_to {name}: .*not installed.*--report_to none"):
            flag_checks.refuse_reporters([name])


def available(name: str) -> bool:
    module = {"azure_ml": "azureml", "flyte": "flytekit"}.get(name, name)
    return importlib.util.find_spec(module) is not None


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ("to_dict=5", r"'to_dict=5': no such value"),
        ("rope_parameters=5", r"rope_parameters: a dict cannot be given here"),
        ("hidden_sise=64", r"Did you mean hidden_size\?"),
    ],
)
def test_config_overrides_change_plain_values_only(overrides, said):
    from transformers import LlamaConfig

    with pytest.raises(UsageError, match=said):
        model._override(LlamaConfig(), overrides)


def test_config_overrides_take_the_common_names():
    from transformers import GPT2Config

    config = GPT2Config()
    model._override(config, "hidden_size=64,n_layer=3,tie_word_embeddings=false")
    assert (config.n_embd, config.n_layer, config.tie_word_embeddings) == (64, 3, False)


def test_evaluation_without_validation_data_is_refused():
    build.require_validation(None, "no")
    with pytest.raises(UsageError, match=r"--eval_strategy steps: .*no validation data.*--validation_name"):
        build.require_validation(None, "steps")


@pytest.mark.parametrize("argv", [["--ds"], ["--ds", "--max_steps", "5"], ["--deepspeed"]])
def test_ds_without_a_value_is_one_message(argv, capsys):
    with pytest.raises(UsageError, match=r"--ds.*: expected one argument.*zerotune-config list"):
        train.resolve_config(argv)
    assert capsys.readouterr().err == ""


def test_a_limit_of_no_checkpoint_is_refused():
    flag_checks.refuse_values(arguments.parse(["--save_total_limit", "1"]))
    with pytest.raises(UsageError, match=r"--save_total_limit 0: the newest checkpoint is kept"):
        flag_checks.refuse_values(arguments.parse(["--save_total_limit", "0"]))


def test_slices_of_tensor_parallelism_are_not_exported():
    config = {"tensor_parallel": {"autotp_size": 2}}
    with pytest.raises(UsageError, match="--export False"):
        flag_checks.refuse_export_of_slices(arguments.parse([]), config)
    flag_checks.refuse_export_of_slices(arguments.parse(["--export", "False"]), config)
    flag_checks.refuse_export_of_slices(arguments.parse([]), {"tensor_parallel": {"autotp_size": 1}})
