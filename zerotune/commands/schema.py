"""zerotune-config schema: the JSON Schema of a DeepSpeed config."""

from __future__ import annotations

import json
from pathlib import Path

import click

from zerotune.commands.deepspeed_version import OPTION, chosen
from zerotune.commands.writing import write
from zerotune.ds_config.schema import published

EPILOG = """\b
Example (VS Code, .vscode/settings.json):
  $ zerotune-config schema -o deepspeed.schema.json
  "json.schemas": [{"fileMatch": ["ds_*.json"], "url": "./deepspeed.schema.json"}]
"""


@click.command("schema", epilog=EPILOG)
@OPTION
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; else standard output.")
@click.option("--force", is_flag=True, help="Overwrite the file.")
def command(deepspeed_version: str | None, output: Path | None, force: bool) -> None:
    """The JSON Schema (draft 2020-12), for editors."""
    text = json.dumps(published(chosen(deepspeed_version)), indent=2)
    if output is None:
        click.echo(text)
    else:
        write(output, f"{text}\n", force)
        click.echo(f"{output} written", err=True)
