"""The voter's score (Eqs. 6 and 7) over many questions at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.eor.pooling import ROUNDING, mean, others, plurality, pooling

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

DECIMALS = 12
"""Scores closer than this are ties, so that the order of a sum decides nothing."""


@dataclass(frozen=True)
class Rules:
    """How a vote is counted, all but the weights; as the arguments of `Voter`."""

    pooling: str
    similarity_threshold: float
    retriever_threshold: float
    dropped_vote: bool
    ties: str

    def selected(self, retriever_weights: FloatArray) -> BoolArray:
        """bool [M]: w^r > t, section 4.2."""
        return retriever_weights > self.retriever_threshold

    def voters(self, present: BoolArray, selected: BoolArray) -> BoolArray:
        """bool [Q, M]: whose answers count as others' support."""
        return present if self.dropped_vote else present & selected


def shares(similarity_weights: FloatArray) -> FloatArray:
    """w^s divided by its sum; equal shares where all are 0, so that a search cannot switch the vote off."""
    total = similarity_weights.sum()
    return similarity_weights / total if total > 0 else np.full(len(similarity_weights), 1 / len(similarity_weights))


def combine(similarity: FloatArray, similarity_weights: FloatArray) -> FloatArray:
    """Eq. 6 with w^s divided by its sum: [Q, S, M, M] and [S] to [Q, M, M]."""
    combined: FloatArray = np.einsum("s,qsmn->qmn", shares(similarity_weights), similarity)
    return combined


def support(combined: FloatArray, voters: BoolArray, candidates: BoolArray, rules: Rules) -> FloatArray:
    """The pooled similarity of each answer to the voters', [Q, M]."""
    if rules.pooling == "plurality":
        return plurality(combined, voters, rules.similarity_threshold, candidates)
    function: Callable[..., FloatArray] = pooling(rules.pooling)
    return function(combined, voters, rules.similarity_threshold)


def scores(pooled: FloatArray, candidates: BoolArray, retriever_weights: FloatArray) -> FloatArray:
    """Eq. 7: w^r_m times the pooled similarity; -inf for what cannot win. [Q, M]."""
    return np.where(candidates, np.round(retriever_weights * pooled, DECIMALS), -np.inf)


def winners(score: FloatArray, retriever_weights: FloatArray, rules: Rules) -> npt.NDArray[np.int64]:
    """int64 [Q]: the place of the largest score, -1 where nobody can win.

    Ties go to the first, or with ties="weight" to the largest weight among them and then the first.
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
    """What each similarity adds to each score, [Q, M, S]; they sum to the score, and are 0 where that is -inf.

    With mean pooling the score is a sum over similarities as it stands. With max it is split as the nearest answer's
    similarity is; with majority and plurality as the similarities of the answers counted are, or by w^s alone where
    none is.
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
