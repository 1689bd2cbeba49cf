"""What the planner says and what a GPU then shows, over a matrix of models, templates, lengths and batches.

    python benchmarks/plan_vs_measured.py --csv benchmarks/results/plan_vs_measured.csv       on a machine with GPUs
    python benchmarks/plan_vs_measured.py --csv FILE --compare                                anywhere, no GPU needed
    python benchmarks/plan_vs_measured.py --quick                                             on CPU, smoke test

Every run is a real HF Trainer with a shipped template, in processes of its own; random weights, full rows of random
tokens, six steps. Recorded: the allocator's peaks over the steps after the second and their parts, the whole device's
use, the rank's own memory on the host, the median step and its parts. Every third case of the lists is held out: no
constant of the planner was fitted to it.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

STEPS, WARM = 6, 2
MODELS = {  # hidden, ffn, layers, heads, key-value heads, vocabulary
    "0.1B": (768, 2048, 12, 12, 12, 32000),
    "0.5B": (1280, 3456, 20, 20, 4, 50304),
    "1.1B": (2048, 5632, 22, 32, 4, 32000),
    "3B": (3072, 8192, 26, 24, 8, 32000),
    "8B": (4096, 14336, 32, 32, 8, 128256),
    "tiny": (64, 128, 2, 2, 2, 512),
}
# model, template, sequence, micro batch, recompute, Liger
ONE_GPU = (
    ("0.1B", "stage0", 1024, 8, False, False),
    ("0.1B", "stage1", 512, 8, False, False),
    ("0.1B", "stage2", 2048, 4, False, False),
    ("0.1B", "stage3", 4096, 2, False, True),
    ("0.1B", "stage3", 16384, 1, True, True),
    ("0.1B", "stage2", 16384, 1, False, False),
    ("0.5B", "stage0", 2048, 2, True, False),
    ("0.5B", "stage1", 2048, 4, False, True),
    ("0.5B", "stage2", 1024, 8, True, True),
    ("0.5B", "stage3", 1024, 4, False, False),
    ("0.5B", "stage3", 8192, 1, True, False),
    ("0.5B", "stage2", 8192, 1, False, True),
    ("1.1B", "stage0", 512, 4, False, False),
    ("1.1B", "stage1", 2048, 2, True, False),
    ("1.1B", "stage1", 1024, 8, False, True),
    ("1.1B", "stage2", 2048, 4, False, False),
    ("1.1B", "stage2", 2048, 8, False, True),
    ("1.1B", "stage2", 4096, 2, True, False),
    ("1.1B", "stage2", 16384, 1, True, True),
    ("1.1B", "stage3", 512, 1, False, False),
    ("1.1B", "stage3", 2048, 8, True, True),
    ("1.1B", "stage3", 4096, 4, False, True),
    ("1.1B", "stage3", 8192, 1, False, False),
    ("3B", "stage1", 512, 1, False, False),
    ("3B", "stage2", 2048, 2, True, False),
    ("3B", "stage2", 4096, 1, False, True),
    ("3B", "stage3", 1024, 4, False, False),
    ("3B", "stage3", 4096, 2, True, True),
    ("0.1B", "stage1_offload", 1024, 4, False, False),
    ("0.1B", "stage3_offload", 2048, 4, False, True),
    ("0.5B", "stage2_offload", 2048, 2, False, False),
    ("0.5B", "stage3_offload_optimizer", 1024, 4, True, False),
    ("0.5B", "stage3_offload", 512, 8, False, False),
    ("1.1B", "stage1_offload", 2048, 2, True, True),
    ("1.1B", "stage2_offload", 2048, 4, False, True),
    ("1.1B", "stage3_offload_optimizer", 2048, 4, False, False),
    ("1.1B", "stage3_offload", 2048, 8, True, True),
    ("1.1B", "stage3_offload", 4096, 1, False, False),
    ("3B", "stage2_offload", 2048, 1, True, True),
    ("3B", "stage3_offload_optimizer", 2048, 2, True, False),
    ("3B", "stage3_offload", 4096, 1, True, True),
)
TWO_GPUS = (
    ("0.5B", "stage1", 2048, 4, False, False),
    ("1.1B", "stage2", 2048, 8, False, True),
    ("1.1B", "stage3", 2048, 16, False, True),
    ("3B", "stage3", 4096, 2, False, True),
    ("8B", "stage3", 4096, 2, False, True),
    ("8B", "stage3", 4096, 4, True, True),
    ("8B", "stage2_offload", 2048, 1, True, True),
)
QUICK = (("tiny", "stage0", 32, 2, False, False), ("tiny", "stage3_offload", 32, 2, True, False))
CASE = ("model", "template", "seq", "micro_batch", "recompute", "liger")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=Path, help="append the rows here; with --compare, read them")
    parser.add_argument("--compare", action="store_true", help="hold today's planner against the rows of --csv")
    parser.add_argument("--plot", type=Path, help="draw the rows of --csv, predicted against measured, into this file")
    parser.add_argument("--quick", action="store_true", help="two tiny models on CPU")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--only", help="templates with this text in their name")
    parser.add_argument("--skip-done", type=Path, help="leave out cases with numbers in this file")
    parser.add_argument("--case-limit", type=float, default=100, help="seconds for one case")
    parser.add_argument("--rank", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, default=float("inf"), help="start no run after this many seconds")
    options = parser.parse_args()
    if options.rank:
        return rank_main(tuple(json.loads(options.rank[0])), options.rank[1])
    if options.compare:
        return compare(options.csv)
    if options.plot:
        return plot(options.csv, options.plot)
    cases = QUICK if options.quick else ONE_GPU if options.ranks == 1 else TWO_GPUS
    began = time.monotonic()
    cases = [case for case in cases if options.only is None or options.only in case[1]]
    if options.skip_done and options.skip_done.exists():
        done = {case_of(row) for row in read(options.skip_done)}
        cases = [case for case in cases if (*case, options.ranks) not in done]
    build_operators(cpu_adam=any("offload" in case[1] for case in cases))
    coming = [Ranks(case, options.ranks) for case in cases[:1]]
    for number, case in enumerate(cases):
        if time.monotonic() - began > options.limit:
            print(f"out of time before {case}")
            break
        # the next case's processes import their libraries while this one runs
        coming += [Ranks(case, options.ranks) for case in cases[number + 1 : number + 2]]
        row = dict(zip(CASE, case, strict=True)) | coming.pop(0).run(options.case_limit)
        print(f"{time.monotonic() - began:.0f} s", json.dumps(row), flush=True)
        if options.csv:
            append(options.csv, row)
    for left in coming:
        left.end()
    return 0


def build_operators(cpu_adam: bool) -> None:
    """Both at once, each in a process of its own: a compiler's lock must not be waited for in the runs."""
    names = ("FusedAdamBuilder", "CPUAdamBuilder") if cpu_adam else ("FusedAdamBuilder",)
    code = "from deepspeed.accelerator import get_accelerator as a; a().create_op_builder('{}').load(verbose=False)"
    builds = [subprocess.Popen([sys.executable, "-c", code.format(name)], stdout=subprocess.DEVNULL) for name in names]
    codes = [build.wait() for build in builds]
    if any(codes):
        sys.exit("an operator of DeepSpeed did not compile; its error is above")


class Ranks:
    """The processes of one case: they import what they need, then wait for a word on their standard input."""

    def __init__(self, case: tuple, ranks: int):
        from tests.jobs import free_port

        self.ranks, self.port = ranks, free_port()
        self.folder = tempfile.TemporaryDirectory()
        self.answer = Path(self.folder.name) / "answer.json"
        self.processes = [self._start(case, rank) for rank in range(ranks)]

    def _start(self, case: tuple, rank: int) -> subprocess.Popen:
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port), "WORLD_SIZE": str(self.ranks)}
        env = os.environ | env | {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_SIZE": str(self.ranks)}
        command = [sys.executable, __file__, "--rank", json.dumps(case), self.folder.name]
        log = (Path(self.folder.name) / f"log{rank}").open("w")
        return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def run(self, limit_s: float) -> dict:
        """One row; `error` says why there are no numbers."""
        row = {"ranks": self.ranks, "date": datetime.date.today().isoformat()}
        row["versions"] = " ".join(f"{name}={version(name)}" for name in ("torch", "deepspeed", "transformers"))
        for process in self.processes:
            process.stdin.write(b"go\n")
            process.stdin.flush()
        wait(self.processes, limit_s)
        if self.answer.exists():
            row |= json.loads(self.answer.read_text())
        else:
            log = (Path(self.folder.name) / "log0").read_text(errors="replace")
            row["error"] = f"no answer in {limit_s:.0f} s: {log[-300:]}"
        self.end()
        return row

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for left in Path("/dev/shm").glob(f"deepspeed_*_{self.port}_*"):
            left.unlink(missing_ok=True)
        self.folder.cleanup()


def wait(processes: list[subprocess.Popen], limit_s: float) -> None:
    """Until all ranks have ended, the limit has come, or 5 s after one died."""
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends and any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            ends = min(ends, time.monotonic() + 5)
        time.sleep(0.05)


def rank_main(case: tuple, folder: str) -> int:
    """One rank's process: import, wait for the word, train, and on rank 0 write the answer."""
    import deepspeed.runtime.zero.stage3
    import deepspeed.runtime.zero.stage_1_and_2  # noqa: F401
    import transformers.models.llama.modeling_llama
    import transformers.trainer  # noqa: F401

    if case[-1]:
        import liger_kernel.transformers  # noqa: F401
    sys.stdin.readline()
    try:
        result = train(case, folder)
    except Exception as error:  # an error of the run is its result
        result = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    if os.environ["RANK"] == "0":
        (Path(folder) / "answer.json").write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit("error" in result)  # the engine's own clean-up can hang after an error


def train(case: tuple, folder: str) -> dict:
    """Six steps of a real Trainer; returns what was measured on this rank."""
    import torch
    from transformers import Trainer, TrainingArguments

    name, template, seq, micro, recompute, liger = case
    cuda = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=folder,
        deepspeed=config_of(template),
        per_device_train_batch_size=micro,
        max_steps=STEPS,
        bf16=cuda,
        use_cpu=not cuda,
        gradient_checkpointing=recompute,
        use_liger_kernel=liger,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, MODELS[name][-1], (micro * STEPS, seq))]
    trainer = Trainer(model=build(name, seq), args=arguments, train_dataset=rows)
    meter = meter_of(trainer)
    trainer.train()
    free, total = torch.cuda.mem_get_info() if cuda else (0, 0)
    return meter.answer() | {
        "device": torch.cuda.get_device_name() if cuda else "CPU",
        "gpu_reserved": torch.cuda.max_memory_reserved() if cuda else 0,
        "gpu_device": total - free,
        "host_max_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


def build(name: str, seq: int):
    """The model with random weights. Drawn on the GPU: on the host that takes a minute for 3 billion."""
    import torch
    from transformers import LlamaForCausalLM, initialization

    cuda = torch.cuda.is_available()
    with initialization.no_init_weights():
        config = llama(name, seq)
        config.use_cache = False
        kinds = {"dtype": torch.bfloat16 if cuda else torch.float32, "attn_implementation": "sdpa"}
        model = LlamaForCausalLM._from_config(config, **kinds)
    for param in model.parameters():
        held = getattr(param, "ds_tensor", param.data)  # ZeRO-3 keeps a flat part of each
        one_axis = len(getattr(param, "ds_shape", param.shape)) == 1
        drawn = torch.randn(held.shape, dtype=held.dtype, device="cuda" if cuda else "cpu") * 0.02
        held.data.copy_(torch.ones_like(drawn) if one_axis else drawn)
    if cuda:
        torch.cuda.empty_cache()
    return model


def meter_of(trainer):
    """A callback on the trainer that reads clock and memory at the borders of forward, backward and optimizer step."""
    import psutil
    import torch
    from transformers import TrainerCallback

    cuda = torch.cuda.is_available()
    ends, seen = [], {}

    def note(key: str, value: float) -> None:
        if trainer.state.global_step >= WARM:
            seen.setdefault(key, []).append(value)

    def border(part: str) -> None:
        """Ends a part: its peak, and a mark in the GPU's queue; nothing here waits for the GPU."""
        if cuda:
            note(f"{part}_peak", torch.cuda.max_memory_allocated())
            note(f"{part}_held", torch.cuda.memory_allocated())
            torch.cuda.reset_peak_memory_stats()
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            note(f"{part}_end", event)

    class Meter(TrainerCallback):
        def on_train_begin(self, args, state, control, **_):
            engine = trainer.deepspeed
            forward_ends(engine, "backward", "forward")
            forward_ends(engine, "step", "backward")

        def on_step_begin(self, args, state, control, **_):
            border("between")

        def on_step_end(self, args, state, control, **_):
            if cuda:
                torch.cuda.synchronize()
            ends.append(time.perf_counter())
            if state.global_step > WARM:
                seen.setdefault("host", []).append(psutil.Process().memory_info().rss)

        def answer(self) -> dict:
            steps = [b - a for a, b in zip(ends[WARM - 1 :], ends[WARM:], strict=False)]
            return {"step_s": round(statistics.median(steps), 4), "host_rss": max(seen["host"])} | parts(seen)

    def forward_ends(engine, method: str, part: str) -> None:
        plain = getattr(engine, method)

        def with_border(*args, **kwargs):
            border(part)
            answer = plain(*args, **kwargs)
            if method == "step":
                border("step")
            return answer

        setattr(engine, method, with_border)

    meter = Meter()
    trainer.add_callback(meter)
    return meter


def parts(seen: dict) -> dict:
    """Peaks [bytes] and GPU seconds of forward, backward and step; what is held between steps and after forward."""
    if "step_end" not in seen:
        return {}
    found = {f"gpu_{part}": max(seen[f"{part}_peak"]) for part in ("forward", "backward", "step")}
    found |= {"gpu_allocated": max(found.values()), "gpu_between": max(seen["between_held"])}
    found["gpu_after_forward"] = max(seen["forward_held"])
    order = ("between", "forward", "backward", "step")
    for before, part in pairwise(order):
        pairs = zip(seen[f"{before}_end"], seen[f"{part}_end"], strict=False)
        found[f"{part}_s".replace("step", "optimizer")] = round(
            statistics.median(a.elapsed_time(b) for a, b in pairs) / 1000, 4
        )
    return found


def config_of(template: str) -> dict:
    """A shipped template; stage0 is stage1 with nothing sharded."""
    config = json.loads((REPO / "ds_configs" / f"{template.replace('stage0', 'stage1')}.json").read_text())
    if template == "stage0":
        config["zero_optimization"] = {"stage": 0}
    return config


def shape_of(name: str, seq: int) -> dict:
    """The model's config.json."""
    hidden, ffn, layers, heads, kv_heads, vocab = MODELS[name]
    sizes = {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocab}
    return {"model_type": "llama", **sizes, "max_position_embeddings": max(seq, 2048), "tie_word_embeddings": False}


def llama(name: str, seq: int):
    from transformers import LlamaConfig

    return LlamaConfig(**{key: value for key, value in shape_of(name, seq).items() if key != "model_type"})


FIELDS = (*CASE, "ranks", "step_s", "gpu_allocated", "gpu_reserved", "gpu_device", "host_rss", "host_max_rss")
FIELDS += ("gpu_between", "gpu_forward", "gpu_after_forward", "gpu_backward", "gpu_step")
FIELDS += ("forward_s", "backward_s", "optimizer_s", "device", "date", "versions", "error")


def read(path: Path) -> list[dict]:
    """Rows that hold numbers."""
    with path.open(newline="", encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["step_s"]]


def case_of(row: dict) -> tuple:
    """The case of a row of the file, with its number of ranks."""
    flags = (row["recompute"] == "True", row["liger"] == "True")
    return row["model"], row["template"], int(row["seq"]), int(row["micro_batch"]), *flags, int(row["ranks"])


def held_out(row: dict) -> bool:
    """Every third case of its list."""
    *case, ranks = case_of(row)
    return (ONE_GPU if ranks == 1 else TWO_GPUS).index(tuple(case)) % 3 == 2


def append(path: Path, row: dict) -> None:
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow(row)


def compare(path: Path) -> int:
    """Print predicted against measured; every third row is held out of any fitting."""
    rows = read(path)
    ratios: dict[str, list[float]] = {}
    print(f"{'run':58} {'GPU plan':>9} {'seen':>7} {'off':>7} {'host off':>9} {'step off':>9}")
    for row in rows:
        found = ratios_of(row)
        kind = "held out" if held_out(row) else "seen"
        for name, (planned, measured) in found.items():
            ratios.setdefault(f"{name}, {kind}", []).append(planned / measured - 1)
        case = f"{row['ranks']} x {' '.join(row[key] for key in CASE)}"
        gpu, off = found["gpu"], [f"{planned / measured - 1:+9.1%}" for planned, measured in found.values()]
        print(f"{case:58} {gpu[0] / 2**30:9.1f} {gpu[1] / 2**30:7.1f} {' '.join(off)}")
    for name, values in sorted(ratios.items()):
        middle = statistics.median(abs(value) for value in values)
        print(f"{name}: median {middle:.1%} off, from {min(values):+.1%} to {max(values):+.1%}, {len(values)} runs")
    return 0


def plot(path: Path, picture: Path) -> int:
    """Three panels, one dot a run; held-out runs are hollow."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    rows = [(held_out(row), ratios_of(row)) for row in read(path)]
    titles = {"gpu": ("GPU peak [GiB]", 2**30), "host": ("host memory [GiB]", 2**30), "step": ("step [s]", 1)}
    for axes, (name, (title, unit)) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        for held, label in ((False, "seen"), (True, "held out")):
            planned, measured = zip(*(found[name] for is_held, found in rows if is_held == held), strict=True)
            x, y = [value / unit for value in measured], [value / unit for value in planned]
            axes.scatter(x, y, s=24, facecolors="none" if held else "tab:blue", edgecolors="tab:blue", label=label)
        ends = [bound(axes.get_xlim() + axes.get_ylim()) for bound in (min, max)]
        ends[0] = min(value / unit for _, found in rows for value in found[name]) * 0.9
        axes.plot(ends, ends, color="gray", linewidth=0.8)
        axes.set(title=title, xlabel="measured", ylabel="predicted", xscale="log", yscale="log")
        ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if ends[0] <= tick <= ends[1]]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.legend()
    figure.savefig(picture, dpi=80)
    return 0


def ratios_of(row: dict) -> dict[str, tuple[float, float]]:
    """Planned and measured: allocator's peak and host memory [bytes], step [s]."""
    from zerotune.planner.hardware import parse_gpus
    from zerotune.planner.memory import gpu_peak, host_peak
    from zerotune.planner.models import read_model
    from zerotune.planner.run import Run, zero_of
    from zerotune.planner.timing import step_time

    shapes = read_model(shape_of(row["model"], int(row["seq"])), row["model"])
    liger = row["liger"] == "True"
    planned = Run(
        shapes,
        parse_gpus(f"{row['ranks']}x{row['device'].removeprefix('NVIDIA ')}"),
        zero_of(config_of(row["template"]), shapes),
        seq=int(row["seq"]),
        micro_batch=int(row["micro_batch"]),
        recompute=row["recompute"] == "True",
        fused_loss=liger,
        fused_kernels=liger,
    )
    return {
        "gpu": (gpu_peak(planned, "steady step", allocated_only=True).num_bytes, float(row["gpu_allocated"])),
        "host": (host_peak(planned, "steady step").num_bytes, float(row["host_rss"])),
        "step": (step_time(planned).seconds, float(row["step_s"])),
    }


if __name__ == "__main__":
    sys.exit(main())
