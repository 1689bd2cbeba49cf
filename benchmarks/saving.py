"""Saving a checkpoint: how long training stands still, ours in the background against DeepSpeed's own save.

    python benchmarks/saving.py /big/disk/work                         # 0.3B, 2 ranks, stage 2: 4 GB a checkpoint
    python benchmarks/saving.py /big/disk/work --ranks 1 --stage 3 --hidden 2048 --layers 22     # on a GPU: 1.1B

One job trains a random Llama and saves again and again, the two ways in turn (A B A B ...) after a round that is not
counted; the medians are compared. Standing still is what the training loop waits: for DeepSpeed the call of
save_checkpoint, for ours the calls that begin a save and the wait before the next optimizer step; the slowest rank
counts. The steps that run while files are written share cores and memory with the writing: what they take beyond the
steps without a save is told too. At the first save both ways save the same step, and every tensor is compared. Files
are flushed to the disk between the readings; DeepSpeed's save leaves them in the page cache, ours flushes them itself.
"""

import argparse
import csv
import datetime
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results" / "saving.csv"
STEPS = 3  # after each save


def train(arguments) -> None:
    """One rank of the job; rank 0 writes the readings."""
    import deepspeed
    import torch
    import torch.distributed as dist
    from transformers import LlamaConfig, LlamaForCausalLM

    from zerotune.checkpointing import background, checkpoint_engine
    from zerotune.training import ranks

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    deepspeed.init_distributed(verbose=False)
    zero = {"stage": arguments.stage}
    if arguments.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": on_gpu}
    config = {
        "train_micro_batch_size_per_gpu": arguments.rows,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, **({} if arguments.offload else {"torch_adam": True})}},
        "zero_force_ds_cpu_optimizer": arguments.offload,
    }
    hidden = arguments.hidden
    sizes = {"hidden_size": hidden, "intermediate_size": hidden * 11 // 4, "num_hidden_layers": arguments.layers}
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=config, enabled=arguments.stage == 3):
        model = LlamaForCausalLM(LlamaConfig(num_attention_heads=16, num_key_value_heads=16, **sizes))
    num_parameters = sum(getattr(one, "ds_numel", one.numel()) for one in model.parameters())
    engine = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    gathers = {"gather": ranks.new_gather(), "gather_in_thread": ranks.new_gather()}
    saver = background.BackgroundSaver(
        rank=ranks.rank(),
        world_size=ranks.world_size(),
        per_node=ranks.local_world_size(),
        retain=lambda save: None,
        say=ranks.say,
        **gathers,
    )
    waited = [0.0]
    copied = saver.wait_until_copied

    def timed():
        started = time.perf_counter()
        copied()
        waited[0] += time.perf_counter() - started

    saver.wait_until_copied = timed
    rows = torch.randint(32000, (arguments.rows, arguments.tokens), device=device)

    def now() -> float:
        if on_gpu:
            torch.cuda.synchronize()
        dist.barrier()
        return time.perf_counter()

    def steps() -> float:
        started = now()
        for _ in range(STEPS):
            engine.backward(engine(input_ids=rows, labels=rows).loss)
            engine.step()
        return now() - started

    def stock(folder: Path) -> float:
        started = now()
        engine.save_checkpoint(str(folder), tag="same")
        return now() - started

    def ours(folder: Path) -> float:
        started = now()
        assert saver.open(folder, 1)
        engine.save_checkpoint(str(folder), tag="same")
        assert saver.start() and saver.in_background
        return time.perf_counter() - started

    steps()
    assert checkpoint_engine.install(engine, saver) is None
    saver.prepare(checkpoint_engine.state_bytes(engine))
    root, readings = arguments.root / "saving", []
    for turn in range(arguments.rounds + 1):
        reading = {"plain_steps": steps(), "stock": stock(root / "stock")}
        os.sync()
        if turn:
            reading["stock_steps"] = steps()
        waited[0] = 0.0
        started = now()
        reading["call"] = ours(root / "checkpoint-1")
        reading["steps"] = steps()
        reading["wait"] = waited[0]
        saver.wait()
        reading["written_after"] = now() - started
        if turn == 0 and ranks.rank() == 0:
            compare(root / "stock", root / "checkpoint-1")
        dist.barrier()
        readings.append(gathers["gather"](reading))
        if ranks.rank() == 0:
            worst = {key: max(row.get(key, 0) for row in readings[-1]) for key in reading}
            print(f"round {turn}: " + ", ".join(f"{key} {value:.3f} s" for key, value in worst.items()), flush=True)
    if ranks.rank() == 0:
        size = sum(path.stat().st_size for path in (root / "checkpoint-1").rglob("*"))
        facts = {"parameters": num_parameters, "checkpoint_gb": size / 1e9, "copies_gb": saver.buffer.num_bytes / 1e9}
        facts |= {"device": torch.cuda.get_device_name() if on_gpu else "CPU", "torch": torch.__version__}
        arguments.answer.write_text(json.dumps({"facts": facts, "readings": readings[1:]}))
    ranks.finish()


def compare(stock: Path, ours: Path) -> None:
    """Every tensor of DeepSpeed's files is in ours, bit for bit."""
    import torch

    number = 0
    for path in sorted(stock.rglob("*.pt")):
        left, right = (
            list(tensors(torch.load(one, weights_only=False, mmap=True, map_location="cpu")))
            for one in (path, ours / path.relative_to(stock))
        )
        assert len(left) == len(right) and all(map(torch.equal, left, right)), path
        number += len(left)
    print(f"{number} tensors are the same in both", flush=True)


def tensors(tree):
    """The tensors of a tree of dicts and lists, in order."""
    import torch

    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict | list | tuple):
        for one in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors(one)


def report(answer: dict, arguments) -> None:
    """Print the ratio, and add a row to the table."""

    def median(*names: str) -> float:
        rows = (max(sum(row[name] for name in names) for row in reading) for reading in answer["readings"])
        return statistics.median(rows)

    row = {
        "stock_s": median("stock"),
        "still_s": median("call", "wait"),
        "call_s": median("call"),
        "wait_s": median("wait"),
        "steps_plain_s": median("plain_steps"),
        "steps_after_stock_s": median("stock_steps"),
        "steps_while_writing_s": median("steps"),
        "written_after_s": median("written_after"),
    }
    row["still_ratio"] = row["still_s"] / row["stock_s"]
    longer = row["steps_while_writing_s"] - row["steps_plain_s"]
    row["all_in_ratio"] = (row["call_s"] + longer) / row["stock_s"]
    print(
        f"training stands still: {row['still_s']:.3f} s of {row['stock_s']:.2f} s = {100 * row['still_ratio']:.1f} % "
        f"of DeepSpeed's own save\nwith what the {STEPS} steps beside the writing take longer ({longer:.2f} s): "
        f"{100 * row['all_in_ratio']:.1f} %"
    )
    line = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "deepspeed": version("deepspeed"),
        **answer["facts"],
        **{name: getattr(arguments, name) for name in ("ranks", "stage", "offload", "rounds", "rows", "tokens")},
        **row,
    }
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(line))
        if is_new:
            writer.writeheader()
        writer.writerow({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in line.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder for the checkpoints")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--offload", action="store_true", help="the optimizer on the CPU")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        train(arguments)
        return
    arguments.root.mkdir(parents=True, exist_ok=True)
    answer = arguments.root / "answer.json"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(arguments.ranks)]
    command += ["--master_port", str(port), *sys.argv, "--answer", str(answer)]
    threads = str(max(1, len(os.sched_getaffinity(0)) // arguments.ranks))
    environment = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": threads, **os.environ}
    try:
        subprocess.run(command, env=environment, check=True, timeout=1800)
        report(json.loads(answer.read_text()), arguments)
    finally:
        shutil.rmtree(arguments.root / "saving", ignore_errors=True)
        for left in Path("/dev/shm").glob(f"deepspeed_*_{port}_*"):
            left.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
