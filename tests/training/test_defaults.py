"""What a flag means when it was left out: the user's word first, then the config's, then ours; all of it is said."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zerotune.reporting.progress import ProgressBar
from zerotune.training import arguments, build, defaults

OWN_DATA = ["--dataset_name", "chats.jsonl"]
LITERALS = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.01, "betas": [0.8, 0.9], "eps": 1e-7}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 7, "warmup_max_lr": 3e-4}},
}


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch):
    monkeypatch.setattr(defaults, "device_gib", lambda: 0.0)


def filled(*argv: str, config: dict | None = None):
    args = arguments.parse(list(argv))
    chosen = defaults.fill(args, config or {})
    return args, "\n".join(defaults.in_words(chosen))


@pytest.mark.parametrize("argv", [[], OWN_DATA], ids=["default job", "own data"])
def test_values_in_the_config_are_followed(argv):
    training = filled(*argv, config=LITERALS)[0].training
    assert training["per_device_train_batch_size"] == 4
    assert (training["learning_rate"], training["weight_decay"]) == (3e-4, 0.01)
    assert (training["adam_beta1"], training["adam_beta2"], training["adam_epsilon"]) == (0.8, 0.9, 1e-7)
    assert training["warmup_steps"] == 7


def test_the_users_word_comes_before_the_configs():
    args, said = filled("--learning_rate", "0.5", config=LITERALS)
    assert args.training["learning_rate"] == 0.5
    assert "learning_rate" not in said


@pytest.mark.parametrize(
    ("argv", "third", "warmup"),
    [([], 50, 15), (["--max_steps", "5"], 10, 1), (["--num_train_epochs", "1"], 0.33, 0.1)],
)
def test_the_default_job_evaluates_and_saves_by_thirds(argv, third, warmup):
    training = filled(*argv)[0].training
    assert (training["eval_steps"], training["save_steps"], training["warmup_steps"]) == (third, third, warmup)


def test_how_the_user_saves_is_kept():
    training = filled("--save_steps", "20")[0].training
    assert (training["save_steps"], training["save_total_limit"]) == (20, None)


def test_own_data_without_a_gpu_gets_less_and_is_told():
    args, said = filled(*OWN_DATA)
    assert (args.data.max_seq_length, args.training["per_device_train_batch_size"]) == (256, 4)
    for words in (
        "(no GPU): --max_seq_length 256, --per_device_train",
        "--learning_rate 5e-05",
        "--num_train_epochs 3",
    ):
        assert words in said


def test_own_data_keeps_what_the_user_typed():
    args, said = filled(*OWN_DATA, "--max_seq_length", "1024", "--per_device_train_batch_size", "16")
    assert (args.data.max_seq_length, args.training["per_device_train_batch_size"]) == (1024, 16)
    assert "max_seq_length" not in said


def test_a_chosen_length_bends_to_the_models_positions():
    args, _ = filled(*OWN_DATA)
    text = SimpleNamespace(max_position_embeddings=128)
    assert build._block(args, SimpleNamespace(get_text_config=lambda: text)) == 128


def test_what_was_chosen_is_said_in_short_lines_with_each_reason_once():
    _, said = filled()
    assert said.count("default job") == 1
    assert "--max_seq_length 256" in said
    assert "--max_eval_samples 64" in said
    assert max(map(len, said.splitlines())) <= defaults.LINE


@pytest.mark.parametrize(("max_steps", "every"), [(5, 5), (50, 10)])
def test_a_short_run_shows_its_loss(max_steps, every):
    state = SimpleNamespace(logging_steps=10, max_steps=max_steps, is_world_process_zero=False)
    ProgressBar().on_train_begin(None, state, None)
    assert state.logging_steps == every
