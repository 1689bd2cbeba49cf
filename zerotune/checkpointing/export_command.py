"""`zerotune-export CHECKPOINT OUT`."""

import sys
from pathlib import Path

import click

from zerotune.errors import EXIT_USAGE, UsageError

EXIT_INTERRUPTED = 130
EPILOG = """\b
Example:
  $ zerotune-export runs/first/checkpoint-40 runs/first/model
  runs/first/model: 201 weights, 2.20 GB in 1 file (bf16), 4.1 s, peak 0.42 GB
"""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--dtype", default="bf16", show_default=True, help="bf16, fp16 or fp32.")
@click.option("--max-shard-size", default="5GB", show_default=True, help="Largest safetensors file.")
@click.option("--workers", type=click.IntRange(min=1), help="Threads; by default all cores, at most 32.")
@click.option("--tag", help="DeepSpeed's tag (a folder's name), instead of what the file `latest` says.")
@click.option("--overwrite", is_flag=True, help="Replace the model in OUT; other files there stay.")
@click.option("--no-check-model", is_flag=True, help="Do not compare the keys with the model of config.json.")
@click.option("--merge", is_flag=True, help="LoRA: merge into the base model; by default the adapter alone is written.")
@click.option("--base-model", type=click.Path(path_type=Path), help="Folder of the base model, for --merge.")
def command(checkpoint, out, dtype, max_shard_size, workers, tag, overwrite, no_check_model, merge, base_model):
    """Write the model of a DeepSpeed ZeRO CHECKPOINT into the folder OUT as safetensors.

    CHECKPOINT is a Trainer's checkpoint-N, DeepSpeed's global_stepN, or a run's output folder (its newest complete
    checkpoint is taken). An export that was stopped continues with the same command.
    """
    from zerotune.checkpointing.export import export_checkpoint

    report = export_checkpoint(
        checkpoint,
        out,
        dtype=dtype,
        max_shard_size=max_shard_size,
        workers=workers,
        tag=tag,
        overwrite=overwrite,
        check_model=not no_check_model,
        merge_adapter=merge,
        base_model=base_model,
    )
    for note in report.notes:
        click.echo(f"note: {note}", err=True)
    files = "1 file" if len(report.files) == 1 else f"{len(report.files)} files"
    click.echo(
        f"{out}: {report.keys} weights, {report.bytes / 1e9:.2f} GB in {files} ({dtype}), "
        f"{report.seconds:.1f} s, peak {report.peak / 1e9:.2f} GB"
    )


def main(arguments: list[str] | None = None) -> None:
    """Entry point: exit code 0, 2 for the user's mistakes (one message on stderr), 130 after Ctrl-C."""
    try:
        command.main(arguments, standalone_mode=False)
    except click.exceptions.Abort:
        _say_interrupted(arguments or sys.argv[1:])
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
        click.echo(f"zerotune-export: {error.format_message().rstrip('.')} (see zerotune-export --help)", err=True)
        sys.exit(EXIT_USAGE)
    except UsageError as error:
        click.echo(f"zerotune-export: {error}", err=True)
        sys.exit(EXIT_USAGE)


def _say_interrupted(arguments: list[str]) -> None:
    from zerotune.checkpointing.output_folder import WORK, finished_shards

    folders = [Path(word) for word in arguments if (Path(word) / WORK).is_dir()]
    kept = ""
    if folders:
        number = len(finished_shards(folders[0]))
        kept = f" {number} finished {'file is' if number == 1 else 'files are'} kept in {folders[0] / WORK};"
    click.echo(f"\nzerotune-export: stopped.{kept} the same command continues.", err=True)


if __name__ == "__main__":
    main()
