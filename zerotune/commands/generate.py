"""zerotune-config generate: a template with values written in."""

from __future__ import annotations

from pathlib import Path

import click

from zerotune.commands.deepspeed_version import OPTION, chosen
from zerotune.commands.writing import write
from zerotune.ds_config import Context, check
from zerotune.ds_config.generate import PRECISIONS, Options, flags_to_match, generate, text_of
from zerotune.ds_config.resolve import resolve, template_names, template_path
from zerotune.errors import UsageError, nearest

EPILOG = """\b
Example:
  $ zerotune-config generate stage2 --precision bf16 --micro-batch 4 -o ds.json
  ds.json written (stage2)
  under the Trainer, pass: --bf16 true --per_device_train_batch_size 4
"""
COUNT = click.IntRange(min=1)


@click.command("generate", epilog=EPILOG)
@click.argument("template")
@click.option("--precision", type=click.Choice(PRECISIONS), help="auto follows the Trainer's flags.")
@click.option("--micro-batch", type=COUNT, help="Examples per rank in one forward pass.")
@click.option("--accumulation", type=COUNT, help="Micro batches per optimizer step.")
@click.option("--clip", type=click.FloatRange(min=0), help="Largest gradient norm; 0 switches clipping off.")
@click.option("--lr", type=click.FloatRange(min=0), help="Learning rate.")
@click.option("--nvme-path", help="Folder on a local NVMe disk (stage3_nvme).")
@click.option("--no-pin-memory", is_flag=True, help="Pageable host memory: slower, for hosts with a low memlock limit.")
@click.option("--reduce-bucket", type=COUNT, help="Elements reduced at a time.")
@click.option("--allgather-bucket", type=COUNT, help="Elements gathered at a time (stages 1 and 2; even).")
@click.option("--prefetch-bucket", type=COUNT, help="Elements fetched ahead (stage 3).")
@OPTION
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; else standard output.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def command(
    template: str,
    output: Path | None,
    force: bool,
    no_pin_memory: bool,
    deepspeed_version: str | None,
    **values,
) -> None:
    """Write a config from TEMPLATE. Without options it is the template itself."""
    if template_path(template) is None:
        close = nearest(template, template_names()) or template_names()
        raise UsageError(f"there is no template {template!r}; nearest: {', '.join(close)}")
    source = resolve(template)
    options = Options(pin_memory=False if no_pin_memory else None, **values)
    text = text_of(generate(source.name, source.config, options))
    if deepspeed_version is not None:
        refuse_other_keys(text, chosen(deepspeed_version))
    if output is None:
        click.echo(text, nl=False)
    else:
        write(output, text, force)
        click.echo(f"{output} written ({source.name})", err=True)
    flags = flags_to_match(options)
    if flags:
        click.echo(f"under the Trainer, pass: {' '.join(flags)}", err=True)


def refuse_other_keys(text: str, version: str | None) -> None:
    """Ends with a usage message when this DeepSpeed doesn't have a key of the config."""
    found = check(text, Context(versions={"deepspeed": version}))
    wrong = [finding.message for finding in found if finding.rule in ("ZT103", "ZT104")]
    if wrong:
        raise UsageError(f"{'; '.join(wrong)}; choose another template or DeepSpeed")
