"""zerotune-config diff: two configs by what the engine makes of them."""

from __future__ import annotations

import click

from zerotune.ds_config import Context, resolve
from zerotune.ds_config.context import ENTRIES
from zerotune.ds_config.effective import differences, shown
from zerotune.ds_config.flags import parse_flags
from zerotune.errors import EXIT_FINDINGS

EPILOG = """\b
Example:
  $ zerotune-config diff stage2 stage3
  zero_optimization.stage  2 -> 3
  zero_optimization.allgather_bucket_size  200000000 -> 500000000 (default)
  ...
\b
Exit codes: 0 the same meaning, 1 different, 2 usage.
"""


@click.command("diff", epilog=EPILOG)
@click.argument("old")
@click.argument("new")
@click.option(
    "--entry", type=click.Choice(ENTRIES), default="trainer", show_default=True, help="Who hands it to DeepSpeed."
)
@click.option("--world-size", type=click.IntRange(min=1), help="Number of ranks.")
@click.option("--training-args", metavar="FLAGS", help='Flags of the run, in quotes: "--bf16 true ...".')
def command(old: str, new: str, training_args: str | None, **known) -> int:
    """What changes for the engine between OLD and NEW: order, spelling and defaults written out don't."""
    arguments = None if training_args is None else parse_flags(training_args)
    changed = differences(resolve(old), resolve(new), Context(training_args=arguments, **known))
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
