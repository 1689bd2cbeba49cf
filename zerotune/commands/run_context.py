"""Options about the run that a config is meant for, shared by the commands that judge configs."""

from __future__ import annotations

import click

from zerotune.commands.deepspeed_version import OPTION as DEEPSPEED_VERSION
from zerotune.commands.deepspeed_version import chosen, installed
from zerotune.ds_config import Context
from zerotune.ds_config.context import ENTRIES, TRAINER
from zerotune.errors import UsageError

# Packages that rules ask about.
PACKAGES = ("deepspeed", "transformers", "accelerate", "torch", "peft", "mup", "wandb", "comet_ml", "tensorboard")
COUNT = click.IntRange(min=1)
OPTIONS = (
    click.option(
        "--entry",
        type=click.Choice(ENTRIES),
        help="Who hands it to DeepSpeed; trainer, unless it is accelerate's own file.",
    ),
    click.option("--world-size", type=COUNT, help="Number of ranks."),
    click.option("--nodes", type=COUNT, help="Number of machines."),
    click.option(
        "--training-args",
        metavar="FLAGS",
        help='Flags or launch line of the run, in quotes: "--bf16 true ...", or @FILE: a script, or JSON or YAML of them.',
    ),
    click.option("--model", metavar="MODEL", help="The model's config.json, its folder, or a known name."),
    click.option("--zero-init", is_flag=True, default=None, help="The model is built under deepspeed.zero.Init."),
    click.option("--client-optimizer", metavar="CLASS", help="Optimizer class passed to deepspeed.initialize."),
    click.option(
        "--versions", metavar="LIST", help="deepspeed=0.18.9,transformers=5.4.0; by default those installed here."
    ),
    DEEPSPEED_VERSION,
)


def run_options(command):
    """Decorator: the options above, in this order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def context_of(
    training_args: str | None,
    model: str | None,
    versions: str | None,
    entry: str | None = None,
    deepspeed_version: str | None = None,
    **known,
) -> Context:
    """What the options say about the run; --world-size and --nodes count before a launch line."""
    facts = None
    if training_args is not None:
        from zerotune.commands.run_facts import run_facts  # a shell's grammar, which few calls need

        facts = run_facts(training_args)
    if facts is not None:
        known["world_size"] = known.get("world_size") or facts.ranks
        known["nodes"] = known.get("nodes") or facts.nodes
    world, nodes = known.get("world_size"), known.get("nodes")
    if world and nodes and nodes > world:
        raise UsageError(f"{nodes} nodes with {world} ranks: a node has at least one rank")
    return Context(
        entry=entry or TRAINER,
        training_args=None if facts is None else facts.training_args,
        unknown=frozenset() if facts is None else facts.unknown,
        model=None if model is None else model_facts(model),
        versions=versions_of(versions, deepspeed_version),
        **known,
    )


def model_facts(name: str) -> dict:
    """A config.json as a dict: of a file, a folder or a known name."""
    from zerotune.planner.models import find_config

    return find_config(name)[0]


def versions_of(versions: str | None, deepspeed: str | None) -> dict[str, str]:
    """Those given, else those installed here; --deepspeed-version counts before both."""
    known = installed(PACKAGES) if versions is None else given_versions(versions)
    return known if deepspeed is None else {**known, "deepspeed": chosen(deepspeed, note=False)}


def given_versions(text: str) -> dict[str, str]:
    pairs = [pair.partition("=") for pair in text.replace("==", "=").split(",") if pair.strip()]
    wrong = [name.strip() for name, _, version in pairs if not version.strip()[:1].isdigit()]
    if wrong:
        raise UsageError(f"--versions: {wrong[0]!r} has no version; write deepspeed=0.19.8,transformers=5.24.0")
    return {name.strip(): version.strip() for name, _, version in pairs}
