"""One trial: what DeepSpeed does with a raw config, on CPU ranks, with a model of two layers.

The verdict is "accepted" or "rejected@PHASE" with the error; phases are parse, init and step. A loss that is no
number counts as rejected@nan, since the run is worthless.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib import import_module
from typing import Any

STEPS = 3


def judge(config: dict, client_optimizer: str | None = None) -> dict[str, Any]:
    """Run a config on this rank. For tests.engine.forked_ranks.run."""
    import logging

    import deepspeed
    import torch
    from deepspeed.runtime.config import DeepSpeedConfig
    from deepspeed.utils import logger

    logger.setLevel(logging.CRITICAL)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
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
        for _ in range(STEPS):
            loss = engine(torch.ones(2, 8, dtype=dtype)).float().pow(2).mean()
            engine.backward(loss)
            engine.step()
            losses.append(float(loss.detach()))
    except Exception as error:
        raise _PhaseError("step", error) from error
    return engine, losses


def judge_all(trials: list[dict], limit_s: float = 60.0) -> Iterator[dict]:
    """Verdicts of many trials on one rank, each in a process forked from this one.

    trials: records with "config" and, if any, "client_optimizer". The libraries are loaded once; a fork keeps every
    engine's state to itself. A trial that does not end in time is "hung".
    """
    _warm_up()
    for trial in trials:
        yield _forked(trial, limit_s)


def with_optimizer(trial: dict) -> dict:
    """A real run has an optimizer; a trial that says nothing about it gets one."""
    config = trial["config"]
    if trial.get("client_optimizer") or "optimizer" in config:
        return config
    zero = config.get("zero_optimization")
    on_cpu = isinstance(zero, dict) and (zero.get("offload_optimizer") or zero.get("cpu_offload"))
    return {**config, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3} | ({} if on_cpu else {"torch_adam": True})}}


def _warm_up() -> None:
    """Load what every trial needs; the operators take seconds each."""
    import logging
    import os

    import torch

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1")
    import deepspeed
    import deepspeed.runtime.zero.stage3
    import deepspeed.runtime.zero.stage_1_and_2
    from deepspeed.accelerator import get_accelerator
    from deepspeed.utils import logger

    import_module("torch._dynamo")  # the first step of any torch optimizer imports it: 3 s in every fork
    logger.setLevel(logging.CRITICAL)
    for operator in ("CPUAdamBuilder", "FusedAdamBuilder", "CPUAdagradBuilder", "ShareMemCommBuilder"):
        get_accelerator().create_op_builder(operator).load(verbose=False)
    assert deepspeed.__version__


def _forked(trial: dict, limit_s: float) -> dict:
    import json
    import os
    import select
    import signal

    reader, writer = os.pipe()
    port = _free_port()
    child = os.fork()
    if child == 0:
        os.close(reader)
        os.environ["MASTER_PORT"] = str(port)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        try:
            answer = judge(with_optimizer(trial), trial.get("client_optimizer"))
        except BaseException as error:
            answer = {"verdict": "rejected@start", "error": repr(error)[:300]}
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], limit_s)
    data = os.read(reader, 1 << 16) if ready else b""
    os.close(reader)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    _remove_shared_memory(port)
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
    """python -m tests.engine.trials TRIALS.jsonl: one verdict a line on standard output."""
    import json
    import os
    import sys
    from pathlib import Path

    lines = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engine's own lines go elsewhere
    for verdict in judge_all([json.loads(line) for line in lines]):
        print(json.dumps(verdict), file=out, flush=True)


if __name__ == "__main__":
    main()
