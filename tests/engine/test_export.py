"""The exporter against DeepSpeed's own zero_to_fp32, on checkpoints that a real engine wrote on 2 CPU ranks.

Run as a script under the deepspeed launcher this file writes the checkpoints (`write_all`); pytest starts
that job once and compares. The cases cover stages 1, 2, 3, both precisions, both offloads, frozen and tied
weights, two parameter groups, odd sizes (padding), small sub-groups and persistent parameters.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from zerotune.checkpointing import torch_archive
from zerotune.checkpointing.export import export_checkpoint
from zerotune.checkpointing.output_folder import WORK
from zerotune.errors import UsageError

REPOSITORY = Path(__file__).parents[2]
RANKS = 2
JOB_SECONDS = 400
CASES = {
    # name: (stage, precision, offload, frozen, tied, extra zero_optimization keys)
    "s1_bf16": (1, "bf16", "none", False, True, {}),
    "s1_bf16_frozen": (1, "bf16", "none", True, False, {}),
    "s1_fp32_offload": (1, "fp32", "optimizer", False, False, {}),
    "s2_bf16_frozen": (2, "bf16", "none", True, True, {}),
    "s2_fp32": (2, "fp32", "none", False, False, {}),
    "s2_bf16_offload": (2, "bf16", "optimizer", False, True, {"round_robin_gradients": True}),
    "s3_bf16_frozen": (3, "bf16", "none", True, True, {"stage3_param_persistence_threshold": 64}),
    "s3_bf16_subgroups": (3, "bf16", "none", False, False, {"sub_group_size": 3000}),
    "s3_fp32": (3, "fp32", "none", False, True, {"stage3_param_persistence_threshold": 0}),
    "s3_bf16_offload": (3, "bf16", "both", True, False, {"sub_group_size": 3000}),
    "s3_fp32_offload": (3, "fp32", "both", False, True, {}),
}

# Layouts that zero_to_fp32 refuses; the weights are compared with those of the model states file.
BEYOND_ZERO_TO_FP32 = {
    "s0_bf16": (0, "bf16", "none", True, True, {}),
    "s0_fp32": (0, "fp32", "none", False, False, {}),
    "s1_bf16_optimizer": (1, "bf16", "none", True, True, {"grad_accum_dtype": "fp32"}),
}


def engine_config(stage, precision, offload, extra):
    extra = dict(extra)
    data_types = (
        {"data_types": {"grad_accum_dtype": extra.pop("grad_accum_dtype")}} if "grad_accum_dtype" in extra else {}
    )
    zero = {"stage": stage, **extra}
    if offload in ("optimizer", "both"):
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload == "both":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": zero,
        "bf16": {"enabled": precision == "bf16"},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        **data_types,
    }


def tiny_llama(tied, layers=2):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=97,
        hidden_size=35,  # odd, so that every weight is padded to the ranks
        intermediate_size=55,
        num_hidden_layers=layers,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=6,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )


def parameter_groups(model):
    """Two groups, as the HF Trainer makes them: with and without weight decay."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for name, p in trained if "norm" not in name], "weight_decay": 0.1},
        {"params": [p for name, p in trained if "norm" in name], "weight_decay": 0.0},
    ]


def train_and_save(model, config, folder, tag, vocabulary, **options):
    import deepspeed
    import torch

    optimizer = torch.optim.AdamW(parameter_groups(model), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for _ in range(2):
        tokens = torch.randint(0, vocabulary, (1, 16))
        output = engine(input_ids=tokens, labels=tokens)
        engine.backward(output.loss)
        engine.step()
    engine.save_checkpoint(str(folder), tag=tag, **options)
    engine.destroy()


def write_case(name, root):
    import deepspeed
    import torch
    from transformers import LlamaForCausalLM

    stage, precision, offload, frozen, tied, extra = {**CASES, **BEYOND_ZERO_TO_FP32}[name]
    config = engine_config(stage, precision, offload, extra)
    architecture = tiny_llama(tied)
    torch.manual_seed(1)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=stage == 3):
        model = LlamaForCausalLM(architecture)
    if frozen:
        for parameter in model.model.layers[0].mlp.parameters():
            parameter.requires_grad_(False)
    folder = root / name / "checkpoint-2"
    train_and_save(model, config, folder, "global_step2", architecture.vocab_size)
    if int(os.environ["RANK"]) == 0:
        architecture.architectures = ["LlamaForCausalLM"]
        architecture.save_pretrained(folder)


def module_with_buffers():
    """A model of no library: persistent buffers of two types and a parameter shared by two layers."""
    import torch

    class Output:
        def __init__(self, loss):
            self.loss = loss

    class Small(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Linear(7, 7)
            self.norm = torch.nn.LayerNorm(7)
            self.second = torch.nn.Linear(7, 7)
            self.second.weight = self.first.weight
            self.register_buffer("scale", torch.full((3,), 1.5))
            self.register_buffer("count", torch.tensor([4, 5], dtype=torch.int64))

        def forward(self, input_ids, labels):
            x = self.first(torch.nn.functional.one_hot(input_ids % 7, 7).to(self.first.weight.dtype))
            return Output(self.second(self.norm(x)).float().pow(2).mean())

    return Small()


def write_lora(root):
    """As the HF Trainer saves a PEFT model: the frozen base is not in the checkpoint."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaForCausalLM

    torch.manual_seed(2)
    model = LlamaForCausalLM(tiny_llama(tied=False))
    if int(os.environ["RANK"]) == 0:
        model.save_pretrained(root / "base")
    lora = LoraConfig(r=3, lora_alpha=8, target_modules=["q_proj", "down_proj"], modules_to_save=["lm_head"])
    model = get_peft_model(model, lora)
    folder = root / "lora" / "checkpoint-2"
    train_and_save(
        model, engine_config(3, "bf16", "none", {}), folder, "global_step2", 97, exclude_frozen_parameters=True
    )
    if int(os.environ["RANK"]) == 0:
        lora.save_pretrained(folder)


def write_all(root):
    import deepspeed

    deepspeed.init_distributed()
    for name in (*CASES, *BEYOND_ZERO_TO_FP32):
        write_case(name, root)
    for stage in (1, 2, 3):
        config = engine_config(stage, "bf16", "none", {})
        train_and_save(module_with_buffers(), config, root / f"buffers_s{stage}", "global_step2", 97)
    if find_spec("peft"):
        write_lora(root)
    deepspeed.comm.barrier()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Start the job as a user would; remove the shared-memory files that it leaves."""
    root = tmp_path_factory.mktemp("checkpoints")
    launcher = str(Path(sys.executable).with_name("deepspeed"))
    port = str(free_port())
    command = [launcher, "--num_gpus", str(RANKS), "--master_port", port, __file__, str(root)]
    try:
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=JOB_SECONDS)
    finally:
        for left in Path("/dev/shm").glob(f"deepspeed_*_{port}_*"):
            left.unlink(missing_ok=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return root


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment():
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}


def reference(checkpoint):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    return get_fp32_state_dict_from_zero_checkpoint(str(checkpoint))


def exported(report):
    from safetensors.torch import load_file

    return {name: tensor for file in report.files for name, tensor in load_file(report.out / file).items()}


def same_bits(left, right):
    import torch

    return (
        left.dtype == right.dtype
        and left.shape == right.shape
        and torch.equal(left.contiguous().view(-1).view(torch.uint8), right.contiguous().view(-1).view(torch.uint8))
    )


def assert_equal_reference(weights, expected, dtype, extra=()):
    """Every name of zero_to_fp32 except aliases, equal to its bits; beyond them only the names in `extra`."""
    assert set(weights) - set(expected) == set(extra)
    for name in set(weights) & set(expected):
        want = expected[name].to(dtype) if expected[name].is_floating_point() else expected[name]
        assert same_bits(weights[name], want), name


@pytest.mark.parametrize("name", CASES)
def test_fp32_equals_zero_to_fp32_bit_for_bit(checkpoints, tmp_path, name):
    import torch

    stage, _, _, frozen, tied, _ = CASES[name]
    checkpoint = checkpoints / name / "checkpoint-2"
    expected = reference(checkpoint)
    report = export_checkpoint(checkpoint, tmp_path / "out", dtype="fp32", max_shard_size="40KB", check_model=False)
    weights = exported(report)
    lost_by_zero_to_fp32 = [f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
    assert_equal_reference(weights, expected, torch.float32, lost_by_zero_to_fp32 if stage == 1 and frozen else ())
    assert set(expected) - set(weights) == ({"lm_head.weight"} if tied else set())
    assert len(report.files) > 1


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_rounding_equals_torch(checkpoints, tmp_path, dtype):
    import torch

    checkpoint = checkpoints / "s3_fp32" / "checkpoint-2"
    report = export_checkpoint(checkpoint, tmp_path / "out", dtype=dtype, check_model=False)
    target = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert_equal_reference(exported(report), reference(checkpoint), target)


@pytest.mark.parametrize("name", ["s1_bf16_frozen", "s2_bf16_frozen", "s3_bf16_frozen", "s3_fp32_offload"])
def test_plain_transformers_loads_it_with_nothing_missing(checkpoints, tmp_path, name):
    import torch
    from transformers import AutoModelForCausalLM

    checkpoint = checkpoints / name / "checkpoint-2"
    report = export_checkpoint(checkpoint, tmp_path / "out", max_shard_size="20KB")
    assert report.notes == ()
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.dtype == torch.bfloat16
    for key, tensor in reference(checkpoint).items():
        assert same_bits(model.state_dict()[key], tensor.to(torch.bfloat16)), key


@pytest.mark.parametrize("name", BEYOND_ZERO_TO_FP32)
def test_layouts_that_zero_to_fp32_refuses(checkpoints, tmp_path, name):
    import torch

    checkpoint = checkpoints / name / "checkpoint-2"
    report = export_checkpoint(checkpoint / "global_step2", tmp_path / "out", dtype="fp32")
    module = torch.load(checkpoint / "global_step2" / "mp_rank_00_model_states.pt")["module"]
    weights = exported(report)
    tied = BEYOND_ZERO_TO_FP32[name][4]
    assert set(module) - set(weights) == ({"lm_head.weight"} if tied else set())
    assert report.notes == ()
    for key, tensor in weights.items():
        assert same_bits(tensor.to(module[key].dtype), module[key]), key


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_buffers_keep_their_type_and_a_shared_parameter_is_written_once(checkpoints, tmp_path, stage):
    import torch
    from safetensors import safe_open

    checkpoint = checkpoints / f"buffers_s{stage}"
    report = export_checkpoint(checkpoint, tmp_path / "out", dtype="fp32")
    weights = exported(report)
    assert_equal_reference(weights, reference(checkpoint), torch.float32)
    assert weights["count"].dtype == torch.int64
    assert "second.weight" not in weights
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata()["second.weight"] == "first.weight"
    assert "no config.json" in report.notes[0]


def test_types_in_the_files_are_those_the_reader_documents(checkpoints):
    """If DeepSpeed starts to write other types, torch_archive's docstring and reader need another look."""
    import torch

    found = set()
    for path in checkpoints.rglob("*.pt"):
        found |= set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    assert found == {
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.utils.tensor_fragment.fragment_address",
    }
    for name in found:
        assert name.rpartition(".")[2] in torch_archive.__doc__


def test_a_finished_shard_is_compared_and_kept_and_a_damaged_one_rewritten(checkpoints, tmp_path):
    checkpoint = checkpoints / "s3_bf16_subgroups" / "checkpoint-2"
    whole = export_checkpoint(checkpoint, tmp_path / "whole", max_shard_size="20KB", check_model=False)
    assert len(whole.files) > 2
    work = tmp_path / "out" / WORK
    work.mkdir(parents=True)
    for name in whole.files[:2]:
        shutil.copy(whole.out / name, work / name)
    damaged = bytearray((work / whole.files[1]).read_bytes())
    damaged[-1] ^= 1
    (work / whole.files[1]).write_bytes(damaged)
    report = export_checkpoint(checkpoint, tmp_path / "out", max_shard_size="20KB", check_model=False)
    assert report.notes == (
        "the keys were not compared with a model: switched off",
        f"kept from an earlier run, after comparing them: {whole.files[0]}",
    )
    assert not work.exists()
    for name in whole.files:
        assert (report.out / name).read_bytes() == (whole.out / name).read_bytes()


def test_overwrite_leaves_no_shard_of_the_model_before(checkpoints, tmp_path):
    out = tmp_path / "out"
    export_checkpoint(checkpoints / "s2_fp32/checkpoint-2", out, max_shard_size="20KB", check_model=False)
    (out / "notes.txt").write_text("mine")
    report = export_checkpoint(checkpoints / "s3_fp32/checkpoint-2", out, overwrite=True, check_model=False)
    names = {path.name for path in out.iterdir()}
    assert names == {"model.safetensors", "config.json", "README.md", "notes.txt"}
    assert report.files == ("model.safetensors",)


def test_an_output_folder_gives_its_newest_complete_checkpoint(checkpoints, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(checkpoints / "s3_fp32" / "checkpoint-2", run / "checkpoint-2")
    shutil.copytree(checkpoints / "s3_fp32" / "checkpoint-2", run / "checkpoint-10")
    next((run / "checkpoint-10").rglob("*rank_1*optim*")).unlink()
    notes = export_checkpoint(run, tmp_path / "out", check_model=False).notes
    assert "checkpoint-2, the newest complete checkpoint" in notes[0]
    assert "passed over checkpoint-10" in notes[1] and "zero_pp_rank_1" in notes[1]


def damaged_copy(checkpoints, name, tmp_path):
    folder = tmp_path / "checkpoint-2"
    shutil.copytree(checkpoints / name / "checkpoint-2", folder)
    return folder


def refused(checkpoint, out, **options):
    """The one message; neither the checkpoint nor `out` may change."""
    before = {path: path.stat().st_mtime_ns for path in sorted(tmp_tree(checkpoint) | tmp_tree(out))}
    with pytest.raises(UsageError) as caught:
        export_checkpoint(checkpoint, out, **options)
    assert {path: path.stat().st_mtime_ns for path in sorted(tmp_tree(checkpoint) | tmp_tree(out))} == before
    return str(caught.value)


def tmp_tree(folder):
    return {path for path in folder.rglob("*") if path.is_file()} if folder.is_dir() else set()


@pytest.mark.parametrize("name", ["s2_fp32", "s3_fp32"])
def test_a_missing_rank_is_named(checkpoints, tmp_path, name):
    checkpoint = damaged_copy(checkpoints, name, tmp_path)
    (checkpoint / "global_step2" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink()
    message = refused(checkpoint, tmp_path / "out")
    assert "missing: zero_pp_rank_0_mp_rank_00_optim_states.pt (the run had 2 ranks)" in message


def test_a_truncated_file_is_named(checkpoints, tmp_path):
    checkpoint = damaged_copy(checkpoints, "s3_fp32", tmp_path)
    path = checkpoint / "global_step2" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    path.write_bytes(path.read_bytes()[:-5000])
    message = refused(checkpoint, tmp_path / "out")
    assert f"{path}: truncated or damaged" in message


def test_files_of_two_runs_are_told_apart(checkpoints, tmp_path):
    checkpoint = damaged_copy(checkpoints, "s3_fp32", tmp_path)
    other = checkpoints / "s2_fp32" / "checkpoint-2" / "global_step2" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shutil.copy(other, checkpoint / "global_step2")
    message = refused(checkpoint, tmp_path / "out")
    assert "files of two runs are mixed" in message
    assert "with ZeRO stage 3" in message and "with ZeRO stage 2" in message


def test_two_precisions_in_one_folder_are_two_runs(checkpoints, tmp_path):
    checkpoint = damaged_copy(checkpoints, "s3_fp32", tmp_path)
    other = checkpoints / "s3_bf16_frozen" / "checkpoint-2" / "global_step2"
    shutil.copy(next(other.glob("*rank_0*optim*")), checkpoint / "global_step2")
    assert "rank 0 is there twice" in refused(checkpoint, tmp_path / "out")


def test_config_of_another_model_names_keys_and_shapes_at_once(checkpoints, tmp_path):
    checkpoint = damaged_copy(checkpoints, "s3_fp32", tmp_path)
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {"num_hidden_layers": 3, "intermediate_size": 56}
    (checkpoint / "config.json").write_text(json.dumps(config))
    message = refused(checkpoint, tmp_path / "out")
    assert "9 missing: model.layers.2." in message
    assert "6 of another shape: model.layers.0.mlp.gate_proj.weight [55, 35], the model has [56, 35]" in message
    assert not (tmp_path / "out").exists()


def test_taken_folders_are_refused(checkpoints, tmp_path):
    checkpoint = checkpoints / "s3_fp32" / "checkpoint-2"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("x")
    assert "is not empty (it holds thesis.tex)" in refused(checkpoint, tmp_path / "out")
    assert "holds the checkpoint itself" in refused(checkpoint, checkpoint, overwrite=True)
    assert "is a file" in refused(checkpoint, checkpoint / "config.json")


def test_no_room_says_needed_and_free(checkpoints, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    message = refused(checkpoints / "s3_fp32" / "checkpoint-2", tmp_path / "out")
    assert "no room: the export needs 0.07 GB more and 0.00 GB are free" in message
    assert not (tmp_path / "out").exists()


def run_command(*arguments):
    command = [sys.executable, "-m", "zerotune.checkpointing.export_command", *map(str, arguments)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)


def test_command_line(checkpoints, tmp_path):
    checkpoint = checkpoints / "s3_fp32" / "checkpoint-2"
    done = run_command(checkpoint, tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{tmp_path / 'out'}: 20 weights, 0.00 GB in 1 file (bf16), ")
    again = run_command(checkpoint, tmp_path / "out")
    assert again.returncode == 2
    assert again.stderr.startswith(f"zerotune-export: {tmp_path / 'out'}: is not empty")
    assert again.stderr.count("\n") == 1 and not again.stdout


@pytest.mark.skipif(not find_spec("peft"), reason="peft is an optional extra")
def test_a_lora_run_gives_an_adapter_that_peft_loads_and_merges_as_peft_does(checkpoints, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    checkpoint = checkpoints / "lora" / "checkpoint-2"
    adapter = export_checkpoint(checkpoint, tmp_path / "adapter", dtype="fp32")
    assert adapter.files == ("adapter_model.safetensors",) and adapter.notes == ()
    base = AutoModelForCausalLM.from_pretrained(checkpoints / "base")
    expected = PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload().state_dict()
    report = export_checkpoint(
        checkpoint, tmp_path / "whole", dtype="fp32", merge_adapter=True, base_model=checkpoints / "base"
    )
    weights = exported(report)
    assert set(weights) == set(expected)
    untouched = {name for name in expected if not any(part in name for part in ("q_proj", "down_proj"))}
    for name, tensor in weights.items():
        # scale * (up @ down) is one fused product here and two roundings apart in peft
        assert same_bits(tensor, expected[name]) if name in untouched else tensor.allclose(expected[name], atol=1e-6)


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_ctrl_c_is_quiet_and_the_same_command_continues(checkpoints, tmp_path):
    """Interrupted where it waits for the model's keys, seconds after the shards of this small model are written."""
    checkpoint, out = checkpoints / "s3_fp32" / "checkpoint-2", tmp_path / "out"
    command = [sys.executable, "-m", "zerotune.checkpointing.export_command", str(checkpoint), str(out)]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for((out / WORK / "model.safetensors").exists)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert (process.returncode, printed) == (130, "")
    assert errors.strip() == (
        f"zerotune-export: stopped. 1 finished file is kept in {out / WORK}; the same command continues."
    )
    assert [path.name for path in out.iterdir()] == [WORK]
    done = run_command(checkpoint, out)
    assert done.returncode == 0
    assert "kept from an earlier run, after comparing them: model.safetensors" in done.stderr


if __name__ == "__main__":
    write_all(Path(sys.argv[-1]))
