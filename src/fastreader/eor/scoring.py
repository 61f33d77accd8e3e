"""Compute the voter's scores (Eqs. 6 and 7), winners and votes over many questions at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fastreader.eor.ballots import Ballots
from fastreader.eor.pooling import POOLINGS, ROUNDING, mean, others, plurality
from fastreader.eor.types import BoolArray, FloatArray, IntArray, Vote

DECIMALS = 12
"""Scores that are equal to this precision tie, so that the order of a sum decides nothing."""


@dataclass(frozen=True)
class Rules:
    """The parameters of `Voter` that decide how a vote is counted, all but the weights."""

    pooling: str
    similarity_threshold: float
    retriever_threshold: float
    dropped_vote: bool
    ties: str
    min_support: float | None

    def selected(self, retriever_weights: FloatArray) -> BoolArray:
        """Return bool [M]: w^r > t, section 4.2."""
        return retriever_weights > self.retriever_threshold

    def voters(self, present: BoolArray, selected: BoolArray) -> BoolArray:
        """Return bool [Q, M]: whether an answer supports others."""
        return present if self.dropped_vote else present & selected


@dataclass(frozen=True, eq=False)
class Count:
    """The outcome of Q votes.

    Attributes:
        score: float64 [Q, M], Eq. 7.
        pooled: float64 [Q, M], pooled similarities.
        won: int64 [Q], indices of the winners; -1 if no answer won.
    """

    score: FloatArray
    pooled: FloatArray
    won: IntArray


def count(ballots: Ballots, retriever: FloatArray, similarity: FloatArray, rules: Rules) -> Count:
    """Count votes with w^r [M] and w^s [S]."""
    selected = rules.selected(retriever)
    voters, candidates = rules.voters(ballots.present, selected), ballots.candidates & selected
    pooled = support(combine(ballots.similarity, similarity), voters, candidates, rules)
    score = scores(pooled, candidates, retriever)
    won = winners(score, retriever, rules)
    if rules.min_support is not None:
        low = np.round(pooled[np.arange(len(won)), won], DECIMALS) < rules.min_support
        won = np.where(low, -1, won)
    return Count(score, pooled, won)


def votes(
    ballots: Ballots, retriever: FloatArray, similarity: FloatArray, rules: Rules, names: Sequence[str]
) -> list[Vote]:
    """Count votes with similarities called `names`, and return them with the reason if no answer won."""
    found = count(ballots, retriever, similarity, rules)
    voters = rules.voters(ballots.present, rules.selected(retriever))
    parts = contributions(ballots.similarity, similarity, voters, found.score, rules)
    out = []
    for q, m in enumerate(found.won.tolist()):
        won = m >= 0
        out.append(
            Vote(
                answer=ballots.texts[q][m] if won else None,
                winner=m if won else None,
                retriever=(ballots.retrievers[m] if ballots.retrievers else str(m)) if won else None,
                scores=found.score[q],
                support=found.pooled[q],
                contributions=parts[q],
                similarities=list(names),
                abstained=None if won else _reason(ballots, q, found.score[q], rules.min_support),
            )
        )
    return out


def _reason(ballots: Ballots, q: int, score: FloatArray, min_support: float | None) -> str:
    if not ballots.present[q].any():
        return "every retriever failed"
    if not ballots.candidates[q].any():
        return "all answers are empty or refusals"
    if np.isneginf(score).all():
        return "no retriever that is selected has an answer"
    return f"the best answer's support is below {min_support}"


def shares(similarity_weights: FloatArray) -> FloatArray:
    """Return w^s divided by its sum, or equal shares if all are 0, so that a search cannot disable the vote."""
    total = similarity_weights.sum()
    return similarity_weights / total if total > 0 else np.full(len(similarity_weights), 1 / len(similarity_weights))


def combine(similarity: FloatArray, similarity_weights: FloatArray) -> FloatArray:
    """Return Eq. 6 with w^s divided by its sum: [Q, S, M, M] and [S] to [Q, M, M]."""
    combined: FloatArray = np.einsum("s,qsmn->qmn", shares(similarity_weights), similarity)
    return combined


def support(combined: FloatArray, voters: BoolArray, candidates: BoolArray, rules: Rules) -> FloatArray:
    """Return the pooled similarity of each answer to the voters', [Q, M]."""
    if rules.pooling == "plurality":
        return plurality(combined, voters, rules.similarity_threshold, candidates)
    return POOLINGS[rules.pooling](combined, voters, rules.similarity_threshold)


def scores(pooled: FloatArray, candidates: BoolArray, retriever_weights: FloatArray) -> FloatArray:
    """Return Eq. 7, w^r_m times the pooled similarity, [Q, M]; -inf for answers that cannot win."""
    return np.where(candidates, np.round(retriever_weights * pooled, DECIMALS), -np.inf)


def winners(score: FloatArray, retriever_weights: FloatArray, rules: Rules) -> IntArray:
    """Return int64 [Q]: the index of the largest score, -1 if no answer can win.

    The first of equal scores wins, or with ties="weight" to the largest weight among them and then the first.
    """
    best = score.max(axis=1, keepdims=True)
    if rules.ties == "weight":
        place = np.where(score == best, retriever_weights, -np.inf).argmax(axis=1)
    else:
        place = score.argmax(axis=1)
    return np.where(np.isneginf(best[:, 0]), -1, place)


def contributions(
    similarity: FloatArray, similarity_weights: FloatArray, voters: BoolArray, score: FloatArray, rules: Rules
) -> FloatArray:
    """Return the part of each similarity in each score, [Q, M, S].

    The parts sum to the score, or to 0 if it is -inf. With mean pooling the score is itself a sum over similarities.
    With max it is split in proportion to the weighted similarities of the nearest answer; with majority and plurality
    in proportion to the similarities of the counted answers, or to w^s if no answer was counted.
    """
    share = shares(similarity_weights)
    weighted = share[None, :, None, None] * similarity
    combined = weighted.sum(axis=1)
    if rules.pooling == "mean":
        part = np.stack([mean(weighted[:, s], voters) for s in range(len(share))], axis=-1)
    else:
        mask = others(voters)
        if rules.pooling == "max":
            nearest = np.where(mask, combined, -np.inf).argmax(axis=-1)
            mask = mask & (np.arange(mask.shape[-1]) == nearest[..., None])
        else:
            mask = mask & (combined > rules.similarity_threshold + ROUNDING)
        part = np.einsum("qsmn,qmn->qms", weighted, mask)
    total = part.sum(axis=-1, keepdims=True)
    ratio = np.divide(part, total, out=np.broadcast_to(share, part.shape).copy(), where=total > 0)
    split: FloatArray = ratio * np.where(np.isneginf(score), 0.0, score)[..., None]
    return split
