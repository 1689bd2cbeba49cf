"""zerotune-config diff: two configs by what the engine makes of them."""

from __future__ import annotations

import click

from zerotune.commands.run_context import context_of, run_options
from zerotune.commands.sources import last
from zerotune.ds_config.checking import view_of
from zerotune.ds_config.effective import differences, shown
from zerotune.errors import EXIT_FINDINGS, UsageError

EPILOG = """\b
Example:
  $ zerotune-config diff stage2 stage3
  zero_optimization.stage  2 -> 3
  zero_optimization.allgather_bucket_size  200000000 -> nothing
  ...
\b
Exit codes: 0 the same meaning, 1 different, 2 usage.
"""


@click.command("diff", epilog=EPILOG)
@click.argument("old")
@click.argument("new")
@run_options
def command(old: str, new: str, **known) -> int:
    """What changes for the engine between OLD and NEW: order, spelling and defaults written out don't."""
    if old == new == "-":
        raise UsageError("standard input can be read once only")
    context, entry = context_of(**known), known["entry"]
    pairs = [last(old, context, entry), last(new, context, entry)]
    for source, around in pairs:
        if not view_of(source, around).judged:
            raise UsageError(f"{source.name} can't be read as a config; `zerotune-config validate` says why")
    changed = differences(*pairs)
    for path, before, after in changed:
        click.echo(f"{path}  {described(before)} -> {described(after)}")
    if not changed:
        click.echo("the same meaning")
    return EXIT_FINDINGS if changed else 0


def described(setting) -> str:
    """A value, and its origin when it isn't the file."""
    if setting is None:
        return "nothing"
    return shown(setting.value) + (f" ({setting.origin})" if setting.origin != "file" else "")
