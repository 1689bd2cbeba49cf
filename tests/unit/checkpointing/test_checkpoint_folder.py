"""What users point the exporter at by mistake, and what it answers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zerotune.checkpointing.checkpoint_folder import open_checkpoint
from zerotune.checkpointing.model_keys import ModelKeys, audit, names_to_write
from zerotune.errors import UsageError

REPOSITORY = Path(__file__).parents[3]


def refusal(path, tag=None):
    with pytest.raises(UsageError) as caught:
        open_checkpoint(path, tag)
    return str(caught.value)


def touched(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["model.safetensors", "config.json"], "a plain safetensors model (it holds model.safetensors)"),
        (["model-00001-of-00002.safetensors"], "a plain safetensors model"),
        (["pytorch_model.bin"], "a plain PyTorch model"),
        (["adapter_model.safetensors", "adapter_config.json"], "a PEFT adapter"),
        (["pytorch_model_fsdp_0/.metadata", "trainer_state.json"], "an FSDP checkpoint"),
        ([".metadata", "__0_0.distcp"], "an FSDP checkpoint"),
        (["zero/model.norm.weight/fp32.pt", "latest_universal"], "a DeepSpeed universal checkpoint"),
        (["latest_checkpointed_iteration.txt"], "a Megatron-LM checkpoint"),
        (["trainer_state.json", "rng_state.pth"], "a Trainer checkpoint without DeepSpeed's files"),
    ],
)
def test_folders_of_other_tools_are_recognised(tmp_path, names, kind):
    assert f"no DeepSpeed ZeRO checkpoint, but {kind}" in refusal(touched(tmp_path, *names))


def test_unknown_and_empty_folders(tmp_path):
    assert refusal(tmp_path).endswith("the folder is empty.")
    assert "It holds: cat.jpg" in refusal(touched(tmp_path, "cat.jpg"))


def test_no_such_folder_names_siblings(tmp_path):
    for number in (20, 40):
        (tmp_path / f"checkpoint-{number}").mkdir()
    assert f"Did you mean {tmp_path / 'checkpoint-40'}" in refusal(tmp_path / "chekpoint-40")
    assert "no such folder (and no" in refusal(tmp_path / "gone" / "checkpoint-40")


def test_a_file_is_not_a_folder(tmp_path):
    assert "a file, not a folder" in refusal(touched(tmp_path, "x.pt") / "x.pt")


def test_tags_that_exist_are_listed(tmp_path):
    touched(tmp_path, "global_step1/mp_rank_00_model_states.pt", "global_step2/mp_rank_00_model_states.pt")
    assert "no file `latest` says which of global_step1, global_step2" in refusal(tmp_path)
    assert "--tag names 'global_step3', which holds no ranks' files. Tags there: global_step1" in refusal(
        tmp_path, "global_step3"
    )
    (tmp_path / "latest").write_text("global_step9\n")
    assert "its file `latest` names 'global_step9'" in refusal(tmp_path)


def test_a_run_without_a_complete_checkpoint_lists_the_reasons(tmp_path):
    touched(tmp_path, "checkpoint-5/short", "checkpoint-9/latest", "checkpoint-10/x", "checkpoint-x/y")
    (tmp_path / "checkpoint-5/zerotune_checkpoint.json").write_text('{"files": {"short": 9}}')
    (tmp_path / "checkpoint-10/zerotune_checkpoint.json").write_text('{"files": {"gone": 9}}')
    assert refusal(tmp_path).splitlines() == [
        f"{tmp_path}: none of its checkpoints is complete:",
        "  passed over checkpoint-10: gone is missing",
        "  passed over checkpoint-9: it was not finished (zerotune_checkpoint.json is absent)",
        "  passed over checkpoint-5: short has 0 bytes, not 9",
    ]


def test_tensor_parallel_files_are_refused(tmp_path):
    touched(tmp_path, "mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt")
    assert "tensor parallelism" in refusal(tmp_path)


def test_audit_names_all_kinds_at_once():
    keys = ModelKeys("Toy", {"a": [2], "b": [3], "head": [2], "skip.me": [1]}, {"head": "a"}, ("^skip",))
    audit(keys, {"a": (2,), "b": (3,)}, Path("config.json"))
    with pytest.raises(UsageError) as caught:
        audit(keys, {"a": (5,), "c": (1,)}, Path("config.json"))
    message = str(caught.value)
    assert "1 missing: b [3]" in message
    assert "1 unexpected: c [1]" in message
    assert "1 of another shape: a [5], the model has [2]" in message


def test_audit_shows_the_first_keys_and_counts_the_rest():
    shapes = {f"layer.{number}": [1] for number in range(9)}
    with pytest.raises(UsageError, match=r"9 missing: layer\.0 \[1\].*layer\.4 \[1\] and 4 more"):
        audit(ModelKeys("Toy", shapes), {}, Path("config.json"))


@pytest.mark.parametrize(
    ("tied", "written"),
    [
        ({"head": "embed"}, {"x": "x", "embed": "embed"}),
        ({"embed": "head"}, {"x": "x", "head": "embed"}),
        ({}, {"x": "x", "embed": "embed", "head": "embed"}),
    ],
)
def test_shared_tensors_are_written_as_transformers_stores_them(tied, written):
    keys = ModelKeys("Toy", {"x": [1], "embed": [2], "head": [2]}, tied)
    assert names_to_write(["x", "embed"], {"head": "embed"}, keys) == written


def test_without_a_model_a_shared_tensor_is_written_once():
    assert names_to_write(["embed"], {"head": "embed"}, ModelKeys()) == {"embed": "embed"}


def test_command_answers_mistakes_with_one_message_and_exit_code_2(tmp_path):
    for arguments in (["nowhere", "out"], [str(tmp_path), "out"], [str(tmp_path), "out", "--dtype", "int8"], ["one"]):
        command = [sys.executable, "-m", "zerotune.checkpointing.export_command", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60)
        assert done.returncode == 2, arguments
        assert done.stderr and not done.stdout and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_exporter_needs_no_torch():
    script = (
        "import sys, zerotune.checkpointing.export as e; "
        "assert not {'torch', 'transformers', 'deepspeed'} & set(sys.modules), 'imported'"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
