"""The questions of a run whose passages contradict each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastreader.passages.conflicts import Conflicts
from fastreader.report.study_data import StudyRun

SHOWN = 10  # rows on the page; the CSV file has all


@dataclass(frozen=True)
class Contradictions:
    """What the comparisons of passages found.

    Attributes:
        compared: number of questions whose passages were compared, by each reader.
        failed: number of questions with a passage too long for the context.
        rows: the questions with a score above 0, the largest first.
    """

    compared: int
    failed: int
    rows: list[dict[str, Any]]

    @property
    def largest(self) -> list[dict[str, Any]]:
        """The rows of the page."""
        return self.rows[:SHOWN]


def contradictions(run: StudyRun) -> Contradictions:
    """Return the comparisons in a run's folder; none if the study does not ask for them."""
    kept = [row for row in run.conflicts if row["question_id"] in run.questions]
    found = [(row, Conflicts.from_dict(row["conflicts"])) for row in kept if row["conflicts"] is not None]
    rows = [_row(run, row, one) for row, one in found if one.odd is not None]
    return Contradictions(len(found), len(kept) - len(found), sorted(rows, key=lambda row: -row["score"]))


def _row(run: StudyRun, row: dict[str, Any], found: Conflicts) -> dict[str, Any]:
    odd = found.odd
    assert odd is not None
    passage = run.questions[row["question_id"]].passages[odd]
    own = found.supports[odd] if found.claims[odd] is None else found.claims[odd]
    other = found.consensus
    if own is not None and own == other:  # the passage's own text speaks for another answer
        rivals = np.where(np.isnan(found.texts[odd]), -np.inf, found.texts[odd])
        rivals[own] = -np.inf
        other = int(rivals.argmax())
    return {
        "question": found.question,
        "reader": row["reader"],
        "score": found.score,
        "passage": odd + 1,
        "text": f"{passage.title}: {passage.text}" if passage.title else passage.text,
        "answer": "" if own is None else found.candidates[own],
        "other": "" if other is None else found.candidates[other],
    }
