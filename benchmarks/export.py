"""zerotune-export against DeepSpeed's own scripts on one checkpoint of 1.1B parameters, in the same run.

    python benchmarks/export.py /big/disk/work            # makes the checkpoint there if needed (4.4 GB), measures
    python benchmarks/export.py /big/disk/work --checkpoint runs/x/checkpoint-40

The checkpoint is written by a real engine: stage 3, 2 CPU ranks, bf16 with fp32 master weights, random weights of
TinyLlama's shapes. Its optimizer is SGD without momentum, since neither tool reads the optimizer's states.
Measured are whole processes, start to end: wall time, and the largest sum over the process tree of resident memory
(VmRSS) and of memory that no file backs (RssAnon), sampled every 20 ms from /proc. The tools take turns after one
round that is not counted; medians are compared. Outputs land in the same folder as the checkpoint and are removed.
"""

import argparse
import csv
import datetime
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results" / "export.csv"
SAMPLE_SECONDS = 0.02
TINYLLAMA = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
}


def write_checkpoint(folder: Path) -> None:
    """Run on every rank by the deepspeed launcher."""
    import deepspeed
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
    deepspeed.init_distributed()
    architecture = LlamaConfig(**TINYLLAMA, architectures=["LlamaForCausalLM"], dtype="bfloat16")
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = LlamaForCausalLM(architecture)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.save_checkpoint(str(folder), tag="global_step0")
    if engine.global_rank == 0:
        architecture.save_pretrained(folder)


def make_checkpoint(folder: Path, port: int) -> None:
    launcher = [Path(sys.executable).with_name("deepspeed"), "--num_gpus", "2", "--master_port", str(port)]
    command = [*map(str, launcher), __file__, "--write-checkpoint", str(folder)]
    subprocess.run(command, check=True, timeout=900, env=environment())
    for left in Path("/dev/shm").glob(f"deepspeed_*_{port}_*"):
        left.unlink(missing_ok=True)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY)}


def process_tree(root: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    tree = [root]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree


def memory_bytes(root: int) -> tuple[int, int]:
    """Resident and anonymous bytes of a process and its children."""
    resident = anonymous = 0
    for pid in process_tree(root):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        resident += int(fields.get("VmRSS", "0").split()[0]) * 1024
        anonymous += int(fields.get("RssAnon", "0").split()[0]) * 1024
    return resident, anonymous


def measure(command: list[str], out: Path) -> dict[str, float]:
    """Run a command to its end. Returns seconds, resident and anonymous peak bytes."""
    shutil.rmtree(out, ignore_errors=True)
    peak = [0, 0]
    started = time.perf_counter()
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def watch():
        while process.poll() is None:
            peak[:] = map(max, peak, memory_bytes(process.pid))
            time.sleep(SAMPLE_SECONDS)

    watcher = threading.Thread(target=watch)
    watcher.start()
    errors = process.communicate()[1]
    seconds = time.perf_counter() - started
    watcher.join()
    if process.returncode:
        raise SystemExit(f"{command}: exit code {process.returncode}\n{errors.decode()[-2000:]}")
    written = sum(path.stat().st_size for path in out.rglob("*.safetensors"))
    shutil.rmtree(out)
    return {"seconds": seconds, "resident": peak[0], "anonymous": peak[1], "written": written}


def commands(checkpoint: Path, out: Path, dtype: str, workers: int | None) -> dict[str, list[str]]:
    ours = [sys.executable, "-m", "zerotune.checkpointing.export_command", str(checkpoint), str(out), "--dtype", dtype]
    script = ["zero_to_fp32.py"] if dtype == "fp32" else ["zero_to_torch.py"]
    stock = [sys.executable, str(checkpoint / script[0]), str(checkpoint), str(out), "--safe_serialization"]
    return {
        "ours": ours + (["--workers", str(workers)] if workers else []),
        "stock": stock + ([] if dtype == "fp32" else ["--dtype", dtype]),
    }


def compare(checkpoint: Path, root: Path, dtype: str, rounds: int, workers: int | None) -> dict:
    out = root / "measured_output"
    readings = {"stock": [], "ours": []}
    for turn in range(rounds + 1):
        for tool, command in commands(checkpoint, out, dtype, workers).items():
            reading = measure(command, out)
            print(f"{dtype} round {turn} {tool}: {describe(reading)}{' (warm-up)' if turn == 0 else ''}", flush=True)
            if turn:
                readings[tool].append(reading)
    medians = {
        tool: {key: statistics.median(reading[key] for reading in rows) for key in rows[0]}
        for tool, rows in readings.items()
    }
    return {"dtype": dtype, **{f"{tool}_{key}": value for tool, row in medians.items() for key, value in row.items()}}


def describe(reading: dict) -> str:
    return (
        f"{reading['seconds']:.2f} s, {reading['resident'] / 1e9:.2f} GB resident, "
        f"{reading['anonymous'] / 1e9:.2f} GB anonymous"
    )


def report(row: dict, where: Path) -> None:
    ratios = {
        "speedup": row["stock_seconds"] / row["ours_seconds"],
        "resident_ratio": row["ours_resident"] / row["stock_resident"],
        "anonymous_ratio": row["ours_anonymous"] / row["stock_anonymous"],
    }
    print(
        f"{row['dtype']}: {ratios['speedup']:.2f} x faster; peak memory {ratios['resident_ratio']:.3f} of stock "
        f"(resident), {ratios['anonymous_ratio']:.3f} (anonymous)"
    )
    facts = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": len(os.sched_getaffinity(0)),
        "machine": f"{platform.machine()} {cpu_name()}",
        "file_system": file_system(where),
        **{name: version(name) for name in ("torch", "deepspeed", "transformers", "safetensors", "numpy")},
    }
    append({**facts, **row, **ratios})


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def file_system(where: Path) -> str:
    answer = subprocess.run(["stat", "-f", "-c", "%T", str(where)], capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def append(row: dict) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(row))
        if is_new:
            writer.writeheader()
        writer.writerow({key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder for the checkpoint and the outputs (13 GB)")
    parser.add_argument("--checkpoint", type=Path, help="take this checkpoint instead of making one")
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--port", type=int, default=29873)
    parser.add_argument("--write-checkpoint", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write_checkpoint:
        write_checkpoint(arguments.root)
        return
    checkpoint = arguments.checkpoint or arguments.root / "checkpoint-0"
    if not (checkpoint / "latest").is_file():
        make_checkpoint(checkpoint, arguments.port)
    for dtype in arguments.dtypes:
        report(compare(checkpoint, arguments.root, dtype, arguments.rounds, arguments.workers), arguments.root)


if __name__ == "__main__":
    main()
