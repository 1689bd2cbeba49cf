"""Fine-tune a language model with DeepSpeed ZeRO: deepspeed zerotune/train.py --ds stage3_offload

Works under `deepspeed`, `torchrun` and plain `python`. This file only wires; each step stands in its own module.
The heavy imports stand inside the functions: a wrong config must not cost the seconds they take.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

# `deepspeed zerotune/train.py` puts this folder first on sys.path; the package is what must be found there.
HERE = Path(__file__).resolve().parent
if sys.path and Path(sys.path[0] or ".").resolve() == HERE:
    sys.path[0] = str(HERE.parent)

from zerotune.errors import UsageError  # noqa: E402
from zerotune.preflight import named_files  # noqa: E402
from zerotune.training import ranks  # noqa: E402


def main(argv: list[str] | None = None) -> None:
    """Parse, resolve, validate, check the machine, build model and data, train, evaluate, export."""
    argv = sys.argv[1:] if argv is None else argv
    with ranks.user_errors():
        resolved = resolve_config(argv)
        named_files.check(argv)
        args, training_args, resume = prepare(argv, resolved)
        from zerotune.training.build import build

        parts = build(args, training_args)
        trainer = make_trainer(args, training_args, parts, resume)
        results = train(trainer, resume)
        if results is not None:
            export(trainer, args, results)
    ranks.finish()


def resolve_config(argv: list[str]):
    """The DeepSpeed configuration that --ds names, free of errors as far as the file alone tells."""
    from zerotune.ds_config import Context, resolve
    from zerotune.ds_config.resolve import is_yaml
    from zerotune.training.setup import refuse_errors

    light = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    light.add_argument("--ds", "--deepspeed", default="stage2")
    try:
        resolved = resolve(light.parse_known_args(argv)[0].ds)
    except argparse.ArgumentError as error:
        raise UsageError(f"{error}: a template's name (zerotune-config list) or a JSON file") from error
    if is_yaml(resolved.name, resolved.text):
        raise UsageError(f"--ds {resolved.name} is YAML, and the Trainer reads JSON: name the JSON file")
    refuse_errors(resolved, Context(entry="trainer"), show_warnings=False)
    return resolved


def prepare(argv: list[str], resolved):
    """Flags, ranks, output folder and the checkpoint to resume from."""
    from zerotune.checkpointing.element_types import checked_dtype
    from zerotune.checkpointing.shard_plan import parse_size
    from zerotune.preflight import output_folder
    from zerotune.reporting import wandb_run
    from zerotune.training import resume as resume_from
    from zerotune.training import setup

    args = setup.parse(argv, resolved)
    checked_dtype(args.run.export_dtype)  # hours later would be too late
    parse_size(args.run.export_max_shard_size)
    wanted, overwrite = args.training["resume_from_checkpoint"], args.run.overwrite_output_dir
    folder = Path(args.training["output_dir"] or "").expanduser()
    if args.training["output_dir"] is None:
        if wanted in ("true", "last"):
            raise UsageError(f"--resume_from_checkpoint {wanted} needs --output_dir, the run to continue.")
        folder = ranks.from_rank_0(lambda: output_folder.choose(Path(resolved.name).stem))
    resume = resume_from.point(wanted, folder, args.training) if wanted else None
    if resume:
        resume_from.keep_global_batch(resume, args.training, args.explicit, resolved.config)
    output_folder.check(folder, overwrite, resuming=bool(wanted))
    training_args = setup.training_arguments(args, resolved, folder)
    if ranks.rank() == 0 and "wandb" in training_args.report_to:
        ranks.say(f"W&B: {wandb_run.prepare(folder, resuming=bool(wanted))}")
    return args, training_args, resume


def make_trainer(args, training_args, parts, resume: Path | None):
    """The Trainer with our callbacks; the disk must have room for what it will save."""
    import torch
    from transformers import PrinterCallback

    from zerotune.preflight import output_folder
    from zerotune.reporting import flops, planned, wandb_run
    from zerotune.reporting.metrics import Meter, MetricsFile
    from zerotune.reporting.progress import ProgressBar
    from zerotune.training import checkpoints
    from zerotune.training.stopping import StopOnSignal
    from zerotune.training.trainer import ZeroTrainer

    folder, limit = Path(training_args.output_dir), args.training["save_total_limit"]
    overwrite = (args.run.overwrite_output_dir, resume is not None)
    if ranks.rank() == 0:
        sixteen_bit = training_args.bf16 or training_args.fp16
        keeps_best = bool(training_args.load_best_model_at_end or training_args.metric_for_best_model)
        beyond = output_folder.kept_for_ever(training_args.max_steps, args.run.save_keep_every, keeps_best)
        need = output_folder.run_bytes(parts.num_parameters, sixteen_bit, limit, args.run.export, beyond)
        output_folder.require_room(folder, *need, freed=output_folder.bytes_to_free(folder, *overwrite))
    ranks.wait_for_all()
    text_config = parts.model.config.get_text_config()
    per_token = flops.flops_per_token(
        parts.num_parameters, text_config.num_hidden_layers, text_config.hidden_size, parts.seq_length
    )
    device_name = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    meter = Meter(per_token, device_name, training_args.gradient_accumulation_steps)
    metrics = MetricsFile(folder / "metrics.jsonl")
    beside = [planned.Beside(planned.figures(parts.plan), meter, metrics)] if parts.plan else []
    trainer = ZeroTrainer(
        model=parts.model,
        args=training_args,
        train_dataset=parts.train,
        eval_dataset=parts.validation,
        data_collator=parts.collate,
        processing_class=parts.tokenizer,
        callbacks=[
            StopOnSignal(ranks.new_highest()),
            metrics,
            *beside,
            ProgressBar(),
            wandb_run.KeepRunId(),
        ],
        meter=meter,
        saver=checkpoints.make_saver(args, training_args, parts.num_parameters),
    )
    trainer.add_callback(checkpoints.InBackground(trainer))
    trainer.remove_callback(PrinterCallback)
    if ranks.rank() == 0:  # last: whatever is refused above must not cost the old run
        output_folder.prepare(folder, *overwrite)
    ranks.wait_for_all()
    return trainer


def train(trainer, resume: Path | None) -> dict | None:
    """Train, then evaluate unless the last step just was.

    Returns:
        The results that end up on disk; None when a signal ended the training early.
    """
    from zerotune.reporting import wandb_run
    from zerotune.training.resume import how_to_continue
    from zerotune.training.stopping import listening

    def last_word() -> str:
        return how_to_continue(trainer.state.global_step, Path(trainer.args.output_dir))

    started = time.perf_counter()
    with ranks.stoppable(last_word), listening() as request:
        outcome = trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    if request.agreed and outcome.global_step < trainer.state.max_steps:
        ranks.say(f"{request.agreed}: {last_word()}")
        if ranks.rank() == 0:
            wandb_run.finish()
        return None
    seconds = time.perf_counter() - started
    if ranks.rank() == 0:  # with every "auto" as it was filled in
        config = trainer.accelerator.state.deepspeed_plugin.hf_ds_config.config
        (Path(trainer.args.output_dir) / "ds_config.json").write_text(json.dumps(config, indent=2, default=str) + "\n")
    results = {"steps": outcome.global_step, "train_loss": outcome.training_loss, "train_seconds": round(seconds, 1)}
    if trainer.eval_dataset is not None:
        done = [one for one in trainer.state.log_history if "eval_loss" in one and one["step"] == outcome.global_step]
        last = done[-1] if done else trainer.evaluate()
        results |= {key: last[key] for key in ("eval_loss", "eval_perplexity")}
        ranks.say(f"last evaluation: validation loss {results['eval_loss']:.4f}")
    return results


def export(trainer, args, results: dict) -> None:
    """Turn the ZeRO shards of the last step into a model folder, and mark the run finished."""
    from zerotune.checkpointing.export import export_checkpoint
    from zerotune.preflight.output_folder import FINISHED
    from zerotune.reporting import wandb_run

    folder = Path(trainer.args.output_dir)
    if args.run.export:
        shards = folder / f"checkpoint-{trainer.state.global_step}"
        temporary = not (shards / "latest").exists()
        if temporary:  # --save_strategy no
            shards = folder / "export_shards"
            trainer.save_model(str(shards))
            trainer.deepspeed.save_checkpoint(str(shards))
        ranks.wait_for_all()
        if ranks.rank() == 0:
            out = folder / "model"
            report = export_checkpoint(
                shards, out, dtype=args.run.export_dtype, max_shard_size=args.run.export_max_shard_size, overwrite=True
            )
            results |= {"export": str(out), "export_dtype": args.run.export_dtype, "export_bytes": report.bytes}
            ranks.say(f"model written: {out} ({args.run.export_dtype}, {report.bytes / 2**20:,.1f} MiB)")
            for note in report.notes:
                ranks.say(f"export: {note}")
            if temporary:
                shutil.rmtree(shards)
    if ranks.rank() == 0:
        wandb_run.finish()
        (folder / FINISHED).write_text(json.dumps(results, indent=2) + "\n")
        ranks.say(f"done. Metrics: {folder / 'metrics.jsonl'}")


if __name__ == "__main__":
    main()
