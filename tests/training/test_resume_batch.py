"""train.py reads a checkpoint's batch sizes from its own files before anything is built, and refuses damaged ones."""

from __future__ import annotations

import pytest

from zerotune.errors import UsageError
from zerotune.training import resume

torch = pytest.importorskip("torch")

AUTO = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}


@pytest.fixture
def checkpoint(tmp_path, monkeypatch):
    """Of 2 ranks at stage 2, with 8 = 2 x 2 x 2 sequences a step; this job has one rank."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    folder = tmp_path / "global_step4"
    folder.mkdir()
    (tmp_path / "latest").write_text("global_step4")
    sizes = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "train_batch_size": 8}
    model = {"module": {}, "buffer_names": [], "param_shapes": [{"w": (6,)}], "dp_world_size": 2, "ds_config": sizes}
    torch.save(model, folder / "mp_rank_00_model_states.pt")
    for rank in range(2):
        states = {
            "single_partition_of_fp32_groups": [torch.zeros(4 - rank * 2)],
            "zero_stage": 2,
            "partition_count": [2],
        }
        torch.save({"optimizer_state_dict": states}, folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    return tmp_path


def values(**changes) -> dict:
    return {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, **changes}


def test_accumulation_takes_over_what_a_rank_did(checkpoint, capsys):
    training = values()
    resume.keep_global_batch(checkpoint, training, set(), AUTO)
    assert training == values(per_device_train_batch_size=2, gradient_accumulation_steps=4)
    told = "resume: global batch 8 = 2 rank(s) x 2 x 2 accumulated; now 8 = 1 rank(s) x 2 x 4 accumulated"
    assert told in capsys.readouterr().out


def test_what_flags_and_config_fix_stays_or_clashes(checkpoint):
    training = values()
    resume.keep_global_batch(checkpoint, training, {"per_device_train_batch_size"}, AUTO)
    assert training == values()
    training = values(gradient_accumulation_steps=2)
    resume.keep_global_batch(checkpoint, training, set(), {"gradient_accumulation_steps": 2})
    assert training == values(per_device_train_batch_size=4, gradient_accumulation_steps=2)
    with pytest.raises(UsageError, match=r"--per_device_train_batch_size 3 on 1 rank\(s\) cannot make 8"):
        resume.keep_global_batch(
            checkpoint, values(per_device_train_batch_size=3), {"per_device_train_batch_size"}, AUTO
        )  # fmt: skip
    training = values(per_device_train_batch_size=3, ignore_data_skip=True)
    resume.keep_global_batch(checkpoint, training, {"per_device_train_batch_size"}, AUTO)
    assert training["per_device_train_batch_size"] == 3


def test_a_missing_rank_is_named_before_anything_is_built(checkpoint):
    (checkpoint / "global_step4" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(UsageError, match=r"missing: zero_pp_rank_1_mp_rank_00_optim_states.pt \(the run had 2 ranks\)"):
        resume.keep_global_batch(checkpoint, values(), set(), AUTO)


def test_another_tools_folder_is_named(tmp_path):
    (tmp_path / "pytorch_model_fsdp.bin").write_bytes(b"")
    with pytest.raises(UsageError, match="an FSDP checkpoint"):
        resume.keep_global_batch(tmp_path, values(), set(), AUTO)
