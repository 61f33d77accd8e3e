"""The report's tables: every method's figures, and every method against the baseline."""

from __future__ import annotations

from typing import Any

from fastreader.report.study_data import MEASURES, Condition, StudyRun
from fastreader.statistics import Comparison, Interval, compare, wilson


def comparison(run: StudyRun) -> Comparison | None:
    """Conditions and contrasts by the study's measure; None where no question has right answers."""
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
    """A row a condition, as the CSV file holds them; None where there is nothing to say."""
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
        for measure in MEASURES:
            row |= _interval(measure, _mean(run, condition, measure))
        share = _wilson(run, condition)
        row |= {"wilson_low": share.low if share else None, "wilson_high": share.high if share else None}
        contrast = contrasts.get(condition.label)
        row |= {
            "baseline": contrast.baseline if contrast else None,
            **_interval("difference", contrast.difference if contrast else None),
            "pairs": contrast.n if contrast else None,
            "test": contrast.test if contrast else None,
            "p": contrast.p if contrast else None,
            "p_holm": contrast.p_holm if contrast else None,
            "wilcoxon_p": contrast.wilcoxon if contrast else None,
            "mcnemar_p": contrast.mcnemar if contrast else None,
            "cohens_d": contrast.cohens_d if contrast else None,
            "minimum_detectable_effect": contrast.minimum_detectable_effect if contrast else None,
            "primary": contrast.primary if contrast else False,
        }
        rows.append(row)
    return rows


def _counts(run: StudyRun, condition: Condition) -> dict[str, Any]:
    rows = run.of(condition)
    answered = [row for row in rows if row["answer"] is not None]
    return {
        "answered": len(answered),
        "left_out": sum(row["left_out"] is not None for row in rows),
        "over_long": sum(row["over_long"] is not None for row in rows),
        "failed": sum(row["error"] is not None for row in rows),
        "tokens_given": _average([row["tokens"]["given"] for row in answered]),
        "tokens_computed": _average([row["tokens"]["computed"] for row in answered]),
        "tokens_new": _average([row["tokens"]["new"] for row in answered]),
        "seconds": _average([row["seconds"] for row in answered]),
    }


def _mean(run: StudyRun, condition: Condition, measure: str) -> Interval | None:
    outcomes = run.outcomes(condition, measure)
    if not outcomes:
        return None
    return run.interval(outcomes)


def _wilson(run: StudyRun, condition: Condition) -> Interval | None:
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
