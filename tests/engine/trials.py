"""One trial: what DeepSpeed does with a config, on one CPU rank, handed to it raw or through a real HF Trainer.

The verdict is "accepted" or "rejected@PHASE" with the error; phases are parse, init and step, or trainer. A loss that
is no number counts as rejected@nan, since the run is worthless.
"""

from __future__ import annotations

import copy
import gc
import json
import math
import os
import select
import signal
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

STEPS = 3
MOST_ACCUMULATED = 1024  # micro batches of a step that a trial waits for


# What a CPU or a missing package can't show; the verdict on a GPU may differ. Nothing else is left out of a comparison.
CPU_CANNOT_SHOW = ("not supported on your device", "not been implemented on CPU", "No module named")
CPU_CANNOT_SHOW += (
    "Torch not compiled with CUDA",
    "No CUDA GPUs are available",
    "JIT load the async_io",
    "only supports NVIDIA CUDA GPUs",
    "Please install DataStates",
)
# Set by DeepSpeed's launcher; read by the checkpoint writer.
CPU_CANNOT_SHOW += ("CROSS_SIZE",)
# The shape of the Trainer's model, for rules that need it.
TINY_LLAMA = {"model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
TINY_LLAMA |= {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 32}


def judge(config: dict, client_optimizer: str | None = None) -> dict[str, Any]:
    """Run a config on this rank. For tests.engine.forked_ranks.run."""
    import logging

    import deepspeed
    import torch
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.utils import logger

    logger.setLevel(logging.CRITICAL)
    deepspeed.init_distributed(dist_backend="gloo" if on_cpu() else "nccl", verbose=False)
    phase = "parse"
    try:
        DeepSpeedConfig(copy.deepcopy(config))
        phase = "init"
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
        engine, losses = _train(deepspeed, torch, model, copy.deepcopy(config), client_optimizer)
    except _PhaseError as error:
        return {"verdict": f"rejected@{error.phase}", "error": error.text}
    except Exception as error:  # whatever the engine raises is the answer
        return {"verdict": f"rejected@{phase}", "error": f"{type(error).__name__}: {str(error)[:300]}"}
    if not all(loss == loss for loss in losses):
        return {"verdict": "rejected@nan", "error": f"losses {losses}"}
    return {"verdict": "accepted", "error": "", "losses": losses, "clip": engine.gradient_clipping()}


class _PhaseError(Exception):
    def __init__(self, phase: str, error: Exception):
        self.phase = phase
        self.text = f"{type(error).__name__}: {str(error)[:300]}"
        super().__init__(self.text)


def judge_trainer(config: dict, flags: dict) -> dict[str, Any]:
    """Train a Llama of two tiny layers through TrainingArguments(deepspeed=config, **flags)."""
    import tempfile

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

    rows = [{"input_ids": torch.arange(8) + i, "labels": torch.arange(8) + i} for i in range(8)]
    with tempfile.TemporaryDirectory() as folder:
        fixed = {"output_dir": folder, "use_cpu": True, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
        fixed["logging_nan_inf_filter"] = False  # the Trainer would count a NaN as the mean so far
        try:
            arguments = TrainingArguments(**fixed, **flags, deepspeed=copy.deepcopy(config))
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY_LLAMA))
            loss = Trainer(model=model, args=arguments, train_dataset=rows).train().training_loss
        except Exception as error:
            return {"verdict": "rejected@trainer", "error": f"{type(error).__name__}: {str(error)[:300]}"}
    if loss != loss:
        return {"verdict": "rejected@nan", "error": f"loss {loss}"}
    return {"verdict": "accepted", "error": "", "losses": [loss]}


def _train(deepspeed, torch, model, config: dict, client_optimizer: str | None):
    passed = {}
    if client_optimizer:
        made = {"AdamW": torch.optim.AdamW, "SGD": torch.optim.SGD}.get(client_optimizer)
        if client_optimizer == "DeepSpeedCPUAdam":
            from deepspeed.ops.adam import DeepSpeedCPUAdam as made
        passed["optimizer"] = made(model.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=config, dist_init_required=False, **passed
    )
    try:
        dtype = next(engine.module.parameters()).dtype
        losses = []
        accumulated = engine.gradient_accumulation_steps()
        for _ in range(max(STEPS, 2 * min(math.ceil(accumulated), MOST_ACCUMULATED))):
            loss = engine(torch.ones(2, 8, dtype=dtype, device=engine.device)).float().pow(2).mean()
            engine.backward(loss)
            engine.step()
            losses.append(float(loss.detach()))
        own_boundaries = getattr(engine, "zenflow", None) or config.get("managed_gradient_accumulation") is False
        if not own_boundaries and engine.global_steps != len(losses) // accumulated:
            raise ValueError(f"{engine.global_steps} steps in {len(losses)} micro batches, accumulating {accumulated}")
    except Exception as error:
        raise _PhaseError("step", error) from error
    return engine, losses


def judge_all(trials: list[dict], limit_s: float = 60.0, jobs: int = 1) -> Iterator[dict]:
    """Verdicts of many trials in their order, each on one rank of its own, in a process forked from this one.

    trials: records with "config" and, if any, "client_optimizer"; with "flags" the HF Trainer runs it. The libraries
    are loaded once; a fork keeps every engine's state to itself. A trial that does not end in time is "hung".
    jobs: trials that run at a time.
    """
    _warm_up(any("flags" in trial for trial in trials))
    running: list[_Fork] = []
    for trial in trials:
        if len(running) == jobs:
            yield running.pop(0).answer()
        running.append(_Fork(trial, limit_s))
    for fork in running:
        yield fork.answer()


def on_cpu() -> bool:
    from deepspeed.accelerator import get_accelerator

    return get_accelerator().device_name() == "cpu"


def answer_to(trial: dict) -> dict:
    if "flags" in trial:
        return judge_trainer(trial["config"], trial["flags"])
    return judge(with_optimizer(trial), trial.get("client_optimizer"))


def with_optimizer(trial: dict) -> dict:
    """A real run has an optimizer; a trial that says nothing about it gets one."""
    config = trial["config"]
    if trial.get("client_optimizer") or "optimizer" in config:
        return config
    zero = config.get("zero_optimization")
    on_cpu = isinstance(zero, dict) and (zero.get("offload_optimizer") or zero.get("cpu_offload"))
    return {**config, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3} | ({} if on_cpu else {"torch_adam": True})}}


def _warm_up(with_trainer: bool) -> None:
    """Load what every trial needs; the operators take seconds each."""
    import logging

    import torch

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1")
    import deepspeed
    import deepspeed.runtime.zero.stage3
    import deepspeed.runtime.zero.stage_1_and_2
    from deepspeed.accelerator import get_accelerator
    from deepspeed.utils import logger

    # The first step of any torch optimizer imports it: 3 s in every fork. Off, since trials at the same time would
    # compile Muon's kernel into one cache, and read each other's half-written files.
    import_module("torch._dynamo").config.disable = True
    if find_spec("deepspeed.runtime.zero.muon"):  # since 0.18; every sanity check needs it
        import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    if with_trainer:
        for name in ("trainer", "models.llama.modeling_llama", "integrations.deepspeed"):
            import_module(f"transformers.{name}")
    logger.setLevel(logging.CRITICAL)
    operators = ("CPUAdamBuilder", "FusedAdamBuilder", "CPUAdagradBuilder", "CPULionBuilder")
    for operator in (*operators, "ShareMemCommBuilder") if on_cpu() else operators:
        builder = get_accelerator().create_op_builder(operator)
        if type(builder).__name__ != "NotImplementedBuilder":  # CPU Adagrad and Lion before 0.19
            builder.load(verbose=False)
    import cpuinfo

    facts = cpuinfo.get_cpu_info()  # starts a Python of its own; the op builders ask in every fork
    cpuinfo.get_cpu_info = lambda: facts
    gc.freeze()  # accelerate collects garbage at each start; what is loaded here is none
    assert deepspeed.__version__


class _Fork:
    """A trial that runs in a process of its own, with its port, its folder and its time."""

    def __init__(self, trial: dict, limit_s: float):
        self.port = _free_port()
        self.folder = tempfile.TemporaryDirectory()
        self.ends = time.monotonic() + limit_s
        self.reader, writer = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            self._run(trial, writer)
        os.close(writer)

    def _run(self, trial: dict, writer: int) -> None:
        os.environ["MASTER_PORT"] = str(self.port)
        os.chdir(self.folder.name)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            answer = answer_to(trial)
        except BaseException as error:
            answer = {"verdict": "rejected@start", "error": repr(error)[:300]}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)

    def answer(self) -> dict:
        """Wait for the verdict, and leave nothing of the trial behind."""
        ready, _, _ = select.select([self.reader], [], [], max(0.0, self.ends - time.monotonic()))
        data = os.read(self.reader, 1 << 16) if ready else b""
        os.close(self.reader)
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        _remove_shared_memory(self.port)
        self.folder.cleanup()
        if not data:
            return {"verdict": "crashed" if ready else "hung", "error": ""}
        return json.loads(data)


def _free_port() -> int:
    from tests.jobs import free_port

    return free_port()


def _remove_shared_memory(port: int) -> None:
    from pathlib import Path

    for left in Path("/dev/shm").glob(f"deepspeed_*_{port}_*"):
        left.unlink(missing_ok=True)


def main() -> None:
    """python -m tests.engine.trials TRIALS.jsonl [JOBS]: one verdict a line on standard output."""
    import sys
    from pathlib import Path

    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engine's own lines go elsewhere
    jobs = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    for verdict in judge_all([json.loads(line) for line in lines], jobs=jobs):
        print(json.dumps(verdict), file=out, flush=True)


if __name__ == "__main__":
    main()
