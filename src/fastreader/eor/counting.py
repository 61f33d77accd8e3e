"""Counting votes: scores, winners, and why nobody won."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.eor import scoring
from fastreader.eor.ballots import Ballots
from fastreader.eor.scoring import Rules
from fastreader.eor.types import Vote

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Count:
    """The outcome of Q votes.

    Attributes:
        score: float64 [Q, M], Eq. 7.
        pooled: float64 [Q, M], pooled similarities.
        won: int64 [Q], the winners' places; -1 where nobody won.
    """

    score: FloatArray
    pooled: FloatArray
    won: npt.NDArray[np.int64]


def count(
    ballots: Ballots, retriever: FloatArray, similarity: FloatArray, rules: Rules, min_support: float | None
) -> Count:
    """Count with w^r [M] and w^s [S]; nobody wins below `min_support`."""
    selected = rules.selected(retriever)
    voters, candidates = rules.voters(ballots.present, selected), ballots.candidates & selected
    pooled = scoring.support(scoring.combine(ballots.similarity, similarity), voters, candidates, rules)
    score = scoring.scores(pooled, candidates, retriever)
    won = scoring.winners(score, retriever, rules)
    if min_support is not None:
        low = np.round(pooled[np.arange(len(won)), won], scoring.DECIMALS) < min_support
        won = np.where(low, -1, won)
    return Count(score, pooled, won)


def votes(
    ballots: Ballots,
    retriever: FloatArray,
    similarity: FloatArray,
    rules: Rules,
    min_support: float | None,
    names: Sequence[str],
) -> list[Vote]:
    """As `count`, with what each similarity (by name) adds, and the reason where nobody won."""
    found = count(ballots, retriever, similarity, rules, min_support)
    voters = rules.voters(ballots.present, rules.selected(retriever))
    parts = scoring.contributions(ballots.similarity, similarity, voters, found.score, rules)
    out = []
    for q, m in enumerate(found.won.tolist()):
        winner = None if m < 0 else m
        name = None
        if winner is not None:
            name = ballots.retrievers[winner] if ballots.retrievers else str(winner)
        out.append(
            Vote(
                answer=None if winner is None else ballots.texts[q][winner],
                winner=winner,
                retriever=name,
                scores=found.score[q],
                support=found.pooled[q],
                contributions=parts[q],
                similarities=list(names),
                abstained=None if winner is not None else _why(ballots, q, found.score[q], min_support),
            )
        )
    return out


def _why(ballots: Ballots, q: int, score: FloatArray, min_support: float | None) -> str:
    if not ballots.present[q].any():
        return "every retriever failed"
    if not ballots.candidates[q].any():
        return "all answers are empty or refusals"
    if np.isneginf(score).all():
        return "no retriever that is selected has an answer"
    return f"the best answer's support is below {min_support}"
