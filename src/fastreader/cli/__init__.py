"""The command line: data on standard output, all else on standard error. One module for each command."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer
from rich.console import Console

from fastreader import __version__
from fastreader.cli import ask, bench, calibrate, demo, eor, info, models, report, rerank, score, study, vote
from fastreader.errors import FastreaderError

app = typer.Typer(
    name="fastreader",
    help="Score every ordering of the retrieved passages in one pass, and decide with the scores.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command()(score.score)
app.command()(bench.bench)
app.command()(rerank.rerank)
app.command()(calibrate.calibrate)
app.command()(ask.ask)
app.command()(eor.eor)
app.command()(vote.vote)
app.command()(study.study)
app.command()(report.report)
app.command()(info.info)
app.add_typer(models.app, name="models")


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fastreader {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more on standard error.")] = False,
) -> None:
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    logging.getLogger("fastreader").setLevel(logging.DEBUG if verbose else logging.INFO)


def main() -> None:
    """Run the command line; errors of ours and of the operating system become one line on standard error.

    Typer itself ends a command with 1 when nobody reads its output any more.
    """
    try:
        app()
    except FastreaderError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True)
        sys.exit(1)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
