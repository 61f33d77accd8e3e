"""The report's tables: the figures of every method, and its contrast with the baseline."""

from __future__ import annotations

from typing import Any

from fastreader.report.study_data import ReportCondition, StudyRun
from fastreader.statistics import Comparison, Interval, compare, wilson

TOKENS = ("total_tokens", "computed_tokens", "new_tokens")
_CONTRAST = {
    "pairs": "n",
    "test": "test",
    "p": "p",
    "p_holm": "p_holm",
    "wilcoxon_p": "wilcoxon",
    "mcnemar_p": "mcnemar",
    "cohens_d": "cohens_d",
    "minimum_detectable_effect": "minimum_detectable_effect",
}  # columns, with the attributes of a contrast


def comparison(run: StudyRun) -> Comparison | None:
    """Return conditions and contrasts by the study's metric; None if no question has right answers."""
    outcomes = {c.label: values for c in run.conditions if (values := run.outcomes(c))}
    if not outcomes:
        return None
    baselines = {
        name: base
        for name, base in run.baselines.items()
        if name in outcomes and base in outcomes and outcomes[name].keys() & outcomes[base].keys()
    }
    primary = [c.label for c in run.conditions if c.method == run.study.primary and c.label in baselines]
    return compare(outcomes, baselines, clusters=run.clusters, primary=primary)


def summary_rows(run: StudyRun) -> list[dict[str, Any]]:
    """Return a row per condition, as in the CSV file; a missing value is None."""
    found = comparison(run)
    contrasts = {c.name: c for c in found.contrasts} if found else {}
    rows = []
    for condition in run.conditions:
        row: dict[str, Any] = {
            "method": condition.label,
            "spec": condition.spec,
            "reader": condition.reader,
            **_counts(run, condition),
        }
        for metric in run.metrics:
            outcomes = run.outcomes(condition, metric)
            row |= _interval(metric, run.interval(outcomes) if outcomes else None)
        share = _wilson(run, condition)
        row |= {"wilson_low": share.low if share else None, "wilson_high": share.high if share else None}
        contrast = contrasts.get(condition.label)
        row |= {
            "baseline": contrast.baseline if contrast else None,
            **_interval("difference", contrast.difference if contrast else None),
            **{column: getattr(contrast, name, None) for column, name in _CONTRAST.items()},
            "primary": contrast.primary if contrast else False,
        }
        rows.append(row)
    return rows


def _counts(run: StudyRun, condition: ReportCondition) -> dict[str, Any]:
    rows = run.of(condition)
    answered = [row for row in rows if row["answer"] is not None]
    return {
        "answered": len(answered),
        "left_out": sum(row["left_out"] is not None for row in rows),
        "over_long": sum(row["over_long"] is not None for row in rows),
        "failed": sum(row["error"] is not None for row in rows),
        **{name: _average([row["tokens"][name] for row in answered]) for name in TOKENS},
        "seconds": _average([row["seconds"] for row in answered]),
    }


def _wilson(run: StudyRun, condition: ReportCondition) -> Interval | None:
    values = list(run.outcomes(condition).values())
    if not values or not all(value in (0, 1) for value in values):
        return None
    return wilson(int(sum(values)), len(values))


def _interval(name: str, interval: Interval | None) -> dict[str, float | None]:
    values = (None, None, None) if interval is None else (interval.estimate, interval.low, interval.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _average(values: list[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
