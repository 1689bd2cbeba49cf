"""One case of plan_vs_measured.py on this machine's GPUs, in processes of its own.

python plan_measuring.py CASE FOLDER          a rank's process, as Ranks starts it
"""

from __future__ import annotations

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

from plan_matrix import MODELS, config_of, shape_of

STEPS, STEPS_ON_CPU, WARM = 6, 4, 2


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
        command = [sys.executable, __file__, json.dumps(case), self.folder.name]
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
    import deepspeed
    import torch
    from transformers import Trainer, TrainingArguments

    name, template, seq, micro, recompute, liger = case
    cuda = torch.cuda.is_available()
    if not cuda:
        torch.set_num_threads(max(1, os.cpu_count() // int(os.environ["WORLD_SIZE"])))
        deepspeed.init_distributed(verbose=False)  # or zero.Init believes in one rank
    arguments = TrainingArguments(
        output_dir=folder,
        deepspeed=config_of(template),
        per_device_train_batch_size=micro,
        max_steps=STEPS if cuda else STEPS_ON_CPU,
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
    saving = {} if cuda else save_peak(trainer, folder)
    free, total = torch.cuda.mem_get_info() if cuda else (0, 0)
    return (
        meter.answer()
        | saving
        | {
            "device": torch.cuda.get_device_name() if cuda else "CPU",
            "gpu_reserved": torch.cuda.max_memory_reserved() if cuda else 0,
            "gpu_device": total - free,
            "host_max_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
    )


def save_peak(trainer, folder: str) -> dict:
    """Host memory while the engine writes a checkpoint."""
    forget_high_water()
    trainer.deepspeed.save_checkpoint(folder)
    return {"host_save_peak": high_water_bytes()}


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
            seen["load"] = high_water_bytes()
            forward_ends(engine, "backward", "forward")
            forward_ends(engine, "step", "backward")

        def on_step_begin(self, args, state, control, **_):
            border("between")
            if state.global_step == WARM:
                forget_high_water()

        def on_step_end(self, args, state, control, **_):
            if cuda:
                torch.cuda.synchronize()
            ends.append(time.perf_counter())
            seen["peak"] = high_water_bytes()
            if state.global_step > WARM:
                seen.setdefault("host", []).append(psutil.Process().memory_info().rss)

        def answer(self) -> dict:
            steps = [b - a for a, b in zip(ends[WARM - 1 :], ends[WARM:], strict=False)]
            found = {"step_s": round(statistics.median(steps), 4), "host_rss": max(seen["host"])}
            return found | {"host_load_peak": seen["load"], "host_step_peak": seen["peak"]} | parts(seen)

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


def forget_high_water() -> None:
    """VmHWM starts anew (man 5 proc)."""
    Path("/proc/self/clear_refs").write_text("5")


def high_water_bytes() -> int:
    """The most that was resident since it was reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


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


def llama(name: str, seq: int):
    from transformers import LlamaConfig

    return LlamaConfig(**{key: value for key, value in shape_of(name, seq).items() if key != "model_type"})


if __name__ == "__main__":
    sys.exit(rank_main(tuple(json.loads(sys.argv[1])), sys.argv[2]))
