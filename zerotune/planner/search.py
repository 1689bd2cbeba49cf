"""The fastest plans that fit, and when none does, the smallest change that makes one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from .host_phases import node_host_bytes, settled
from .memory import PHASES, gpu_peak
from .models import with_lora
from .plan import amount
from .run import Run, Zero
from .timing import step_time

MICRO_BATCHES = (1, 2, 4, 8, 16, 32)
MOST_NODES, FULL_NODE = 64, 8


@dataclass(frozen=True)
class Candidate:
    """One way to run: the template's name, the run, and what the search compares."""

    ds: str
    run: Run
    gpu_bytes: int
    host_bytes: int
    tokens_per_s: float

    @property
    def fits(self) -> bool:
        return over_bytes(self) <= 0


def candidate(ds: str, run: Run) -> Candidate:
    """Peaks over all phases; the step's speed."""
    run = settled(run)
    gpu = max(gpu_peak(run, phase).num_bytes for phase in PHASES)
    host = max(node_host_bytes(run, phase) for phase in PHASES)
    return Candidate(ds, run, gpu, host, step_time(run).tokens_per_s)


def over_bytes(one: Candidate) -> int:
    """Bytes that the worse of GPU and host lacks; 0 or less when it fits. Unknown host memory is enough."""
    cluster = one.run.cluster
    gpu = one.gpu_bytes - cluster.device.memory_bytes
    return max(gpu, one.host_bytes - cluster.node_bytes) if cluster.node_bytes is not None else gpu


def best(base: Run, templates: dict[str, Zero]) -> list[Candidate]:
    """Every template with every micro batch, with and without recompute: those that fit, fastest first.

    A micro batch that doesn't fit ends its row: larger ones don't either. Templates on NVMe come last of all.
    """
    found = []
    for ds, zero in templates.items():
        for recompute in (False, True):
            for micro_batch in MICRO_BATCHES:
                one = candidate(ds, replace(base, zero=zero, micro_batch=micro_batch, recompute=recompute))
                if not one.fits:
                    break
                found.append(one)
    return sorted(found, key=lambda one: -one.tokens_per_s)


def fastest_of_each(found: list[Candidate]) -> list[Candidate]:
    """The best line of each template, in order of speed."""
    seen: dict[str, Candidate] = {}
    for one in found:
        seen.setdefault(one.ds, one)
    return list(seen.values())


@dataclass(frozen=True)
class Change:
    """What to change, in words, and what it saves of one GPU's peak."""

    words: str
    after: Candidate
    saved_bytes: int

    def __str__(self) -> str:
        one = self.after
        host = f"{amount(one.host_bytes)} of host memory a node"
        if one.run.cluster.device.is_cpu:
            return f"{self.words}: {host}"
        return f"{self.words}: {amount(one.gpu_bytes)} a GPU ({amount(self.saved_bytes)} less), {host}"


@dataclass(frozen=True)
class Flags:
    """The same changes as two programs spell them; None where a program has no such flag."""

    recompute: str
    liger: str
    flash: str
    one_row: str
    lora: str | None
    gpus: str


PLAN_FLAGS = Flags(
    recompute="--grad-checkpointing",
    liger="--liger (fused loss, norms and SwiGLU)",
    flash="--attn flash",
    one_row="--micro-batch 1",
    lora="--lora-rank 16",
    gpus="--gpus {}",
)
TRAIN_FLAGS = Flags(
    recompute="--activation_checkpointing",
    liger="--use_liger_kernel (fused loss, norms and SwiGLU)",
    flash="--attn flash_attention_2",
    one_row="--per_device_train_batch_size 1",
    lora=None,
    gpus="{} instead",
)


def changes(base: Candidate, templates: dict[str, Zero], flags: Flags = PLAN_FLAGS) -> list[Change]:
    """Single changes that make a run fit, or each with recompute on: the fastest first, then LoRA, then more GPUs."""
    runs = [("", base.run)]
    if not base.run.recompute:
        runs.append((f"{flags.recompute} and ", replace(base.run, recompute=True)))
    for prefix, run in runs:
        fitting = [change for change in _single(prefix, base, run, templates, flags) if change.after.fits]
        if fitting:
            return sorted(fitting, key=lambda change: _cost(base.run, change.after))
    return []


def _cost(before: Run, after: Candidate) -> tuple[bool, bool, float]:
    """What it takes, from least to most: other GPUs, another kind of training, lost speed."""
    return after.run.cluster != before.cluster, after.run.shapes is not before.shapes, -after.tokens_per_s


def _single(prefix: str, base: Candidate, run: Run, templates: dict[str, Zero], flags: Flags) -> Iterator[Change]:
    options: list[tuple[str | None, str, Callable[[], Run]]] = [
        (flags.recompute, base.ds, lambda: replace(run, recompute=True)),
        (flags.liger, base.ds, lambda: replace(run, fused_loss=True, fused_kernels=True)),
        (flags.flash, base.ds, lambda: replace(run, attn="flash")),
        (flags.one_row, base.ds, lambda: replace(run, micro_batch=1)),
    ]
    options += [(f"--ds {name}", name, lambda zero=zero: replace(run, zero=zero)) for name, zero in templates.items()]
    if run.shapes.num_trainable == run.shapes.num_params:
        options.append((flags.lora, base.ds, lambda: replace(run, shapes=with_lora(run.shapes, 16))))
    needs_gpu = (flags.liger, flags.flash) if run.cluster.device.is_cpu else ()
    for words, ds, build in options:
        if words is None or words in needs_gpu:
            continue
        changed = build()
        if changed != base.run:
            yield _change(prefix + words, base, candidate(ds, changed))
    more = None if run.cluster.device.is_cpu else _more_gpus(prefix, base, run, flags)
    if more:
        yield more


def _more_gpus(prefix: str, base: Candidate, run: Run, flags: Flags) -> Change | None:
    """The fewest GPUs, doubled each time, on which it fits: the node is filled to 8 before a second one is taken."""
    cluster = run.cluster
    while cluster.nodes < MOST_NODES:
        fuller = cluster.nodes == 1 and cluster.per_node * 2 <= FULL_NODE
        cluster = replace(cluster, **({"per_node": cluster.per_node * 2} if fuller else {"nodes": cluster.nodes * 2}))
        one = candidate(base.ds, replace(run, cluster=cluster))
        if one.fits:
            return _change(f"{prefix}{flags.gpus.format(cluster)}", base, one)
    return None


def _change(words: str, base: Candidate, after: Candidate) -> Change:
    return Change(words, after, base.gpu_bytes - after.gpu_bytes)


def least(run: Run, templates: dict[str, Zero]) -> Candidate:
    """The template that, with recompute, comes nearest to fitting."""
    every = [candidate(name, replace(run, zero=zero, recompute=True)) for name, zero in templates.items()]
    return min(every, key=over_bytes)


def nothing_fits(run: Run, templates: dict[str, Zero]) -> str:
    """What comes nearest, in words."""
    one, cluster = least(run, templates), run.cluster
    words = [] if cluster.device.is_cpu else [f"{amount(one.gpu_bytes)} a GPU of {amount(cluster.device.memory_bytes)}"]
    if cluster.node_bytes is not None:
        words.append(f"{amount(one.host_bytes)} a node of {amount(cluster.node_bytes)}")
    return f"nothing fits: the least is {one.ds} with recompute, {', '.join(words)}"


def _model_flag(model: str) -> str:
    """A folder with weights as it is, another config.json from scratch; where a name's folder lies nobody knows here."""
    path = Path(model).expanduser()
    if not path.exists():
        return f"--model_name_or_path /path/to/{model.rsplit('/', 1)[-1]}"
    folder = path if path.is_dir() else path.parent
    has_weights = any(folder.glob("*.safetensors*")) or any(folder.glob("pytorch_model*.bin"))
    return f"--model_name_or_path {folder}" if has_weights else f"--config_name {path}"


def command_line(one: Candidate, model: str) -> str:
    """How to start it. Under two or more nodes the hostfile names them."""
    run, cluster = one.run, one.run.cluster
    launcher = f"deepspeed --num_gpus {cluster.per_node}"
    if cluster.nodes > 1:
        launcher += f" --num_nodes {cluster.nodes} --hostfile hostfile"
    flags = [f"--ds {one.ds}", _model_flag(model), f"--max_seq_length {run.seq}"]
    flags.append(f"--per_device_train_batch_size {run.micro_batch}")
    if run.accumulation > 1:
        flags.append(f"--gradient_accumulation_steps {run.accumulation}")
    flags += [f"--{run.precision}"] if run.precision != "fp32" else []
    flags += ["--activation_checkpointing"] if run.recompute else []
    flags += ["--use_liger_kernel"] if run.fused_kernels else []
    flags.append(f"--attn {'flash_attention_2' if run.attn == 'flash' else run.attn}")
    if run.attn != "flash" and not run.packed:
        flags.append("--packing False")
    return f"{launcher} zerotune/train.py {' '.join(flags)}"
