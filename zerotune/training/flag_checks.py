"""Flags whose value alone is wrong: refused before a rank starts, a model is built or an hour is trained."""

from __future__ import annotations

from zerotune.errors import UsageError, nearest
from zerotune.training.arguments import Arguments, DataArguments

PLANS = ("on", "warn", "off")


def refuse_values(args: Arguments) -> None:
    """Hold the flags that nothing else checks against what they may be.

    Raises:
        UsageError: the first flag with a value that cannot work.
    """
    _data(args.data)
    if args.run.plan not in PLANS:
        raise UsageError(f"--plan {args.run.plan}: no such choice. Choices: {', '.join(PLANS)}")
    limit = args.training["save_total_limit"]
    if limit is not None and limit < 1:
        raise UsageError(
            f"--save_total_limit {limit}: the newest checkpoint is kept, the export reads it. Use at least 1, or leave "
            "the flag out to keep all."
        )
    every = args.run.save_keep_every
    if every is not None and every < 1:
        raise UsageError(f"--save_keep_every {every}: use at least 1, or leave the flag out.")
    if every is not None and limit is None:
        raise UsageError("--save_keep_every needs --save_total_limit: without a limit every checkpoint is kept.")
    if args.training["prediction_loss_only"]:
        raise UsageError(
            "--prediction_loss_only: the evaluation here already computes nothing but the loss. Leave it out."
        )


def refuse_export_of_slices(args: Arguments, config: dict) -> None:
    """The exporter does not join the slices that AutoTP makes of each weight.

    Args:
        config: the DeepSpeed config as written.

    Raises:
        UsageError: tensor parallelism together with the export, which would fail after the training.
    """
    size = (config.get("tensor_parallel") or {}).get("autotp_size")
    if args.run.export and isinstance(size, int) and size > 1:
        raise UsageError(
            f"tensor_parallel.autotp_size {size}: the export cannot join the slices of tensor parallelism. "
            "Train without it, or add --export False."
        )


def _data(data: DataArguments) -> None:
    for name in ("dataset_name", "validation_name"):
        if getattr(data, name) == "":
            raise UsageError(f"--{name} is empty. Name a file, a folder or a hub dataset, or leave the flag out.")
    for name in ("max_train_samples", "max_eval_samples"):
        most = getattr(data, name)
        if most is not None and most < 1:
            none_at_all = " No validation at all: --eval_strategy no." if name == "max_eval_samples" else ""
            raise UsageError(f"--{name} {most}: use at least 1, or leave the flag out to take all.{none_at_all}")
    if not 0 <= data.validation_percent < 100:
        raise UsageError(
            f"--validation_percent {data.validation_percent:g}: use at least 0 (hold nothing out) and less than 100 "
            "(nothing would be left to train on)."
        )


# transformers calls its checks for installed packages after the integration, but for these.
CHECKED_AS = {"azure_ml": "azureml", "comet_ml": "comet", "flyte": "flytekit"}


def refuse_reporters(report_to: list[str]) -> None:
    """Hold --report_to against transformers' integrations: the Trainer does so only after the model is built.

    Raises:
        UsageError: transformers knows no such integration, or its package is not installed.
    """
    from transformers.integrations import integration_utils as known

    for name in report_to:
        if name not in known.INTEGRATION_TO_CALLBACK:
            close = nearest(name, known.INTEGRATION_TO_CALLBACK)
            hint = f"Did you mean {close[0]}?" if close else f"Known: {', '.join(known.INTEGRATION_TO_CALLBACK)}."
            raise UsageError(f"--report_to {name}: no such integration. {hint}")
        installed = getattr(known, f"is_{CHECKED_AS.get(name, name)}_available", None)
        if installed is not None and not installed():
            raise UsageError(f"--report_to {name}: its package is not installed. Install it, or use --report_to none.")
