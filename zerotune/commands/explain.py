"""zerotune-config explain: one rule, key or template in full."""

from __future__ import annotations

import click

from zerotune.commands.deepspeed_version import OPTION, chosen
from zerotune.ds_config.describe import (
    SPECIAL,
    describe_key,
    describe_rule,
    describe_template,
    find_key,
    find_rule,
    known_names,
)
from zerotune.ds_config.templates import TEMPLATES
from zerotune.errors import UsageError, nearest

EPILOG = """\b
Example:
  $ zerotune-config explain ZT501
  ZT501 offload-param-below-3 (warning)
  Accepted and ignored.
  ...
  $ zerotune-config explain zero_optimization.stage
"""


@click.command("explain", epilog=EPILOG)
@click.argument("name")
@OPTION
def command(name: str, deepspeed_version: str | None) -> None:
    """What the rule ID, the config key NAME or a template means."""
    if name.upper() in SPECIAL:
        click.echo(SPECIAL[name.upper()])
        return
    version = chosen(deepspeed_version)
    rule = find_rule(name)
    fields = [] if rule else find_key(name, version)
    if rule:
        click.echo(describe_rule(rule))
    elif fields:
        click.echo("\n\n".join(describe_key(field, version) for field in fields))
    elif name in TEMPLATES:
        click.echo(describe_template(name))
    else:
        close = nearest(name, known_names())
        hint = f"; nearest: {', '.join(close)}" if close else ""
        raise UsageError(f"{name!r} is no rule, key or template{hint}")
