"""Retrieval metrics of the retriever, and of the methods that reorder its passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fastreader.data import Example
from fastreader.errors import MissingExtraError
from fastreader.report.study_data import ReportCondition, StudyRun
from fastreader.statistics.measures.retrieval import MEASURES, retrieval_measures

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
        rows = [_row(RETRIEVER, flagged)]
        for condition in run.conditions:
            reorders = condition.spec.partition(":")[0] in ("moi", "order")
            if reorders and (ranked := list(_ranked(run, condition))):
                rows.append(_row(condition.label, ranked))
    except MissingExtraError as error:
        return RetrievalTable([], left_out, str(error))
    return RetrievalTable(rows, left_out)


def _row(name: str, examples: Sequence[Example]) -> dict[str, Any]:
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
    """Return the passages best first; those without a score follow in the retriever's order."""
    scores = trace["utilities"]["utility"] if "utilities" in trace else trace.get("order_scores")
    first = trace["order"] if scores is None else sorted(range(len(scores)), key=lambda i: -scores[i])
    return [*first, *(i for i in range(count) if i not in set(first))]
