"""The result of a study as a rich table: a row per method and reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table

from fastreader.cli.screen import Text

if TYPE_CHECKING:
    from fastreader.report.study_data import StudyRun


def study_table(run: StudyRun) -> RenderableType:
    """Show each method's answers, its first measure, its difference to its baseline, and its cost per question."""
    from fastreader.report.published import remarks
    from fastreader.report.tables import summary_rows, uncalibrated

    rows = summary_rows(run)
    metric = next(iter(run.metrics), None)
    scored = metric is not None and any(row[metric] is not None for row in rows)
    table = Table(header_style="bold", expand=True)
    table.add_column("method", overflow="fold", ratio=1)
    for name in ("n", *((metric.replace("_", " "), "difference") if scored and metric else ()), "tokens"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        values = [_interval(row, metric), _interval(row, "difference", "+")] if scored and metric else []
        table.add_row(Text(row["method"]), f"{row['answered']:,}", *values, _whole(row["computed_tokens"]))
    notes = ["n: questions answered; tokens: computed per question."]
    if scored:
        bases = ", ".join(dict.fromkeys(row["baseline"] for row in rows if row["baseline"]))
        notes.insert(0, f"With 95% intervals. difference: to {bases or 'a baseline, which this study lacks'};")
    else:
        notes.insert(0, "No question has right answers to compare with, so that only the cost is shown.")
    shown = (table, Text(" ".join(notes)), *_published(run), *map(Text, remarks(run)))
    return Group(*map(Text, uncalibrated(run)), *shown)


def _published(run: StudyRun) -> list[RenderableType]:
    """Return the table of published figures next to the run's, or nothing if none is comparable."""
    from fastreader.report.published import published_rows

    rows = published_rows(run)
    if not rows:
        return []
    table = Table(header_style="bold", title=", ".join(dict.fromkeys(row["source"] for row in rows)))
    for name in ("method", "metric", "ours", "n", "published", "questions"):
        table.add_column(name, justify="left" if name in ("method", "metric") else "right")
    for row in rows:
        theirs = "" if row["questions"] is None else f"{row['questions']:,}"
        figures = (f"{row['ours']:.3f}", f"{row['n']:,}", f"{row['published']:.3f}", theirs)
        table.add_row(Text(row["method"]), row["metric"], *figures)
    return [table]


def _interval(row: dict[str, Any], name: str | None, sign: str = "") -> str:
    if name is None or row.get(name) is None:
        return ""
    return f"{row[name]:{sign}.2f} [{row[f'{name}_low']:{sign}.2f}, {row[f'{name}_high']:{sign}.2f}]"


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"
