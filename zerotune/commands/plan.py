"""zerotune-config plan: bytes and seconds of a run before it starts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import click

from zerotune.ds_config.resolve import resolve
from zerotune.errors import EXIT_FINDINGS, UsageError
from zerotune.planner.config_run import grad_accum_of, optimizer_of, precision_of, templates
from zerotune.planner.degree_search import WHY_NO_COMMAND, fastest_of_each_kind, kind
from zerotune.planner.degrees import Degrees, degrees_of
from zerotune.planner.hardware import Cluster, parse_gpus
from zerotune.planner.models import find_model, with_lora
from zerotune.planner.plan import amount, make_plan
from zerotune.planner.plan_text import as_dict, as_text
from zerotune.planner.run import ATTENTION, PRECISIONS, Run, Zero, zero_of
from zerotune.planner.search import (
    Candidate,
    best,
    candidate,
    changes,
    command_line,
    fastest_of_each,
    least,
    nothing_fits,
)
from zerotune.planner.shapes import Shapes

EPILOG = """\b
Examples:
  $ zerotune-config plan --model llama-2-70b --gpus 2x8xA100-80GB --ds stage3 --grad-checkpointing
  fits: llama-2-70b (68.98B) on 2x8xA100-80GB, stage 3, bf16, 2048 x 1, recompute
  ...
  $ zerotune-config plan --model my/config.json --gpus local --best
\b
Exit codes: 0 it fits, 1 it does not, 2 usage.
"""


@click.command("plan", epilog=EPILOG)
@click.option("--model", required=True, help="A known name (llama-2-70b), a config.json, or a folder with one.")
@click.option("--gpus", required=True, help="NODESxGPUSxDEVICE: 2x8xA100-80GB, 8xH100, L4; or local.")
@click.option("--ds", help="Template or config file.")
@click.option("--best", "search", is_flag=True, help="Search templates, micro batches and recompute instead.")
@click.option("--seq", type=int, help="Tokens of a row. Default: 2048, or the model's positions if fewer.")
@click.option("--micro-batch", type=int, help="Rows of a micro batch. Default: the config's number, else 1.")
@click.option("--accumulation", type=int, help="Micro batches per step. Default: the config's number, else 1.")
@click.option("--grad-checkpointing", is_flag=True, help="Recompute activations in the backward pass.")
@click.option("--attn", type=click.Choice(ATTENTION), default="sdpa", show_default=True)
@click.option("--packed", is_flag=True, help="Rows hold several documents, kept apart by a mask (sdpa, eager).")
@click.option("--liger", is_flag=True, help="Liger kernels: fused loss, norms and SwiGLU.")
@click.option("--precision", type=click.Choice(PRECISIONS), help="Default: the config's, else what the device has.")
@click.option("--optimizer", help="Default: the config's, else adamw.")
@click.option("--lora-rank", type=int, help="Train adapters of this rank only.")
@click.option(
    "--background-save/--no-background-save", default=True, help="Checkpoints are copied to host memory first."
)
@click.option("--tp", type=int, help="Ranks that share every matrix. Default: the config's autotp_size, else 1.")
@click.option(
    "--sp", type=int, help="Ranks that share every row. Default: the config's sequence_parallel_size, else 1."
)
@click.option(
    "--ep", type=int, help="Ranks that share every set of experts. Default: the config's autoep_size, else 1."
)
@click.option("--host-ram", help="Memory of one node: 1TB, 512GiB. Default: unknown, or this machine's.")
@click.option("--tokens", type=float, help="Also: the wall time for this many tokens.")
@click.option("--devices", type=click.Path(path_type=Path), help="JSON with rows of your own devices.")
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--plot", type=click.Path(path_type=Path), help="Write a picture of memory by phase (PNG).")
def command(model, gpus, ds, search, lora_rank, host_ram, devices, tokens, output, plot, **given) -> int:
    """What a run takes of GPU, host and disk, and how long a step lasts."""
    if (ds is None) == (not search):
        raise UsageError("give either --ds TEMPLATE_OR_FILE for one plan, or --best to search the templates")
    if search and plot:
        raise UsageError("--plot draws one plan: give --ds instead of --best")
    if tokens is not None and not 0 < tokens < math.inf:
        raise UsageError(f"--tokens {tokens:g} must be above 0, and a number")
    cluster = parse_gpus(gpus, devices, host_ram)
    shapes = find_model(model)
    if lora_rank is not None:
        if lora_rank < 1:
            raise UsageError(f"--lora-rank {lora_rank} must be 1 or more")
        shapes = with_lora(shapes, lora_rank)
    if search:
        return show_best(shapes, cluster, given, model, output)
    source = resolve(ds)
    if not source.config and "".join(source.text.split()) != "{}":
        raise UsageError(f"{ds} is no config that DeepSpeed could read; see zerotune-config validate {ds}")
    run = run_of(shapes, cluster, zero_of(source.config, shapes, ds), source.config, given)
    return show_one(run, ds, tokens, output, plot)


def show_one(run: Run, ds: str, tokens: float | None, output: str, plot: Path | None) -> int:
    """Print one plan; where it does not fit, the smallest changes too."""
    plan = make_plan(run)
    helps = [] if plan.verdict.fits else changes(candidate(ds, run), templates(run.shapes))
    if output == "json":
        click.echo(json.dumps(as_dict(plan, tokens) | {"would_fit": [str(one) for one in helps]}, indent=1))
    else:
        click.echo(as_text(plan, tokens))
        if not plan.verdict.fits:
            click.echo("\nit would fit with\n" + listed(helps))
    if plot:
        from zerotune.planner.plan_plot import plot as draw

        draw(plan, plot)
    return 0 if plan.verdict.fits else EXIT_FINDINGS


def show_best(shapes: Shapes, cluster: Cluster, given: dict, model: str, output: str) -> int:
    """Print the fastest plan of each template with its command."""
    known = templates(shapes)
    # The search chooses these two.
    base = run_of(shapes, cluster, Zero(), {}, {**given, "micro_batch": 1, "grad_checkpointing": False})
    found = fastest_of_each(best(base, known))
    fixed = kind(base.degrees) is not None
    further = [] if fixed or cluster.device.is_cpu else faster(fastest_of_each_kind(base, known), found)
    if output == "json":
        click.echo(json.dumps([row(one, model) for one in [*found, *further]], indent=1))
    elif found or further:
        click.echo("\n".join(f"{line(one)}\n    {how(one, model)}" for one in [*found, *further]))
        if cluster.host_bytes is None:
            click.echo("host memory of a node is unknown: give --host-ram to have it checked")
    if found or further:
        return 0
    if output == "text":
        helps = changes(least(base, known), known)
        click.echo(f"{nothing_fits(base, known)}\nit would fit with\n{listed(helps)}")
    return EXIT_FINDINGS


def faster(further: list[Candidate], found: list[Candidate]) -> list[Candidate]:
    """Those worth the trouble: faster than what train.py can run."""
    return [one for one in further if not found or one.tokens_per_s > found[0].tokens_per_s]


def how(one: Candidate, model: str) -> str:
    """The command, or why there is none."""
    name = kind(one.run.degrees)
    return f"no command: {WHY_NO_COMMAND[name]}" if name else command_line(one, model)


def listed(helps: list) -> str:
    return "\n".join(f"  {one}" for one in helps) or "  no single change known here"


def line(one: Candidate) -> str:
    run = one.run
    words = [one.ds, f"micro batch {run.micro_batch}", "recompute" if run.recompute else "", str(run.degrees)]
    about = ", ".join(filter(None, words))
    return f"{about:<52}{one.tokens_per_s:>12,.0f} tokens/s  {amount(one.gpu_bytes)} a GPU, {amount(one.host_bytes)} a node"


def row(one: Candidate, model: str) -> dict:
    return {
        "ds": one.ds,
        "micro_batch": one.run.micro_batch,
        "recompute": one.run.recompute,
        "tokens_per_s": one.tokens_per_s,
        "gpu_bytes": one.gpu_bytes,
        "host_node_bytes": one.host_bytes,
        "tp": one.run.degrees.tensor,
        "sp": one.run.degrees.sequence,
        "ep": one.run.degrees.expert,
        "command": None if kind(one.run.degrees) else command_line(one, model),
    }


def run_of(shapes: Shapes, cluster: Cluster, zero: Zero, config: dict, given: dict) -> Run:
    """The run that flags and config describe; flags win."""

    def number(flag: str, key: str) -> int:
        value = config.get(key)
        written = value if isinstance(value, int) and not isinstance(value, bool) else 1
        return written if given[flag] is None else given[flag]

    written = degrees_of(config)
    sizes = (("tp", written.tensor), ("sp", written.sequence), ("ep", written.expert))
    return Run(
        shapes=shapes,
        cluster=cluster,
        zero=zero,
        precision=given["precision"] or precision_of(config, cluster),
        grad_accum=grad_accum_of(config),
        optimizer=optimizer_of(given["optimizer"], config),
        seq=min(2048, shapes.max_positions) if given["seq"] is None else given["seq"],
        micro_batch=number("micro_batch", "train_micro_batch_size_per_gpu"),
        accumulation=number("accumulation", "gradient_accumulation_steps"),
        recompute=given["grad_checkpointing"],
        attn=given["attn"],
        packed=given["packed"],
        fused_loss=given["liger"],
        fused_kernels=given["liger"],
        background_save=given["background_save"],
        degrees=Degrees(*(size if given[flag] is None else given[flag] for flag, size in sizes)),
    )
