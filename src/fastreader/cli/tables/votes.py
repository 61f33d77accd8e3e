"""Votes and the voter's measures, as rich tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.table import Table

from fastreader.cli.screen import Text

if TYPE_CHECKING:
    from fastreader.eor import Answers, Vote
    from fastreader.eor.types import FloatArray


def vote_table(rows: Sequence[tuple[Answers, Vote]]) -> Table:
    """Show the winner of each question."""
    table = Table("id", "question", "answer", "retriever", "support")
    for answers, vote in rows:
        support = "" if vote.winner is None else f"{vote.support[vote.winner]:.2f}"
        said = f"none: {vote.abstained}" if vote.answer is None else vote.answer
        cells = (answers.id or "", answers.question, said, vote.retriever or "", support)
        table.add_row(*(Text(cell) for cell in cells))  # brackets are the texts' own
    return table


def accuracy_table(rows: Sequence[tuple[Answers, Vote]], metric: str) -> Table | None:
    """Show accuracy, MRLR and MRWR of each retriever and of the vote, or None if no question has right answers.

    MRLR and MRWR are Eq. 3 and 2 of Ensemble of Retrievers (`fastreader.eor.measures`): a retriever is compared with
    the other retrievers, the vote with all of them. Both need answers that are right or wrong, and stay empty for F1.
    A vote that abstains is wrong.

    Args:
        rows: the answers to each question and their vote.
        metric: one of `fastreader.eor.measures.MEASURES`.
    """
    from fastreader.eor import Answers, correctness, measures
    from fastreader.eor.types import aligned

    judged = [(answers, vote) for answers, vote in rows if answers.right]
    if not judged:
        return None
    answers = aligned([row for row, _ in judged])
    voted = [Answers(row.question, ["vote"], [vote.answer], right=row.right) for row, vote in judged]
    single, both = correctness(answers, metric), correctness(voted, metric)
    both = np.column_stack([single, both])
    losses = wins = np.full(both.shape[1], np.nan)
    if np.isin(both, (0, 1)).all() and single.shape[1] > 1:
        losses, wins = (_with_vote(ratio(single), ratio(both)) for ratio in (measures.mrlr, measures.mrwr))
    table = Table(title=f"{metric} on {len(judged)} questions with right answers", title_justify="left")
    for name in ("retriever", "accuracy", "MRLR", "MRWR"):
        table.add_column(name, justify="left" if name == "retriever" else "right")
    names = [*answers[0].retrievers, "the vote"]
    for name, *values in zip(names, both.mean(axis=0), losses, wins, strict=True):
        table.add_row(Text(name), *("" if np.isnan(value) else f"{value:.3f}" for value in values))
    return table


def _with_vote(single: FloatArray, both: FloatArray) -> FloatArray:
    """Return the ratios of the retrievers among themselves, and that of the vote against them."""
    return np.append(single, both[-1])
