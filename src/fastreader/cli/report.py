"""fastreader report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastreader.cli.screen import say
from fastreader.core.checks import expect, require
from fastreader.data.files import write_text


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run of `fastreader study`.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page, an .html file.", show_default=False)
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Folder for the figures as PNG.", show_default=False)] = None,
    svg: Annotated[Path | None, typer.Option(help="Folder for the figures as SVG.", show_default=False)] = None,
    csv: Annotated[Path | None, typer.Option(help="Folder for the tables as CSV.", show_default=False)] = None,
) -> None:
    """Write one self-contained page about a study's run, or its figures and tables as files.

    Examples:

      fastreader report runs/first -o report.html

      fastreader report runs/first --png figures --csv tables
    """
    from fastreader.report.page import Report

    expect(bool(output or png or svg or csv), "--output", "a file, unless --png, --svg or --csv names a folder", output)
    if output is not None:
        expect(output.suffix in (".html", ".htm"), "--output", "an .html file", str(output))
        require(output.parent.is_dir(), f"--output: no folder {output.parent}")
    found = Report.of(run)
    if output is not None:
        write_text(output, found.html())
        typer.echo(str(output))
    written = [
        path for folder, kind in ((png, "png"), (svg, "svg")) if folder for path in found.write_figures(folder, kind)
    ]
    if csv:
        written += found.write_tables(csv)
    for path in written:
        typer.echo(str(path))
    for section in found.sections:
        if section.table is None:
            say(f"not shown: {section.chart.title}: {section.why_not}")
