"""Background saves by real engines: what is written is what DeepSpeed writes, and training does not notice."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.engine import forked_ranks
from zerotune.checkpointing import saving
from zerotune.checkpointing.completion import what_is_damaged, what_is_wrong

CONFIGS = {
    "stage0": {"zero_optimization": {"stage": 0}},
    "stage1 bf16": {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True}},
    "stage2 bf16 offload": {
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "bf16": {"enabled": True},
    },
    "stage3 bf16 offload": {
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
        "bf16": {"enabled": True},
    },
}
WIDTH, STEPS, SAVED = 96, 4, 2


def make_engine(config: dict):
    import deepspeed
    import torch

    class Net(torch.nn.Module):
        """Two layers, and a buffer that every forward pass changes."""

        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
            self.register_buffer("seen", torch.zeros(1000))

        def forward(self, rows):
            self.seen += 1
            return self.second(self.first(rows).relu()).float().pow(2).mean()

    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=config["zero_optimization"]["stage"] == 3):
        net = Net()
    params = torch.nn.Module.parameters(net)
    return deepspeed.initialize(model=net, model_parameters=params, config=config)[0]


def full(config: dict) -> dict:
    adam = {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}}
    common = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "optimizer": adam}
    return {**common, **config, "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}


def train(engine, first: int, last: int) -> list[float]:
    import torch

    losses = []
    dtype = next(engine.module.parameters()).dtype
    for micro in range(2 * first, 2 * last):
        rows = torch.randn(2, WIDTH, generator=torch.Generator().manual_seed(micro)).to(dtype)
        loss = engine(rows)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def make_saver(say=lambda line: None, **changes):
    from zerotune.checkpointing import background
    from zerotune.training import ranks

    gathers = {"gather": ranks.new_gather(), "gather_in_thread": ranks.new_gather()}
    of_ranks = {"rank": ranks.rank(), "world_size": ranks.world_size(), "per_node": ranks.world_size()}
    return background.BackgroundSaver(**{**of_ranks, **gathers, "retain": lambda save: None, "say": say, **changes})


def saved_and_not(name: str, folder: Path) -> dict:
    """Train without saving; then the same with a slow save in the background, beside DeepSpeed's own of that step."""
    import time

    import deepspeed
    import torch

    from zerotune.checkpointing import checkpoint_engine, snapshot

    deepspeed.init_distributed(verbose=False)
    config = full(CONFIGS[name])
    plain = train(make_engine(config), 0, STEPS)

    engine, saver = make_engine(config), make_saver()
    losses = train(engine, 0, SAVED)
    engine.save_checkpoint(str(folder / "stock"), tag="same")
    assert checkpoint_engine.install(engine, saver) is None
    expected = checkpoint_engine.state_bytes(engine)
    at_once, started = snapshot.copy, time.monotonic()

    def slow(*arguments):
        time.sleep(1)
        at_once(*arguments)

    snapshot.copy = slow  # nothing may be copied before the passes that follow have begun
    assert saver.open(folder / f"checkpoint-{SAVED}", SAVED)
    engine.save_checkpoint(str(folder / f"checkpoint-{SAVED}"), tag="same")
    assert saver.start()
    called = time.monotonic() - started
    losses += train(engine, SAVED, SAVED + 1)
    waited = time.monotonic() - started
    losses += train(engine, SAVED + 1, STEPS)
    saver.wait()
    snapshot.copy = at_once
    del engine

    again = make_engine(config)
    again.load_checkpoint(str(folder / f"checkpoint-{SAVED}"))
    resumed = train(again, SAVED, STEPS)
    again.save_checkpoint(str(folder / "later"))  # none is open: DeepSpeed's own way
    torch.distributed.barrier()
    return {
        "plain": plain,
        "losses": losses,
        "resumed": resumed,
        "called": called,
        "waited": waited,
        "expected": expected,
        "buffer": saver.buffer.num_bytes,
    }


def same(left, right, where: str = "") -> None:
    """Assert that two loaded trees are equal, tensors bit for bit."""
    import torch

    assert type(left) is type(right), where
    if isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right), where
    elif isinstance(left, dict):
        assert list(left) == list(right), where
        for key in left:
            same(left[key], right[key], f"{where}/{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), where
        for number, (one, other) in enumerate(zip(left, right, strict=True)):
            same(one, other, f"{where}/{number}")
    elif hasattr(left, "__dict__"):
        same(vars(left), vars(right), where)
    else:
        assert left == right, where


@pytest.fixture(scope="module", params=CONFIGS)
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saving")
    return request.param, folder, forked_ranks.run(saved_and_not, 2, request.param, folder)


@pytest.mark.slow
class TestEngines:
    def test_the_losses_are_those_of_a_run_without_saving(self, case):
        for answer in case[2]:
            assert answer["losses"] == answer["plain"]

    def test_a_stock_engine_goes_on_from_it(self, case):
        for answer in case[2]:
            assert answer["resumed"] == answer["plain"][2 * SAVED :]

    def test_the_optimizer_waits_for_the_copies_and_nothing_else_does(self, case):
        for answer in case[2]:
            assert answer["waited"] > 1  # the copies began after a second
            assert answer["called"] < answer["waited"]

    def test_it_is_complete_and_holds_what_deepspeed_writes(self, case):
        import torch

        name, folder, answers = case
        ours, stock = folder / f"checkpoint-{SAVED}", folder / "stock"
        assert what_is_wrong(ours) is None and what_is_damaged(ours) is None
        files = sorted(path.relative_to(stock) for path in stock.rglob("*") if path.is_file())
        present = {path.relative_to(ours) for path in ours.rglob("*") if path.is_file()}
        assert present - set(files) == {Path("zerotune_checkpoint.json")} and set(files) <= present
        for path in files:
            if path.suffix == ".pt":
                left, right = (torch.load(one / path, weights_only=False) for one in (ours, stock))
                same(left, right, f"{name} {path}")
        assert {answer["expected"] for answer in answers} == {answer["buffer"] for answer in answers}

    def test_zero_to_fp32_reads_it(self, case):
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint as read

        name, folder, _ = case
        if name == "stage0":
            pytest.skip("zero_to_fp32 reads ZeRO checkpoints")
        ours, stock = (read(str(folder / one)) for one in (f"checkpoint-{SAVED}", "stock"))
        same(dict(ours), dict(stock))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fails_on_one_rank(run: Path) -> list[str]:
    """The disk of rank 1 is full in the middle of a write; then one of rank 0 is; then all is well."""
    import errno

    import torch
    import torch.distributed as dist

    from zerotune.checkpointing import snapshot

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    said: list[str] = []
    saver, really = make_saver(said.append), snapshot.write

    def full_disk(file):
        raise OSError(errno.ENOSPC, "No space left on device", str(file.path))

    for step, fails in ((1, None), (2, 1), (3, 0), (4, None)):
        folder = run / f"checkpoint-{step}"
        snapshot.write = full_disk if rank == fails else really
        assert saver.open(folder, step)
        folder.mkdir(exist_ok=True)
        saver.add({"weights": torch.arange(1000.0) + step}, folder / f"rank_{rank}.pt")
        assert saver.start()
        saver.wait_until_copied()
    saver.wait()
    return said if rank == 0 else [str(one) for one in saver.failed]


@pytest.mark.slow
def test_one_full_disk_costs_that_checkpoint_only(tmp_path):
    said, failed = forked_ranks.run(fails_on_one_rank, 2, tmp_path)
    assert [path.name for path in saving.complete(tmp_path)] == ["checkpoint-1", "checkpoint-4"]
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-4"]
    warnings = [line for line in said if "warning" in line]
    assert len(warnings) == 2 and all("No space left on device" in line for line in warnings)
    assert failed == [str(tmp_path / f"checkpoint-{step}") for step in (2, 3)]


@pytest.fixture
def small_disk(tmp_path):
    """A tmpfs of 64 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def save_alone(saver, folder: Path, step: int, megabytes: int) -> bool:
    import torch

    target = folder / f"checkpoint-{step}"
    if not saver.open(target, step):
        return False
    target.mkdir(exist_ok=True)
    saver.add({"weights": torch.full((megabytes << 18,), float(step))}, target / "rank_0.pt")
    done = saver.start()
    saver.wait()
    return done


def test_a_full_disk_is_noticed_and_survived(small_disk, monkeypatch):
    import torch

    from zerotune.checkpointing import background

    said: list[str] = []
    saver = make_saver(said.append, rank=0, world_size=1, per_node=1)
    assert save_alone(saver, small_disk, 1, 20)
    assert not save_alone(saver, small_disk, 2, 40)  # 44 MiB are free, and some must stay
    assert "checkpoint-2 is not saved" in said[-1] and "needed" in said[-1]
    monkeypatch.setattr(background, "SMALL_FILES", -(100 << 20))  # somebody else fills the disk meanwhile
    assert save_alone(saver, small_disk, 3, 60)
    assert "checkpoint-3 is not saved" in said[-1] and "No space left" in said[-1]
    assert names(small_disk) == ["checkpoint-1"]
    assert save_alone(saver, small_disk, 4, 10)
    found, passed_over = saving.find("last", small_disk)
    assert found.name == "checkpoint-4" and not passed_over
    assert torch.equal(torch.load(found / "rank_0.pt")["weights"], torch.full((10 << 18,), 4.0))


def test_without_memory_for_copies_it_saves_in_the_foreground(tmp_path, monkeypatch):
    from zerotune.checkpointing import background

    monkeypatch.setattr(background.host_memory, "free_bytes", lambda: 1 << 20)
    said: list[str] = []
    saver = make_saver(said.append, rank=0, world_size=1, per_node=1)
    saver.prepare(8 << 20)
    assert save_alone(saver, tmp_path, 1, 8) and save_alone(saver, tmp_path, 2, 8)
    assert len(said) == 1 and said[0].startswith("saving in the foreground: copies need 8.0 MiB")
    assert saver.buffer.num_bytes == 0
    assert [path.name for path in saving.complete(tmp_path)] == ["checkpoint-1", "checkpoint-2"]
    assert what_is_damaged(tmp_path / "checkpoint-2") is None


def test_a_step_saved_again_keeps_the_old_one_until_the_new_one_is_complete(tmp_path, monkeypatch):
    import torch

    from zerotune.checkpointing import folders, snapshot

    saver = make_saver(rank=0, world_size=1, per_node=1)
    assert save_alone(saver, tmp_path, 1, 1)
    (tmp_path / "checkpoint-1" / "of the first").touch()
    with monkeypatch.context() as broken:
        broken.setattr(snapshot, "write", lambda file: (_ for _ in ()).throw(OSError("no")))
        save_alone(saver, tmp_path, 1, 1)
    assert (tmp_path / "checkpoint-1" / "of the first").exists() and len(saving.complete(tmp_path)) == 1
    assert save_alone(saver, tmp_path, 1, 1)
    assert names(tmp_path) == ["checkpoint-1"] and not (tmp_path / "checkpoint-1" / "of the first").exists()
    assert torch.load(tmp_path / "checkpoint-1" / "rank_0.pt")["weights"].numel() == 1 << 18
    assert not folders.aside(tmp_path / "checkpoint-1").exists()
