"""zerotune-config validate: every finding about some configs."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import click

from zerotune import __version__
from zerotune.commands.run_context import context_of, run_options
from zerotune.commands.sources import sources
from zerotune.ds_config import Context, Finding, ResolvedConfig, check, render
from zerotune.ds_config.resolve import is_yaml, template_path
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
FILE may be a template's name, accelerate's YAML (its DeepSpeed config is checked), or - for standard input.
Notes alone leave the exit code 0.
"""


class Result(NamedTuple):
    """One config as it was checked."""

    source: ResolvedConfig
    context: Context
    findings: list[Finding]


@click.command("validate", epilog=EPILOG)
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option(
    "--format", "output", type=click.Choice(["text", "json", "sarif", "github"]), default="text", show_default=True
)
@run_options
@click.option(
    "--gpus",
    metavar="MACHINE",
    help="Also judge costs on 2x8xA100-80GB, L4 or local, at 2048 tokens a row; needs --model.",
)
@click.option(
    "--select", multiple=True, metavar="ID", help="Only these rules: ZT501, ZT5 or a slug; repeat or use commas."
)
@click.option("--ignore", multiple=True, metavar="ID", help="Not these rules.")
@click.option("--strict", is_flag=True, help="Notes count as findings too.")
@click.option("--effective", is_flag=True, help="Also print every value the engine will run with, and its origin.")
@click.option("--fix", "mend", is_flag=True, help="Write safe fixes into the files, and show them as a diff.")
@click.option("--unsafe", is_flag=True, help="With --fix: also those that change what is computed.")
@click.option("--diff", "dry", is_flag=True, help="With --fix: show the diff, write nothing.")
def command(files, output, strict, select, ignore, mend, unsafe, dry, effective, gpus, **known) -> int:
    """Check configs as DeepSpeed would read them."""
    if not files:
        raise UsageError("name at least one file or template, or - for standard input")
    if files.count("-") > 1:
        raise UsageError("standard input can be read once only")
    if (unsafe or dry) and not mend:
        raise UsageError("--unsafe and --diff go with --fix")
    if gpus is not None and known["model"] is None:
        raise UsageError("--gpus needs --model: costs are those of a model on a machine")
    context = context_of(**known)
    results, failures = [], 0
    for name in files:
        try:
            for source, around in sources(name, context, known["entry"]):
                if gpus is not None:
                    from zerotune.commands.machine_facts import with_machine

                    around = with_machine(source, around, gpus)
                if mend and not is_yaml(source.name, source.text):
                    source = mended(source, around, unsafe, dry)
                results.append(Result(source, around, choose(check(source, around), names(select), names(ignore))))
        except UsageError as mistake:
            # The other files are still worth checking.
            click.echo(f"zerotune-config: {mistake}", err=True)
            failures += 1
    show(results, output, effective)
    if failures:
        return EXIT_USAGE
    return EXIT_FINDINGS if any(strict or counts(finding) for one in results for finding in one.findings) else 0


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


def counts(finding: Finding) -> bool:
    """Notes do not fail a build unless --strict says so."""
    return finding.severity != "info"


def show(results: list[Result], output: str, with_values: bool) -> None:
    """Print the findings; on request the effective values too."""
    if output == "text":
        for one in results:
            click.echo(render.text(one.findings, one.source.name, one.source.text))
            if with_values and (found := effective_of(one)):
                from zerotune.ds_config.effective import table

                click.echo(f"\n{table(found)}\n")
        return
    from zerotune.ds_config import formats

    plain = [(one.source.name, one.findings) for one in results]
    if output == "json":
        text = formats.as_json(plain, [effective_values(one) if with_values else None for one in results])
    else:
        text = formats.as_github(plain) if output == "github" else formats.as_sarif(plain, __version__)
    if text:
        click.echo(text)


def effective_of(one: Result):
    """What the engine will run with; None when there is nothing to judge: a broken text, a file that names another."""
    from zerotune.ds_config.checking import view_of
    from zerotune.ds_config.effective import effective

    return effective(one.source, one.context) if view_of(one.source, one.context).judged else None


def effective_values(one: Result) -> list[dict] | None:
    found = effective_of(one)
    return found and [{"key": row.path, "value": row.value, "origin": row.origin} for row in found.settings]
