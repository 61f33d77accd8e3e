"""The Typer application, with one module for each command."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from fastreader import __version__
from fastreader.cli import (
    arrange,
    ask,
    attribute,
    calibrate,
    conflicts,
    convert,
    demo,
    eor,
    index,
    info,
    models,
    moi,
    passages,
    report,
    rerank,
    score,
    serve,
    study,
    vote,
)
from fastreader.cli.screen import escaped

app = typer.Typer(
    name="fastreader",
    help="Score every ordering of the retrieved passages in one pass, and decide with the scores.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command()(score.score)
app.command()(rerank.rerank)
app.command()(arrange.arrange)
app.command()(convert.convert)
app.command()(conflicts.conflicts)
app.command()(attribute.attribute)
app.command()(moi.moi)
app.command()(calibrate.calibrate)
app.command()(ask.ask)
app.command()(index.index)
app.command()(eor.eor)
app.command()(vote.vote)
app.command()(study.study)
app.command()(report.report)
app.command()(serve.serve)
app.command()(info.info)
app.add_typer(models.app, name="models")
app.add_typer(passages.app, name="passages")


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fastreader {__version__}")
        raise typer.Exit


class _Escaped(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escaped(super().format(record))


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print more on standard error.")] = False,
) -> None:
    if not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_Escaped("%(message)s"))
        logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("fastreader").setLevel(logging.DEBUG if verbose else logging.INFO)
