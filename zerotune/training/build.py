"""Tokenizer, sequences and model of one job, in the order in which they need each other."""

from __future__ import annotations

import os
from dataclasses import dataclass

from zerotune.errors import UsageError
from zerotune.planner.plan import Plan
from zerotune.training import attention, defaults, packed_apart, planned, ranks
from zerotune.training import model as models
from zerotune.training.arguments import Arguments
from zerotune.training.data import prepare, sources
from zerotune.training.data.collate import Collate

MOST_WORKERS = 16


@dataclass
class Parts:
    """What the Trainer needs."""

    model: object
    tokenizer: object
    train: prepare.Sequences
    validation: prepare.Sequences | None
    collate: Collate
    num_parameters: int
    seq_length: int
    attention: str
    plan: Plan | None


def build(args: Arguments, training_args) -> Parts:
    """Build everything. Data comes before the model: its mistakes are found in seconds.

    Raises:
        UsageError: data, tokenizer, model or attention that cannot be used; a run that cannot fit.
    """
    models.check_folder(args.model)
    with ranks.first_of_node():
        raw_train, raw_validation = sources.load(args.data, training_args.seed)
    require_validation(raw_validation, training_args.eval_strategy)
    tokenizer = models.tokenizer(args)
    if any(_is_chat(raw) for raw in (raw_train, raw_validation) if raw is not None):
        models.ensure_chat_template(tokenizer)
    tokens = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = models.config(args, len(tokenizer), tokens)
    args.model.attn, why = attention.choose(args.model.attn, models.class_of(config))
    ranks.say(f"attention: {args.model.attn} ({why})")
    block = _block(args, config)
    plan = planned.check(args, config, training_args, block, len(tokenizer))
    train, validation = _sequences(args, tokenizer, block, raw_train, raw_validation)
    if defaults.is_scratch(args) and validation is not None:
        _say_unigram(train, validation, len(tokenizer))
    model = models.build(args, config, training_args, len(tokenizer))
    if args.data.packing:
        packed_apart.require_positions(model)
    count = models.parameters(model)
    ranks.say(f"model: {config.model_type}, {count / 1e6:,.1f} M parameters, {ranks.world_size()} rank(s)")
    collate = Collate(args.model.attn, args.data.packing)
    return Parts(model, tokenizer, train, validation, collate, count, block, args.model.attn, plan)


def require_validation(raw, eval_strategy: str) -> None:
    """The Trainer stops at an evaluation without data.

    Raises:
        UsageError: --eval_strategy asks for evaluations and there are no validation examples.
    """
    if eval_strategy != "no" and (raw is None or not len(raw)):
        raise UsageError(
            f"--eval_strategy {getattr(eval_strategy, 'value', eval_strategy)}: there is no validation data. Name some "
            "with --validation_name, or hold some out with --validation_percent (it takes two examples or more)."
        )


def _is_chat(raw) -> bool:
    if {"messages", "conversations"} & set(raw.column_names):
        return True
    return "prompt" in raw.column_names and len(raw) > 0 and isinstance(raw[0]["prompt"], list)


def _block(args: Arguments, config) -> int:
    """Tokens per sequence: what the user said, else what suits the machine and the model's positions."""
    positions = getattr(config.get_text_config(), "max_position_embeddings", None) or defaults.LONGEST_DEFAULT
    wanted = args.data.max_seq_length
    if "max_seq_length" not in args.explicit:
        return min(positions, wanted or defaults.LONGEST_DEFAULT)
    if wanted < 8:
        raise UsageError(f"--max_seq_length {wanted}: too short to learn from. Use at least 8.")
    if wanted > positions:
        raise UsageError(
            f"--max_seq_length {wanted}: the model has {positions} positions (max_position_embeddings). "
            f"Use at most {positions}."
        )
    return wanted


def _sequences(args: Arguments, tokenizer, block: int, raw_train, raw_validation):
    workers = args.data.preprocessing_num_workers or min(MOST_WORKERS, len(os.sched_getaffinity(0)))
    made = []
    with ranks.first_of_node():
        limits = (args.data.max_train_samples, args.data.max_eval_samples)
        for name, raw, most in zip(("train", "validation"), (raw_train, raw_validation), limits, strict=True):
            if raw is None or not len(raw):
                made.append(None)
                continue
            sequences, counts = prepare.make(raw, args.data, tokenizer, block, name, workers, most)
            made.append(sequences)
            ranks.say(f"{name} data: {_describe(counts, block)}")
    return made


def _describe(counts: prepare.Counts, block: int) -> str:
    left_out = []
    if counts.empty:
        left_out.append(f"{counts.empty:,} empty")
    if counts.too_long:
        left_out.append(f"{counts.too_long:,} longer than {block} tokens")
    cut = f", {counts.cut:,} cut at {block} tokens" if counts.cut else ""
    return (
        f"{counts.examples:,} examples, {counts.tokens:,} tokens in {counts.sequences:,} sequences of {block} "
        f"({counts.fill:.1%} full){cut}" + (f", left out: {' and '.join(left_out)}" if left_out else "")
    )


def _say_unigram(train: prepare.Sequences, validation: prepare.Sequences, vocab_size: int) -> None:
    """The loss of a model that knows only how frequent each token is: training must get well below it."""
    if ranks.rank() == 0:
        counts = [prepare.target_counts(data, vocab_size) for data in (train, validation)]
        ranks.say(f"unigram validation loss: {prepare.unigram_loss(*counts):.4f}")
