"""zerotune-config schema: the JSON Schema of a DeepSpeed config."""

from __future__ import annotations

import click

from zerotune.ds_config.schema import SCHEMA_FILE

EPILOG = """\b
Example (VS Code, .vscode/settings.json):
  $ zerotune-config schema > deepspeed.schema.json
  "json.schemas": [{"fileMatch": ["ds_*.json"], "url": "./deepspeed.schema.json"}]
"""


@click.command("schema", epilog=EPILOG)
def command() -> None:
    """The JSON Schema (draft 2020-12), for editors."""
    click.echo(SCHEMA_FILE.read_text(encoding="utf-8"), nl=False)
