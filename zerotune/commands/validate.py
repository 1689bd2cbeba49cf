"""zerotune-config validate: every finding about some configs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from zerotune import __version__
from zerotune.commands.run_context import context_of, run_options
from zerotune.ds_config import Context, Finding, ResolvedConfig, check, render, resolve
from zerotune.ds_config.resolve import MAX_BYTES, decode, template_path
from zerotune.ds_config.selection import choose
from zerotune.errors import EXIT_FINDINGS, EXIT_USAGE, UsageError

EPILOG = """\b
Example:
  $ zerotune-config validate ds.json --training-args "--bf16 true --learning_rate 2e-5"
  ds.json:5:5: error: optimizer.params.lr is 1e-05 here, but --learning_rate is 2e-05 [ZT210 fights-flag]
      5 |     "lr": 1e-5
        |           ^^^^
      help: write "auto" here, or give both the same value
  ds.json: 1 error
\b
FILE may be a template's name, or - for standard input. Notes alone leave the exit code 0.
"""


@click.command("validate", epilog=EPILOG)
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option(
    "--format", "output", type=click.Choice(["text", "json", "sarif", "github"]), default="text", show_default=True
)
@run_options
@click.option(
    "--select", multiple=True, metavar="ID", help="Only these rules: ZT501, ZT5 or a slug; repeat or use commas."
)
@click.option("--ignore", multiple=True, metavar="ID", help="Not these rules.")
@click.option("--strict", is_flag=True, help="Notes count as findings too.")
@click.option("--effective", is_flag=True, help="Also print every value the engine will run with, and its origin.")
@click.option("--fix", "mend", is_flag=True, help="Write safe fixes into the files, and show them as a diff.")
@click.option("--unsafe", is_flag=True, help="With --fix: also those that change what is computed.")
@click.option("--diff", "dry", is_flag=True, help="With --fix: show the diff, write nothing.")
def command(files, output, strict, select, ignore, mend, unsafe, dry, effective, **known) -> int:
    """Check configs as DeepSpeed would read them."""
    if not files:
        raise UsageError("name at least one file or template, or - for standard input")
    if (unsafe or dry) and not mend:
        raise UsageError("--unsafe and --diff go with --fix")
    context = context_of(**known)
    results, failures = [], 0
    for name in files:
        try:
            source = read(name)
            if mend:
                source = mended(source, context, unsafe, dry)
        except UsageError as mistake:
            # The other files are still worth checking.
            click.echo(f"zerotune-config: {mistake}", err=True)
            failures += 1
            continue
        results.append((source, choose(check(source, context), names(select), names(ignore))))
    show(results, output, context if effective else None)
    if failures:
        return EXIT_USAGE
    return EXIT_FINDINGS if any(strict or counts(finding) for _, found in results for finding in found) else 0


def mended(source: ResolvedConfig, context: Context, unsafe: bool, dry: bool) -> ResolvedConfig:
    """The config after --fix. The diff goes to standard error, so that --format json stays one document."""
    from zerotune.commands.writing import write
    from zerotune.ds_config.fixing import diff, fix

    if source.name == "<stdin>":
        raise UsageError("--fix changes files; standard input is none")
    if template_path(source.name):
        raise UsageError(f"--fix changes files, and {source.name} is a template; `generate -o FILE` makes a copy")
    after = fix(source.text, context, unsafe)
    if not after.applied:
        return source
    click.echo(diff(source.text, after.text, source.name), err=True)
    if dry:
        return source
    write(source.path, after.text, force=True)
    return replace(source, text=after.text)


def names(options: tuple[str, ...]) -> list[str]:
    return [name.strip() for option in options for name in option.split(",") if name.strip()]


def read(name: str) -> ResolvedConfig:
    if name != "-":
        return resolve(name)
    text = decode(sys.stdin.buffer.read(MAX_BYTES + 1), "standard input")
    return ResolvedConfig("<stdin>", Path("-"), text, {})


def counts(finding: Finding) -> bool:
    """Notes do not fail a build unless --strict says so."""
    return finding.severity != "info"


def show(results: list[tuple[ResolvedConfig, list[Finding]]], output: str, resolve_in: Context | None) -> None:
    """Print the findings; with a context, the effective values too."""
    if output == "text":
        for source, findings in results:
            click.echo(render.text(findings, source.name, source.text))
            if resolve_in:
                from zerotune.ds_config.effective import effective, table

                click.echo(f"\n{table(effective(source, resolve_in))}\n")
        return
    from zerotune.ds_config import formats

    plain = [(source.name, findings) for source, findings in results]
    if output == "json":
        text = formats.as_json(plain, [effective_values(source, resolve_in) for source, _ in results])
    else:
        text = formats.as_github(plain) if output == "github" else formats.as_sarif(plain, __version__)
    if text:
        click.echo(text)


def effective_values(source: ResolvedConfig, context: Context | None) -> list[dict] | None:
    if context is None:
        return None
    from zerotune.ds_config.effective import effective

    return [{"key": row.path, "value": row.value, "origin": row.origin} for row in effective(source, context).settings]
