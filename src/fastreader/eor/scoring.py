"""Compare answers, pool similarities (App. C.4), and compute scores (Eqs. 6 and 7) and votes over many questions.

Each pooling takes similarities [..., M, M] and the voting answers, bool [..., M], and returns [..., M]. Answer m is
compared with the N voters other than itself; without voters the pooled value is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import NOT_LISTS, check_text, expect, require
from fastreader.eor.similarity import Similarity, tensor
from fastreader.eor.types import Answers, BoolArray, FloatArray, IntArray, Vote, aligned


@dataclass(frozen=True, eq=False)
class Ballots:
    """Q questions with the answers of the same M retrievers.

    Attributes:
        texts: Q lists of M answers; None if the retriever failed.
        retrievers: M names; None if the answers came without names.
        similarity: float64 [Q, S, M, M].
        present: bool [Q, M], whether there is an answer; every answer votes.
        candidates: bool [Q, M], whether the answer can win: present, not empty, not a refusal.
    """

    texts: list[list[str | None]]
    retrievers: list[str] | None
    similarity: FloatArray
    present: BoolArray
    candidates: BoolArray

    @property
    def width(self) -> int:
        """M, the number of retrievers."""
        return int(self.present.shape[1])


def is_single(answers: Any) -> bool:
    """Return whether `answers` belong to one question: an `Answers`, or a list of texts."""
    listed = isinstance(answers, Collection) and not isinstance(answers, NOT_LISTS)
    listed = listed and getattr(answers, "ndim", 1) > 0 and len(answers) > 0
    return isinstance(answers, Answers) or (listed and all(a is None or isinstance(a, str) for a in answers))


def ballots(rows: Sequence[Any], similarities: Sequence[Similarity], accept: Callable[[str | None], bool]) -> Ballots:
    """Check answers and compare them.

    Args:
        rows: Q `Answers`, reordered to the retrievers of the first; or Q lists (or an object array) of M texts and
            Nones.
        similarities: S of them.
        accept: whether a text can win and be supported.

    Raises:
        InputError: if there are no rows, fewer than two retrievers, or rows of different retrievers; or if a similarity
            is NaN, or needs the questions and only texts were given.
    """
    many = not isinstance(rows, Answers)
    require(many, "answers: expected a list with the answers to each question, got one Answers; put it into a list")
    listed = isinstance(rows, Collection) and not isinstance(rows, NOT_LISTS)
    listed = listed and getattr(rows, "ndim", 1) > 0  # an array of one number has no length
    expect(listed, "answers", "a list with the answers to each question", rows)
    expect(len(rows) > 0, "answers", "the answers to at least one question", rows)
    named = [row for row in rows if isinstance(row, Answers)]
    expect(len(named) in (0, len(rows)), "answers", "Answers for all questions or for none", rows)
    named = aligned(named)
    texts = [_row(f"answers[{i}]", row.texts if named else row) for i, row in enumerate(named or rows)]
    width = len(texts[0])
    for i, found in enumerate(texts):
        expect(len(found) == width, f"answers[{i}]", f"{width} answers as in the first row", len(found))
    expect(width >= 2, "answers", "at least 2 retrievers to vote", width)
    for each in similarities:
        known = bool(named) or not each.reads_question
        require(known, f"similarity {each.name}: reads the question; pass Answers instead of bare texts")
    present = np.array([[text is not None for text in row] for row in texts])
    candidates = np.array([[accept(text) for text in row] for row in texts]) & present
    questions = [row.question for row in named] if named else [""] * len(texts)
    similarity = tensor(similarities, questions, texts, candidates)
    return Ballots(texts, named[0].retrievers if named else None, similarity, present, candidates)


def _row(name: str, row: Any) -> list[str | None]:
    found = row.tolist() if isinstance(row, np.ndarray) else row
    expect(isinstance(found, (list, tuple)), name, "a list of texts", row)
    for text in found:
        check_text(name, text, empty=True, optional=True)
    return list(found)


ROUNDING = 1e-9


def others(voters: BoolArray) -> BoolArray:
    """Return bool [..., M, M]: whether n votes on m, true for every voter but m itself."""
    mask: BoolArray = voters[..., None, :] & ~np.eye(voters.shape[-1], dtype=bool)
    return mask


def mean(similarity: FloatArray, voters: BoolArray, threshold: float = 0.8) -> FloatArray:
    """Return (1 / N) sum over n of s_mn, without using `threshold`."""
    mask = others(voters)
    count = mask.sum(axis=-1)
    total = np.where(mask, similarity, 0.0).sum(axis=-1)
    pooled: FloatArray = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
    return pooled


def maximum(similarity: FloatArray, voters: BoolArray, threshold: float = 0.8) -> FloatArray:
    """Return max over n of s_mn, without using `threshold`."""
    mask = others(voters)
    best: FloatArray = np.where(mask, similarity, -np.inf).max(axis=-1)
    return np.where(mask.any(axis=-1), best, 0.0)


def agreeing(similarity: FloatArray, voters: BoolArray, threshold: float) -> IntArray:
    """Return c_m, the number of n with s_mn > threshold by more than rounding."""
    count: IntArray = (others(voters) & (similarity > threshold + ROUNDING)).sum(axis=-1)
    return count


def majority(similarity: FloatArray, voters: BoolArray, threshold: float = 0.8) -> FloatArray:
    """Return 1 if c_m >= N / 2, else 0."""
    return majority_of(agreeing(similarity, voters, threshold), others(voters).sum(axis=-1))


def majority_of(agree: npt.NDArray[np.integer[Any]], count: IntArray) -> FloatArray:
    """Return `majority` from c_m and N."""
    pooled: FloatArray = ((agree >= count / 2) & (count > 0)).astype(np.float64)
    return pooled


def plurality(
    similarity: FloatArray, voters: BoolArray, threshold: float = 0.8, candidates: BoolArray | None = None
) -> FloatArray:
    """Return 1 if c_m = max over k of c_k, else 0.

    Args:
        similarity, voters, threshold: same as in `majority`.
        candidates: bool [..., M], the k of the maximum; the voters by default.
    """
    count = others(voters).sum(axis=-1)
    return plurality_of(agreeing(similarity, voters, threshold), count, voters if candidates is None else candidates)


def plurality_of(agree: npt.NDArray[np.integer[Any]], count: IntArray, candidates: BoolArray) -> FloatArray:
    """Return `plurality` from c_m, N and the k of the maximum."""
    heard = candidates & (count > 0)
    largest = np.where(heard, agree, -1).max(axis=-1, keepdims=True)
    pooled: FloatArray = (heard & (agree == largest)).astype(np.float64)
    return pooled


POOLINGS: dict[str, Callable[..., FloatArray]] = {
    "mean": mean,
    "max": maximum,
    "majority": majority,
    "plurality": plurality,
}


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
