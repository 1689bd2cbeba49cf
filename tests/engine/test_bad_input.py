"""What users get wrong: one message on one rank, exit code 2, no traceback, nothing written or lost."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.jobs import Ended

pytestmark = pytest.mark.slow


def refused(ended: Ended, *words: str) -> None:
    assert ended.code == 2, f"exit code {ended.code}\n{ended.output[-3000:]}"
    assert "Traceback" not in ended.output
    assert ended.output.count("zerotune: error:") == 1, ended.output[-3000:]
    message = ended.output[ended.output.index("zerotune: error:") :]
    for word in words:
        assert word in message, f"{word!r} is not in:\n{message}"


def write(path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_an_unknown_template_names_the_nearest(jobs):
    refused(jobs.train("--ds", "stage3_ofload"), "stage3_ofload", "stage3_offload")


def test_a_missing_config_file(jobs, tmp_path):
    write(tmp_path / "my_config.json", "{}")
    refused(jobs.train("--ds", str(tmp_path / "my_confg.json")), "my_confg.json", "my_config.json")


def test_broken_json_shows_the_place(jobs, tmp_path):
    path = write(tmp_path / "ds.json", '{\n  "zero_optimization": {"stage": 2}\n  "bf16": {"enabled": "auto"}\n}\n')
    refused(jobs.train("--ds", path), "ds.json:2:35", "a comma is missing", '"zero_optimization": {"stage": 2}')


def test_a_config_that_fights_the_flags_shows_both_sides_of_all(jobs, tmp_path):
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.001}},
        "zero_optimization": {"stage": 2},
    }
    path = write(tmp_path / "ds.json", json.dumps(config, indent=1))
    flags = ("--per_device_train_batch_size", "2", "--learning_rate", "5e-5", "--max_grad_norm", "1.0")
    ended = jobs.train("--ds", path, *flags, launcher="deepspeed", ranks=2)
    refused(
        ended, "train_micro_batch_size_per_gpu", "per_device_train_batch_size", "gradient_clipping", "max_grad_norm"
    )
    refused(ended, "learning_rate", "5e-05", "0.001")


def test_a_missing_dataset_file_names_its_neighbours(jobs, tmp_path):
    write(tmp_path / "chats.jsonl", '{"text": "a"}')
    refused(jobs.train("--dataset_name", str(tmp_path / "chat.jsonl")), "chat.jsonl: no such", "chats.jsonl")


def test_an_empty_dataset_file(jobs, tmp_path):
    refused(jobs.train("--dataset_name", write(tmp_path / "empty.jsonl", "")), "empty.jsonl is empty")


def test_a_broken_dataset_line(jobs, tmp_path):
    path = write(tmp_path / "broken.jsonl", '{"text": "fine"}\n{"text": "no end\n')
    refused(jobs.train("--dataset_name", path), "broken.jsonl", "cannot be read as json")


def test_a_dataset_without_usable_column_lists_its_columns(jobs, tmp_path):
    path = write(tmp_path / "rows.jsonl", '{"question": "a", "answer": "b"}\n' * 8)
    refused(jobs.train("--dataset_name", path), "no usable column", "question", "answer", "completion")


def test_examples_that_are_all_empty(jobs, tmp_path):
    path = write(tmp_path / "rows.jsonl", '{"text": ""}\n' * 8)
    refused(jobs.train("--dataset_name", path), "examples are empty")


def test_examples_that_are_all_too_long(jobs, tmp_path):
    row = json.dumps({"prompt": "word " * 500, "completion": "yes"})
    path = write(tmp_path / "rows.jsonl", f"{row}\n" * 8)
    refused(
        jobs.train("--dataset_name", path, "--max_seq_length", "64"), "longer than --max_seq_length 64", "the longest"
    )


def test_a_model_folder_without_weights_or_config(jobs, tmp_path):
    write(tmp_path / "config.json", '{"model_type": "llama"}')
    refused(jobs.train("--model_name_or_path", str(tmp_path)), "no weights", "config.json")
    (tmp_path / "config.json").unlink()
    write(tmp_path / "notes.txt", "x")
    refused(jobs.train("--model_name_or_path", str(tmp_path)), "no config.json", "notes.txt")


def test_a_quantized_model(jobs, tmp_path):
    from transformers import LlamaConfig

    from zerotune.training.data import corpus

    corpus.train_tokenizer(iter(["some words"] * 9), 300).save_pretrained(tmp_path)
    quantized = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    LlamaConfig(hidden_size=32, num_hidden_layers=1, quantization_config=quantized).save_pretrained(tmp_path)
    write(tmp_path / "model.safetensors", "x")
    refused(jobs.train("--model_name_or_path", str(tmp_path)), "quantized weights", "unquantized")


def test_an_output_folder_that_cannot_be_written(jobs, tmp_path):
    path = write(tmp_path / "file", "x")
    refused(jobs.train("--output_dir", f"{path}/run"), "cannot be written")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_an_output_folder_without_room(jobs, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        ended = jobs.train("--output_dir", str(disk / "run"), "--report_to", "none")
        refused(ended, "free", "needed", "checkpoints")
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_resume_folder_without_complete_checkpoint_lists_the_complete(jobs, tmp_path):
    from zerotune.checkpointing import completion

    complete, broken = tmp_path / "checkpoint-2", tmp_path / "checkpoint-4"
    for folder in (complete, broken):
        folder.mkdir()
        write(folder / "latest", "global_step")
    completion.write_marker(complete, world_size=1, step=2)
    refused(jobs.train("--resume_from_checkpoint", str(broken)), "not finished", str(complete))
    refused(jobs.train("--resume_from_checkpoint", str(tmp_path / "nothing")), "no such folder")


def test_a_resume_folder_that_the_trainer_did_not_write(jobs, tmp_path):
    from zerotune.checkpointing import completion

    folder = tmp_path / "checkpoint-2"
    folder.mkdir()
    write(folder / "latest", "global_step2")
    completion.write_marker(folder, world_size=4, step=2)
    refused(jobs.train("--resume_from_checkpoint", str(folder)), "trainer_state.json is missing", str(folder))


def test_a_resume_with_nothing_left_to_train(jobs, tmp_path):
    from zerotune.checkpointing import completion

    folder = tmp_path / "checkpoint-40"
    folder.mkdir()
    write(folder / "trainer_state.json", '{"global_step": 40, "epoch": 1.0}')
    completion.write_marker(folder, world_size=1, step=40)
    ended = jobs.train("--max_steps", "5", "--resume_from_checkpoint", "last", "--output_dir", str(tmp_path))
    refused(ended, "checkpoint-40 is already at or past --max_steps 5", "zerotune-export")


def test_fp16_that_the_device_lacks(jobs):
    refused(jobs.train("--fp16"), "--fp16", "fp32")


def test_a_finished_run_is_not_overwritten(jobs, tmp_path):
    write(tmp_path / "train_results.json", "{}")
    before = sorted(tmp_path.iterdir())
    refused(jobs.train("--output_dir", str(tmp_path)), "finished run", "--overwrite_output_dir")
    assert sorted(tmp_path.iterdir()) == before


def test_an_export_that_could_not_be_written_is_refused_before_training(jobs):
    refused(jobs.train("--export_dtype", "bf17"), "bf17", "bf16")
    refused(jobs.train("--export_max_shard_size", "5 bananas"), "5 bananas")


def test_a_port_in_use(jobs):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused(jobs.train("--max_steps", "1", MASTER_PORT=port), port, "--master_port")


def test_ctrl_c_ends_a_job_in_one_line(jobs, tmp_path):
    """SIGINT as a terminal sends it, to the whole foreground group, in the middle of the work."""
    import signal
    import sys
    import time

    from tests.jobs import TRAIN

    command = [sys.executable, TRAIN, "--output_dir", str(tmp_path / "run"), "--report_to", "none"]
    process = subprocess.Popen(
        command,
        cwd=jobs.cwd,
        env=jobs.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    seen = []
    for line in process.stdout:
        seen.append(line.decode(errors="replace"))
        if "zerotune: attention" in seen[-1]:
            break
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    output = "".join(seen) + rest.decode(errors="replace")
    assert process.returncode == 130, output[-3000:]
    assert output.rstrip().endswith("zerotune: interrupted"), output[-3000:]
    assert "Traceback" not in output


def test_an_unknown_flag_names_the_nearest(jobs):
    refused(jobs.train("--max_step", "3"), "--max_step", "--max_steps")


def test_more_ranks_than_gpus(monkeypatch):
    """The number of GPUs is outside this machine, so it is pretended."""
    import torch

    from zerotune.errors import UsageError
    from zerotune.preflight import devices

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match="3 ranks on this node but 2 GPUs"):
        devices.check(3, bf16=False, fp16=False)
