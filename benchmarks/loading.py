"""Loading a pretrained model under ZeRO-3: zerotune.loading.load_pretrained against transformers' from_pretrained.

    python benchmarks/loading.py /big/disk/work                                # 1.1B, 2 ranks: needs 2.2 GB there
    python benchmarks/loading.py /big/disk/work --model llama-8b --ranks 2     # 16 GB; on a machine with 2 GPUs
    python benchmarks/loading.py /big/disk/work --hidden 4096 --layers 8       # other sizes of a Llama

A random bf16 checkpoint of 4 shards is written once. Every reading is a whole job of its own; the two ways take turns
(A B A B ...) after a round that is not counted, and the medians are compared. Timed is the load: from the moment when
everything is imported and the ranks have met to the moment when the last rank has its model. The process time is that
of the whole job with its launcher. Memory is read in further jobs, since looking costs time: every 20 ms the private
pages of each rank (Private_* of /proc/self/smaps_rollup), less what it had before the load. Bytes are what all ranks
together asked of the file system by read calls (rchar of /proc/self/io); from_pretrained maps the files on rank 0.
"""

import argparse
import csv
import datetime
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results" / "loading.csv"
SAMPLE_SECONDS = 0.02
MODELS = {
    "llama-1.1b": (32000, 2048, 5632, 22, 32, 4),
    "llama-8b": (128256, 4096, 14336, 32, 32, 8),
}
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
DS_CONFIG = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}
WAYS = ("stock", "ours")


def write_checkpoint(folder: Path, sizes: dict, shards: int = 4) -> None:
    """A Llama of random weights, written shard by shard: the model is never in memory."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**sizes, architectures=["LlamaForCausalLM"], dtype="bfloat16")
    with torch.device("meta"):
        shapes = {name: one.shape for name, one in LlamaForCausalLM(config).state_dict().items()}
    total, written, places, parts = sum(map(torch.Size.numel, shapes.values())), 0, {}, [{} for _ in range(shards)]
    for name, shape in shapes.items():
        number = min(shards - 1, written * shards // total)
        parts[number][name] = shape
        places[name] = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        written += shape.numel()
    folder.mkdir(parents=True)
    for part in parts:
        weights = {name: torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02) for name, shape in part.items()}
        save_file(weights, folder / places[next(iter(part))], metadata={"format": "pt"})
    index = {"metadata": {"total_size": 2 * total}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    config.save_pretrained(folder)


def private_bytes() -> int:
    """Memory that only this process has."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def read_bytes() -> int:
    """Bytes of all read calls so far."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def load(way: str, folder: Path, answers: Path, watch: bool) -> None:
    """One rank of a job: load, and write what it took."""
    import deepspeed
    import torch
    from transformers import LlamaForCausalLM
    from transformers.integrations.deepspeed import HfDeepSpeedConfig

    from zerotune.loading.pretrained import load_pretrained

    rank, on_gpu = int(os.environ["RANK"]), torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed(verbose=False)
    alive = HfDeepSpeedConfig(DS_CONFIG)
    torch.distributed.barrier()
    before, read_before, peak, done = private_bytes(), read_bytes(), [0], threading.Event()

    def look():
        while not done.wait(SAMPLE_SECONDS):
            peak[0] = max(peak[0], private_bytes())

    watcher = threading.Thread(target=look)
    if watch:
        watcher.start()
    started = time.perf_counter()
    model = (LlamaForCausalLM.from_pretrained if way == "stock" else load_pretrained)(folder)
    if on_gpu:
        torch.cuda.synchronize()
    own = time.perf_counter() - started
    torch.distributed.barrier()
    seconds = time.perf_counter() - started
    read = read_bytes() - read_before
    if watch:
        done.set()
        watcher.join()
        peak[0] = max(peak[0], private_bytes())
    answer = {
        "seconds": seconds,
        "own_seconds": own,
        "uss_over_bare": peak[0] - before if watch else 0,
        "gpu_peak": torch.cuda.max_memory_allocated() if on_gpu else 0,
        "partition": sum(param.ds_tensor.nbytes for param in model.parameters()),
        "read": read,
    }
    (answers / f"{rank}.json").write_text(json.dumps(answer))
    del alive
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def job(way: str, folder: Path, ranks: int, watch: bool = False) -> dict:
    """Run a job to its end. Returns its readings, lists by rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as answers:
        command = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(ranks), "--master_port"]
        command += [str(port), __file__, str(folder), "--way", way, "--answers", answers, *(["--watch"] * watch)]
        environment = {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": str(max(1, cores() // ranks)), **os.environ}
        started = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
        process_seconds = time.perf_counter() - started
        for left in Path("/dev/shm").glob(f"deepspeed_*_{port}_*"):
            left.unlink(missing_ok=True)
        if done.returncode:
            raise SystemExit(f"{way}: exit code {done.returncode}\n{done.stderr[-3000:]}")
        rows = [json.loads((Path(answers) / f"{rank}.json").read_text()) for rank in range(ranks)]
    return {key: [row[key] for row in rows] for key in rows[0]} | {"process_seconds": process_seconds}


def compare(folder: Path, ranks: int, rounds: int) -> dict:
    """Take turns, then look at memory; returns the row of the table."""
    stored = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    readings = {way: [] for way in WAYS}
    for turn in range(rounds + 1):
        for way in WAYS:
            reading = job(way, folder, ranks)
            took = f"{max(reading['seconds']):.2f} s load, {reading['process_seconds']:.1f} s whole process"
            print(f"round {turn} {way}: {took}{' (warm-up, not counted)' if turn == 0 else ''}", flush=True)
            if turn:
                readings[way].append(reading)
    row = {"checkpoint_gb": stored / 1e9, "ranks": ranks, "rounds": rounds}
    for way in WAYS:
        row[f"{way}_load_s"] = statistics.median(max(one["seconds"]) for one in readings[way])
        row[f"{way}_process_s"] = statistics.median(one["process_seconds"] for one in readings[way])
    for way in WAYS:
        seen = job(way, folder, ranks, watch=True)
        row[f"{way}_uss_over_bare_mb"] = " ".join(f"{one / 1e6:.0f}" for one in seen["uss_over_bare"])
        row[f"{way}_gpu_peak_mb"] = " ".join(f"{one / 1e6:.0f}" for one in seen["gpu_peak"])
        row[f"{way}_read_ratio"] = sum(seen["read"]) / stored
        row["partition_mb"] = max(seen["partition"]) / 1e6
    return row


def report(row: dict) -> None:
    """Print the ratios, and add a row to the table."""
    ratios = {name: row[f"stock_{name}"] / row[f"ours_{name}"] for name in ("load_s", "process_s")}
    bound = row["partition_mb"] * 1.1 + 300
    print(
        f"load: {ratios['load_s']:.1f} x faster ({row['stock_load_s']:.2f} s -> {row['ours_load_s']:.2f} s); "
        f"whole process: {ratios['process_s']:.2f} x\n"
        f"peak private memory over the bare process, by rank: {row['ours_uss_over_bare_mb']} MB "
        f"(from_pretrained {row['stock_uss_over_bare_mb']}; a partition x 1.1 + 300 is {bound:.0f})\n"
        f"bytes read by all ranks / checkpoint: {row['ours_read_ratio']:.4f}"
    )
    facts = {  # busy: the machine's load average, the benchmark's own ranks included
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": cores(),
        "machine": platform.machine(),
        "launcher": "deepspeed",
        "busy": f"{os.getloadavg()[1]:.1f}",
        **{name: version(name) for name in ("torch", "deepspeed", "transformers", "safetensors")},
    }
    line = {**facts, **row, "load_ratio": ratios["load_s"], "process_ratio": ratios["process_s"]}
    is_new = not RESULTS.exists()
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(line))
        if is_new:
            writer.writeheader()
        writer.writerow({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in line.items()})


def cores() -> int:
    return len(os.sched_getaffinity(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder for the checkpoint")
    parser.add_argument("--model", choices=MODELS, default="llama-1.1b")
    parser.add_argument("--hidden", type=int, help="another hidden size (32 heads, feed-forward 11/4 of it)")
    parser.add_argument("--layers", type=int, help="another number of layers")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--answers", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        load(arguments.way, arguments.root, arguments.answers, arguments.watch)
        return
    sizes = dict(zip((*SIZES, "num_key_value_heads"), MODELS[arguments.model], strict=True))
    name = arguments.model
    if arguments.hidden:
        sizes |= {"hidden_size": arguments.hidden, "intermediate_size": arguments.hidden * 11 // 4}
        name += f"-h{arguments.hidden}"
    if arguments.layers:
        sizes["num_hidden_layers"] = arguments.layers
        name += f"-l{arguments.layers}"
    folder = arguments.root / name
    if not folder.exists():
        write_checkpoint(folder, sizes)
    report({"model": name, **compare(folder, arguments.ranks, arguments.rounds)})


if __name__ == "__main__":
    main()
