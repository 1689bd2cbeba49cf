"""zerotune-config explain: one rule or one key in full."""

from __future__ import annotations

import click

from zerotune.commands.deepspeed_version import OPTION, chosen
from zerotune.ds_config.describe import SPECIAL, describe_key, describe_rule, find_key, find_rule, known_names
from zerotune.errors import UsageError, nearest

EPILOG = """\b
Example:
  $ zerotune-config explain ZT501
  ZT501 offload-param-below-3 (warning)
  Accepted and ignored (b043, b044).
  ...
  $ zerotune-config explain zero_optimization.stage
"""


@click.command("explain", epilog=EPILOG)
@click.argument("name")
@OPTION
def command(name: str, deepspeed_version: str | None) -> None:
    """What the rule ID, or the config key NAME, means."""
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
    else:
        close = nearest(name, known_names())
        hint = f"; nearest: {', '.join(close)}" if close else ""
        raise UsageError(f"{name!r} is neither a rule nor a key{hint}")
