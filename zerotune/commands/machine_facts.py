"""What the planner says of a config on the machine that --gpus names, as facts for the rules on costs."""

from __future__ import annotations

import resource
from dataclasses import replace
from itertools import combinations

from zerotune.ds_config import Context, ResolvedConfig
from zerotune.ds_config.context import TRAINING_DEFAULTS, Machine
from zerotune.ds_config.resolve import is_yaml
from zerotune.errors import UsageError

MOST_TOKENS = 2048  # of a row: the config does not say
BATCH_KEYS = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
OFFLOADS = ("offload_optimizer", "offload_param")


def with_machine(source: ResolvedConfig, context: Context, gpus: str) -> Context:
    """The context with the plan of this config on these GPUs; as it is where the config is none that can be planned.

    Raises:
        UsageError: no such device, or a model that nobody can plan.
    """
    from zerotune.planner.config_run import training_run
    from zerotune.planner.hardware import parse_gpus
    from zerotune.planner.models import read_model

    cluster, shapes = parse_gpus(gpus), read_model(context.model)
    if is_yaml(source.name, source.text) or not isinstance(source.config, dict):
        return context
    values = run_values(source.config, context, cluster)
    try:
        run = training_run(shapes, cluster, source.config, values, seq=min(MOST_TOKENS, shapes.max_positions))
    except (UsageError, TypeError, ValueError):
        return context  # the other rules say what is wrong with it
    return replace(context, machine=machine_of(gpus, run, known=context.training_args is not None))


def run_values(config: dict, context: Context, cluster) -> dict:
    """TrainingArguments of the run; where no flags are known, a micro batch of 1 in what the config or device has."""
    from zerotune.planner.config_run import precision_of

    if context.training_args is None:
        given = {
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 1,
            precision_of(config, cluster): True,
        }
    else:
        given = TRAINING_DEFAULTS | {name: value for name, value in context.training_args.items() if value is not None}
    for key, name in BATCH_KEYS.items():
        if isinstance(config.get(key), int):
            given[name] = config[key]
    for kind in ("bf16", "fp16"):
        block = config.get(kind)
        if isinstance(block, dict) and isinstance(block.get("enabled"), bool):
            given[kind] = block["enabled"]
    return given


def machine_of(gpus: str, run, known: bool) -> Machine:
    """The plan's verdict, and what it would be with less offload.

    known: the run's flags are; else it is short of memory only when recompute would not help either.
    """
    from zerotune.planner.plan import make_plan

    verdict = make_plan(run if known else replace(run, recompute=True)).verdict
    return Machine(
        name=gpus,
        shortage=verdict.why if verdict.impossible else None,
        spare=spare(run),
        pinned_bytes=pinned_bytes(run),
        memlock_bytes=memlock_bytes() if gpus == "local" else None,
    )


def spare(run) -> dict[str, str]:
    """The most offload blocks that the run can do without and be faster, each with what it would take then."""
    from zerotune.planner.plan import amount, duration, make_plan
    from zerotune.planner.timing import step_time

    used = [name for name in OFFLOADS if getattr(run.zero, name) != "none"]
    if run.cluster.device.is_cpu:
        return {}
    now = step_time(run).seconds
    for count in range(len(used), 0, -1):
        for dropped in combinations(reversed(used), count):
            plan = make_plan(replace(run, zero=replace(run.zero, **dict.fromkeys(dropped, "none"))))
            if plan.verdict.fits and not plan.verdict.near and plan.step.seconds < now:
                worst, there = amount(plan.gpu_worst.num_bytes), amount(run.cluster.device.memory_bytes)
                seconds = f"a step takes {duration(plan.step.seconds)}, not {duration(now)}"
                rows = f"{run.micro_batch} x {run.seq} tokens"
                return dict.fromkeys(dropped, f"{worst} of {there} a GPU at {rows}, and {seconds}")
    return {}


def pinned_bytes(run) -> int:
    """Page-locked host memory of one rank, in bytes."""
    from zerotune.planner import host_terms as host

    if not run.zero.pin_memory:
        return 0
    terms = [host.host_grad_bytes, host.host_grad_buffer_bytes, host.host_param_bytes, host.host_swap_bytes]
    if run.zero.stage < 3:
        terms.append(host.host_master_bytes)
    return sum(term(run) for term in terms)


def memlock_bytes() -> int | None:
    """What this process may lock; None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return None if limit == resource.RLIM_INFINITY else limit
