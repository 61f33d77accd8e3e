"""Compute the objective of a fit: mean correctness of the selected answers as a function of the weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fastreader.eor import scoring
from fastreader.eor.ballots import Ballots
from fastreader.eor.pooling import ROUNDING, majority_of, plurality_of
from fastreader.eor.scoring import Rules
from fastreader.eor.types import BoolArray, FloatArray, IntArray

_REMEMBERED = 64  # number of selections whose supports are kept; a search visits few at a time


class Objective:
    """Mean correctness of the selected answers as a function of the weights.

    Questions whose answers are all equally right are handled apart, and equal questions are counted together. With mean
    pooling, which is linear in the similarities, the supports of a selection of retrievers are computed once, so that a
    call costs a product of [S] by [S, M Q]. The result is exactly the mean over all questions.
    """

    def __init__(self, ballots: Ballots, correct: FloatArray, rules: Rules) -> None:
        """Group the questions and arrange their similarities.

        Args:
            ballots: answers of M retrievers to Q questions.
            correct: float64 [Q, M].
            rules: how votes are counted.
        """
        self.rules, self.questions = rules, len(correct)
        self.retrievers, self.similarities = ballots.width, ballots.similarity.shape[1]
        self.evaluations = 0
        candidates = ballots.candidates
        low = np.where(candidates, correct, np.inf).min(axis=1)
        high = np.where(candidates, correct, -np.inf).max(axis=1)
        varying = np.flatnonzero(low < high)
        self.varying = len(varying)
        # All candidates of a settled question have the same correctness, as long as one of them is selected.
        settled = np.flatnonzero((low == high) & (high != 0))
        self._settled, place = np.unique(candidates[settled], axis=0, return_inverse=True)
        self._settled_value = np.bincount(place.ravel(), weights=high[settled], minlength=len(self._settled))

        keep, counts = _different(ballots, correct, varying)
        # From here on retrievers come first and questions last, so that each step is one pass over the questions.
        similarity = ballots.similarity[keep]
        self._kinds = len(keep)
        if rules.pooling == "mean":
            self._rows = similarity.transpose(1, 2, 0, 3).reshape(-1, self.retrievers)  # [S M Q, M voters]
        else:
            # for n and every m after it, [S, m, Q]: similarity of n to m, and of m to n, mostly the same numbers
            cells = similarity.transpose(3, 1, 2, 0)
            symmetric = np.array_equal(similarity, similarity.swapaxes(2, 3))
            self._later = [_flat(cells[n, :, n + 1 :]) for n in range(self.retrievers)]
            self._earlier = (
                None if symmetric else [_flat(cells[n + 1 :, :, n].swapaxes(0, 1)) for n in range(self.retrievers)]
            )
        self._present, self._candidates = ballots.present[keep].T.copy(), candidates[keep].T.copy()
        self._barred = np.where(self._candidates, 0.0, -np.inf)
        self._gain = (correct[keep] * counts[:, None]).T.copy()
        self._supports: dict[bytes, FloatArray] = {}

    def __call__(self, weights: FloatArray) -> float:
        """Return the objective at ``weights = (w^r [M], w^s [S])``."""
        self.evaluations += 1
        return float(self.outcomes(weights).sum() + self._settled_sum(weights)) / self.questions

    def outcomes(self, weights: FloatArray) -> FloatArray:
        """Return the correctness of each kind of varying question times its number of occurrences."""
        retriever, similarity = weights[: self.retrievers], weights[self.retrievers :]
        selected = self.rules.selected(retriever)
        pooled = self._pooled(scoring.shares(similarity), selected)
        order = np.flatnonzero(selected)
        if self.rules.ties == "weight":
            order = order[np.argsort(-retriever[order], kind="stable")]
        if not len(order):
            return np.zeros(self._kinds)
        # `scoring.scores` and `scoring.winners` in fewer passes: rounded at the same place, the first largest wins.
        score = pooled[order] * (retriever[order, None] * 10.0**scoring.DECIMALS)
        np.rint(score, out=score)
        score += self._barred[order]
        won = score.argmax(axis=0)
        every = np.arange(self._kinds)
        won_by = order[won]
        return np.where(self._candidates[won_by, every], self._gain[won_by, every], 0.0)

    def _settled_sum(self, weights: FloatArray) -> float:
        selected = self.rules.selected(weights[: self.retrievers])
        return float(self._settled_value[(self._settled & selected).any(axis=1)].sum())

    def _pooled(self, share: FloatArray, selected: BoolArray) -> FloatArray:
        """Return the pooled similarities float64 [M, Q]."""
        heard = np.ones(self.retrievers, dtype=bool) if self.rules.dropped_vote else selected
        if self.rules.pooling != "mean":
            return self._nonlinear(share, heard, selected)
        key = heard.tobytes()
        if key not in self._supports:
            if len(self._supports) >= _REMEMBERED:
                self._supports.pop(next(iter(self._supports)))
            # Absent answers and the diagonal have similarity 0, so that a product sums over the voters.
            total = (self._rows @ heard.astype(np.float64)).reshape(self.similarities, self.retrievers, -1)
            self._supports[key] = (total / np.maximum(self._count(heard), 1)).reshape(self.similarities, -1)
        return (share @ self._supports[key]).reshape(self.retrievers, -1)

    def _count(self, heard: BoolArray) -> IntArray:
        """Return N, the number of voters other than each answer, [M, Q]."""
        voters = self._present & heard[:, None]
        count: IntArray = voters.sum(axis=0) - voters
        return count

    def _nonlinear(self, share: FloatArray, heard: BoolArray, selected: BoolArray) -> FloatArray:
        """Apply the other poolings pair by pair, combining the similarities of a symmetric pair once."""
        if self.rules.pooling == "max":
            best = np.zeros((self.retrievers, self._kinds))
            for n, later, earlier in self._combined(share):
                if heard[n]:
                    np.maximum(best[n + 1 :], later, out=best[n + 1 :])
                best[n] = np.maximum(best[n], earlier[heard[n + 1 :]].max(axis=0, initial=0.0))
            return best
        above = self.rules.similarity_threshold + ROUNDING
        agree = np.zeros((self.retrievers, self._kinds), dtype=np.int16)
        for n, later, earlier in self._combined(share):
            agrees = later > above
            if heard[n]:
                agree[n + 1 :] += agrees
            back = agrees if earlier is later else earlier > above
            agree[n] += back[heard[n + 1 :]].sum(axis=0, dtype=np.int16)
        if self.rules.pooling == "majority":
            return majority_of(agree, self._count(heard))
        candidates = self._candidates & selected[:, None]
        return plurality_of(agree.T, self._count(heard).T, candidates.T).T

    def _combined(self, share: FloatArray) -> Iterator[tuple[int, FloatArray, FloatArray]]:
        """Yield each n with the combined similarities of all m > n to it, and of it to them, both [m, Q]."""
        for n, cells in enumerate(self._later):
            shape = self.retrievers - n - 1, self._kinds
            later = (share @ cells).reshape(shape)
            yield n, later, later if self._earlier is None else (share @ self._earlier[n]).reshape(shape)


def _flat(cells: FloatArray) -> FloatArray:
    """Return [S, m, Q] as contiguous [S, m Q]."""
    return np.ascontiguousarray(cells).reshape(len(cells), cells[0].size)


def _different(ballots: Ballots, correct: FloatArray, among: npt.NDArray[np.intp]) -> tuple[list[int], FloatArray]:
    """Return the indices of the distinct questions in `among`, and the number of occurrences of each."""
    counts: dict[bytes, list[int]] = {}
    for q in among.tolist():
        parts = (ballots.similarity[q], ballots.present[q], ballots.candidates[q], correct[q])
        counts.setdefault(b"".join(part.tobytes() for part in parts), []).append(q)
    groups = list(counts.values())
    return [group[0] for group in groups], np.array([len(group) for group in groups], dtype=np.float64)
