"""zerotune-config list: the shipped templates."""

from __future__ import annotations

import click

from zerotune.ds_config.resolve import template_dir, template_names
from zerotune.ds_config.templates import TEMPLATES

EPILOG = """\b
Example:
  $ zerotune-config list
  stage1                    divides the optimizer states; the least communication
  stage1_offload            stage 1 with the optimizer on the CPU
  ...
"""


@click.command("list", epilog=EPILOG)
@click.option("--path", is_flag=True, help="Print the folder of the templates instead.")
def command(path: bool) -> None:
    """Templates and what each is for."""
    if path:
        click.echo(template_dir())
        return
    names = template_names()
    width = max(map(len, names))
    for name in names:
        purpose = TEMPLATES[name].purpose if name in TEMPLATES else ""
        click.echo(f"{name:<{width}}  {purpose}".rstrip())
