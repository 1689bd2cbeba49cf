"""zerotune-config: one command group; each verb is a module of zerotune/commands, loaded when it is called."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from pathlib import Path

import click

from zerotune import __version__
from zerotune.errors import EXIT_USAGE, UsageError, nearest

VERBS = {
    "list": "Templates and what each is for.",
    "generate": "Write a config from a template.",
    "validate": "Check configs as DeepSpeed would read them.",
    "diff": "What changes for the engine between two configs.",
    "explain": "What a rule, a key or a template means.",
    "plan": "Bytes and seconds of a run before it starts.",
    "schema": "The JSON Schema, for editors.",
}
EXIT_INTERRUPTED = 130


class Verbs(click.Group):
    """Loads a verb's module only when it is called, so that the others cost nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            return None
        return importlib.import_module(f"zerotune.commands.{name}").command

    def resolve_command(self, ctx: click.Context, args: list[str]):
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            close = nearest(args[0], VERBS) or list(VERBS)
            raise UsageError(f"there is no command {args[0]!r}; nearest: {', '.join(close)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="zerotune %(version)s")
def cli() -> None:
    """DeepSpeed configs: find, write, check and explain them.

    \b
    Exit codes: 0 clean, 1 findings, 2 usage.
    """


def main(arguments: list[str] | None = None) -> None:
    """Entry point. Users' mistakes are one line and exit code 2; bugs keep their traceback."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the shell: >&-
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = cli.main(arguments or ["--help"], prog_name="zerotune-config", standalone_mode=False)
        sys.stdout.flush()
        return code or 0
    except UsageError as mistake:
        return complain(str(mistake))
    except click.ClickException as mistake:
        return complain(one_line(mistake))
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader is gone: `| head`
        drop_output()
        return 0
    except OSError as problem:
        if problem.errno != errno.ENOSPC or problem.filename:
            raise
        drop_output()
        return complain(f"the output can't be written: {problem.strerror}")


def drop_output() -> None:
    """Python would complain once more when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str) -> int:
    print(f"zerotune-config: {message}", file=sys.stderr)
    return EXIT_USAGE


def one_line(mistake: click.ClickException) -> str:
    message = " ".join(mistake.format_message().split())
    context = getattr(mistake, "ctx", None)
    hint = f" (see {context.command_path} --help)" if context else ""
    return message.rstrip(".") + hint
