"""The plan of this job, made before its model: told on rank 0, and a reason to refuse what cannot fit."""

from __future__ import annotations

import math

from zerotune.errors import UsageError
from zerotune.planner.config_run import templates, training_run
from zerotune.planner.hardware import Cluster
from zerotune.planner.models import read_model
from zerotune.planner.plan import Plan, make_plan
from zerotune.planner.plan_text import briefly, shortage
from zerotune.planner.search import TRAIN_FLAGS, candidate, changes, nothing_fits
from zerotune.planner.this_machine import of_ranks
from zerotune.training import ranks
from zerotune.training.arguments import Arguments


def check(args: Arguments, config, training_args, seq: int, vocab_size: int) -> Plan | None:
    """Plan the run, say so, and refuse it when it is beyond what the plan may be off by.

    Args:
        config: the model's.
        seq: tokens of a row.
        vocab_size: tokens in the tokenizer; the embedding grows to it.

    Returns:
        The plan; None with --plan off, or where none can be made.

    Raises:
        UsageError: the run cannot fit, and --plan is on.
    """
    if args.run.plan == "off":
        return None
    try:
        plan = make(args, config, training_args, seq, vocab_size)
    except UsageError as unknown:
        ranks.say(f"no plan could be made: {unknown}")
        return None
    for line in briefly(plan):
        ranks.say(f"plan: {line}")
    if plan.verdict.impossible:
        refusal = cannot_fit(plan, args.run.ds)
        if args.run.plan == "on":
            raise UsageError(refusal)
        ranks.say(f"warning: {refusal}")
    return plan


def make(args: Arguments, config, training_args, seq: int, vocab_size: int) -> Plan:
    """Raises UsageError where architecture, device or optimizer are unknown to the planner."""
    text = config.get_text_config()
    values = text.to_dict()
    if vocab_size > (values.get("vocab_size") or 0):  # as resize_token_embeddings pads it
        values["vocab_size"] = math.ceil(vocab_size / 64) * 64
    attn = "flash" if args.model.attn.startswith("flash") else args.model.attn
    shapes = read_model(values, args.model.model_name_or_path or config.model_type)
    filled = training_args.hf_deepspeed_config.config
    saves = getattr(training_args, "save_strategy", "no") != "no"
    given = {
        "seq": seq,
        "attn": attn,
        "packed": args.data.packing,
        "from_scratch": not args.model.model_name_or_path,
        "background_save": saves and getattr(args.run, "save_in_background", False),
    }
    return make_plan(training_run(shapes, cluster(), filled, vars(training_args), **given))


def cluster() -> Cluster:
    """The job's machines, taken to be like this one."""
    import torch

    per_node = ranks.local_world_size()
    nodes = max(1, ranks.world_size() // per_node)
    if not torch.cuda.is_available():
        return of_ranks(None, 0, nodes, per_node)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return of_ranks(properties.name, properties.total_memory, nodes, per_node)


def cannot_fit(plan: Plan, ds: str) -> str:
    """Bytes by term against bytes there, and the smallest changes that fit."""
    known = templates(plan.run.shapes)
    found = changes(candidate(ds, plan.run), known, TRAIN_FLAGS)
    helps = ["it would fit with", *(f"  {one}" for one in found)] if found else [nothing_fits(plan.run, known)]
    return "\n".join(
        (
            f"this run cannot fit: {shortage(plan, ranks.rank())}",
            *helps,
            "--plan warn starts it all the same; zerotune-config plan answers for other machines.",
        )
    )
