"""The report's tables: figures of every method, retrieval metrics, and contradictions among passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fastreader.data import Example
from fastreader.errors import MissingExtraError
from fastreader.passages.conflicts import Conflicts
from fastreader.report.study_data import ReportCondition, StudyRun
from fastreader.statistics import Comparison, Interval, compare, wilson
from fastreader.statistics.measures.retrieval import MEASURES, retrieval_measures

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
    """Return conditions and contrasts by the study's metric, or None if no question has right answers."""
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
    """Return a row per condition, as in the CSV file, with None for a missing value."""
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


def uncalibrated(run: StudyRun) -> list[str]:
    """Return a sentence for each condition that read the retriever's order for want of a calibration."""
    found = []
    for condition in run.conditions:
        traces = [row["trace"] for row in run.of(condition) if "bias_source" in row["trace"]]
        kept = [t for t in traces if t["bias_source"].startswith("none") and t.get("design") == "given"]
        if kept:
            found.append(
                f"{condition.label} had no calibration for {len(kept)} of {len(traces)} questions and read them in the "
                "retriever's order, as base does: run fastreader calibrate for this reader and number of passages."
            )
    return found


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


RETRIEVER = "the retriever's"


@dataclass(frozen=True)
class RetrievalTable:
    """The table of retrieval metrics.

    Attributes:
        rows: for each order its name, the number of questions with gold flags, and each metric's mean.
        left_out: number of questions without gold flags.
        why_not: why there are no rows; "" if there are rows.
        metrics: names, as in ir-measures.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: int = 0
    why_not: str = ""
    metrics: tuple[str, ...] = MEASURES


def retrieval(run: StudyRun) -> RetrievalTable:
    """Return metrics over the questions whose passages have gold flags, for the retriever's order and MoI's rankings.

    MoI ranks by utility, the estimated worth of a passage, and not by the place in the reading order. An `order:`
    method is ranked by its scores likewise, or by its reading order if it has none.
    """
    examples = list(run.questions.values())
    flagged = [e for e in examples if any(p.is_gold is not None for p in e.passages)]
    left_out = len(examples) - len(flagged)
    if not flagged:
        return RetrievalTable([], left_out, "no question has passages with gold flags")
    try:
        rows = [_metrics(RETRIEVER, flagged)]
        for condition in run.conditions:
            reorders = condition.spec.partition(":")[0] in ("moi", "order")
            if reorders and (ranked := list(_ranked(run, condition))):
                rows.append(_metrics(condition.label, ranked))
    except MissingExtraError as error:
        return RetrievalTable([], left_out, str(error))
    return RetrievalTable(rows, left_out)


def _metrics(name: str, examples: Sequence[Example]) -> dict[str, Any]:
    found = retrieval_measures(examples)
    return {"order": name, "questions": len(found.indices), **found.means}


def _ranked(run: StudyRun, condition: ReportCondition) -> Iterator[Example]:
    """Yield the questions with their passages ranked by the condition, under the first seed."""
    seen: set[str] = set()
    for row in run.of(condition):
        example = run.questions.get(row["question_id"])
        trace = row["trace"]
        if example is None or row["question_id"] in seen or "order" not in trace:
            continue
        if all(p.is_gold is None for p in example.passages):
            continue
        seen.add(row["question_id"])
        ranking = _ranking(trace, len(example.passages))
        yield replace(example, passages=[example.passages[i] for i in ranking])


def _ranking(trace: dict[str, Any], count: int) -> list[int]:
    """Return the passages best first, then those without a score in the retriever's order."""
    scores = trace["utilities"]["utility"] if "utilities" in trace else trace.get("order_scores")
    first = trace["order"] if scores is None else sorted(range(len(scores)), key=lambda i: -scores[i])
    return [*first, *(i for i in range(count) if i not in set(first))]


SHOWN = 10  # rows on the page; the CSV file has all


@dataclass(frozen=True)
class Contradictions:
    """What the comparisons of passages found.

    Attributes:
        compared: number of questions whose passages were compared, by each reader.
        failed: number of questions with a passage too long for the context.
        rows: the questions whose passages contradict each other with a probability of 0.4 or more, the largest first.
    """

    compared: int
    failed: int
    rows: list[dict[str, Any]]

    @property
    def largest(self) -> list[dict[str, Any]]:
        """The rows of the page."""
        return self.rows[:SHOWN]


def contradictions(run: StudyRun) -> Contradictions:
    """Return the comparisons in a run's folder, which are empty if the study makes none."""
    kept = [row for row in run.conflicts if row["question_id"] in run.questions]
    own = [row for row in kept if row["conflicts"] is not None]
    # Rows without probabilities are of earlier versions, whose scores were in nats; a resumed run replaces them.
    found = [(row, Conflicts.from_dict(row["conflicts"])) for row in own if "probabilities" in row["conflicts"]]
    rows = [_contradiction(run, row, one) for row, one in found if one.odd is not None]
    return Contradictions(len(found), len(kept) - len(own), sorted(rows, key=lambda row: -row["score"]))


def _contradiction(run: StudyRun, row: dict[str, Any], found: Conflicts) -> dict[str, Any]:
    odd = found.odd
    assert odd is not None
    passage = run.questions[row["question_id"]].passages[odd]
    own, other = found.claims[odd], found.consensus
    denies = own is None and bool(found.denied[odd].any())
    if denies:
        own = int(np.where(found.denied[odd], found.probabilities, -1.0).argmax())
    elif own is None:
        own = found.supports[odd]
    if own == other and not denies:  # two answers are about equally probable
        ranks = np.argsort(-found.probabilities, kind="stable")
        other = int(next(k for k in ranks if k != own))
    return {
        "question": found.question,
        "reader": row["reader"],
        "score": found.score,
        "passage": odd + 1,
        "text": f"{passage.title}: {passage.text}" if passage.title else passage.text,
        "answer": "" if own is None else f"not {found.candidates[own]}" if denies else found.candidates[own],
        "other": "" if other is None else found.candidates[other],
    }
