"""zerotune-config schema: the JSON Schema of a DeepSpeed config."""

from __future__ import annotations

import json

import click

from zerotune.commands.deepspeed_version import OPTION, chosen
from zerotune.ds_config.schema import published

EPILOG = """\b
Example (VS Code, .vscode/settings.json):
  $ zerotune-config schema > deepspeed.schema.json
  "json.schemas": [{"fileMatch": ["ds_*.json"], "url": "./deepspeed.schema.json"}]
"""


@click.command("schema", epilog=EPILOG)
@OPTION
def command(deepspeed_version: str | None) -> None:
    """The JSON Schema (draft 2020-12), for editors."""
    click.echo(json.dumps(published(chosen(deepspeed_version)), indent=2))
