"""A file or folder that is not there is refused before anything heavy is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.jobs import REPO
from zerotune.errors import UsageError
from zerotune.training import arguments, model


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("--dataset_name", "chat.jsonl"),
        ("--validation_name", "./chat.jsonl"),
        ("--model_name_or_path", "./chats"),
        ("--tokenizer_name", "./chats"),
    ],
)
def test_a_missing_path_is_refused_without_torch(flag, name, tmp_path):
    (tmp_path / "chats.jsonl").write_text("{}\n")
    (tmp_path / "chat").mkdir()
    code = f"import sys; sys.argv = ['train.py', {flag!r}, {name!r}]\nimport os; leave = os._exit\n"
    code += (
        "os._exit = lambda code: (print('torch' in sys.modules, 'datasets' in sys.modules, flush=True), leave(code))\n"
    )
    code += "from zerotune import train; train.main()"
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout.strip() == "False False"
    assert f"{flag} {name}: no such" in ended.stderr
    assert "Near it: chat" in ended.stderr


def test_a_hub_name_without_network_is_not_sent_for_a_tokenizer(monkeypatch):
    from transformers import AutoTokenizer

    def offline(*_, **__):
        raise OSError("We couldn't connect to the hub, and couldn't find them in the cached files.\nCheck it.")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", offline)
    with pytest.raises(UsageError) as refused:
        model.tokenizer(arguments.parse(["--model_name_or_path", "gpt2"]))
    message = str(refused.value)
    assert "gpt2: no such folder here" in message
    assert "--tokenizer_name" not in message
    assert ".." not in message
