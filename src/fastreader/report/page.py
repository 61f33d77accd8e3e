"""A run as one self-contained HTML page, and its figures and tables as files."""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastreader import __version__
from fastreader.report import figures
from fastreader.report.browse import browser_data
from fastreader.report.plots import Chart, Table, answers, by_rank, ensemble, layouts, moi
from fastreader.report.policy import PLACE, StyleClasses, own_styles, with_policy
from fastreader.report.published import published_rows, remarks
from fastreader.report.study_data import Missing, StudyRun
from fastreader.report.tables import (
    Contradictions,
    RetrievalTable,
    contradictions,
    retrieval,
    summary_rows,
    uncalibrated,
)

CHARTS = (
    answers.ACCURACY,
    answers.RISK,
    moi.POSITION_BIAS,
    by_rank.UTILITIES,
    moi.PASSAGE_POSITION,
    by_rank.ATTRIBUTION,
    ensemble.RWR,
    ensemble.ERROR_RWR,
    ensemble.MRLR,
    ensemble.UPPER_BOUND,
    ensemble.WEIGHTS,
    layouts.RANDOM_PASSAGES,
    layouts.ATTENTION,
)  # in the page's order
TEST_NAMES = {
    "sign flip": "sign flips over gold passages, which questions share",
    "McNemar": "exact McNemar",
    "Wilcoxon": "Wilcoxon",
}


@dataclass(frozen=True)
class Section:
    """A figure of the page, or the reason why it is missing.

    Attributes:
        chart: the figure.
        table: its data; None if the run lacks them.
        why_not: the reason; "" if there is a table.
    """

    chart: Chart
    table: Table | None
    why_not: str = ""


@dataclass(frozen=True)
class Report:
    """The figures and tables of a run, computed once for page and files."""

    run: StudyRun
    summary: list[dict[str, Any]]
    retrieval: RetrievalTable
    conflicts: Contradictions
    sections: list[Section]

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Report:
        """Read a run folder and compute everything.

        Raises:
            InputError: if the folder is not that of a run, or holds no answers.
        """
        run = StudyRun(folder)
        charts = [_section(chart, run) for chart in CHARTS]
        return cls(run, summary_rows(run), retrieval(run), contradictions(run), charts)

    def html(self) -> str:
        """Return the page, which needs no network and forbids any by its Content-Security-Policy.

        Raises:
            MissingExtraError: if matplotlib is not installed.
        """
        from jinja2 import Environment
        from markupsafe import Markup

        data, cut = browser_data(self.run)
        environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        environment.filters.update(number=_number, interval=_interval, p=_p, whole=_whole, breakable=_breakable)
        study = self.run.study
        classes = StyleClasses()
        shown = [(s, Markup(classes.replace(_figure(s)))) for s in self.sections if s.table is not None]  # nosec B704 # matplotlib escaped its texts
        style, script = f"{_asset('style.css')}\n{classes.sheet()}\n", str(_asset("browser.js"))
        page = environment.from_string(_asset("page.html")).render(
            policy=PLACE,
            title=study.name or "Study",
            study=study,
            run=self.run,
            report=self,
            shown=shown,
            absent=[s for s in self.sections if s.table is None],
            problems=_problems(self.run),
            cautions=uncalibrated(self.run),
            published=published_rows(self.run),
            remarks=remarks(self.run),
            tests=", ".join(dict.fromkeys(TEST_NAMES[row["test"]] for row in self.summary if row["test"])) or "none",
            cut=cut,
            data=_json(data),
            style=Markup(style),  # nosec B704 # our own style sheet and styles of our figures
            script=Markup(script),  # nosec B704 # our own script
            version=__version__,
            made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
        return with_policy(page, [script], [style, *(sheet for _, svg in shown for sheet in own_styles(svg))])

    def write_figures(self, folder: str | os.PathLike[str], kind: str) -> list[Path]:
        """Write every figure as an "svg" or "png" file and return the paths."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        written = []
        for section in self.sections:
            if (table := section.table) is not None:
                path = target / f"{section.chart.key}.{kind}"
                figures.write(lambda c=section.chart, t=table: c.draw(t), path, section.chart.key)  # type: ignore[misc]
                written.append(path)
        return written

    def write_tables(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write the summary and every figure's table as CSV files and return the paths."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        tables = {"summary": self.summary}
        if published := published_rows(self.run):
            tables["published"] = published
        if self.retrieval.rows:
            tables["retrieval"] = self.retrieval.rows
        if self.conflicts.rows:
            tables["conflicts"] = self.conflicts.rows
        tables |= {s.chart.key: s.table for s in self.sections if s.table is not None}
        return [_write_csv(target / f"{name}.csv", rows) for name, rows in tables.items()]


def _section(chart: Chart, run: StudyRun) -> Section:
    try:
        return Section(chart, chart.collect(run))
    except Missing as missing:
        return Section(chart, None, str(missing))


def _figure(section: Section) -> str:
    table, chart = section.table, section.chart
    assert table is not None
    return figures.svg(lambda: chart.draw(table), chart.key, chart.title)


def _problems(run: StudyRun) -> dict[str, list[tuple[str, str, int]]]:
    """Return (method, reason, count) of the rows without an answer, and of the replies without attention."""
    rows = ((condition.label, row) for condition in run.conditions for row in run.of(condition))
    unanswered = Counter(
        (label, str(why).replace(repr(row["question_id"]), "the question"))
        for label, row in rows
        if (why := row["left_out"] or row["error"])
    )
    unrecorded = Counter((row["method"], row["error"]) for row in run.attention if row["error"])
    counts = {
        "Questions without an answer": unanswered,
        "Answers whose attention could not be recorded": unrecorded,
    }
    return {heading: [(*key, count) for key, count in found.items()] for heading, found in counts.items()}


def _json(values: Any) -> Any:
    """Return JSON that is safe in a script element."""
    from markupsafe import Markup

    text = json.dumps(values, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))  # nosec B704 # "<" is escaped


def _asset(name: str) -> Any:
    from markupsafe import Markup

    return Markup(files("fastreader.report").joinpath("assets", name).read_text(encoding="utf-8"))  # nosec B704 # our own assets


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
    return path


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _whole(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _interval(row: dict[str, Any], name: str, sign: bool = False) -> str:
    if row[name] is None:
        return ""
    form = "+.3f" if sign else ".3f"
    return f"{row[f'{name}_low']:{form}} to {row[f'{name}_high']:{form}}"


def _breakable(text: str) -> Any:
    """Return `text` with places where a line may break."""
    from markupsafe import Markup, escape

    return Markup(re.sub("([:_+·])", r"\1<wbr>", str(escape(text))))  # nosec B704 # escaped


def _p(value: float | None) -> str:
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"
