"""Search for the weights of a voter (section 4.2): Nelder-Mead over (w^r, w^s) within bounds, from several starts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import random_generator
from fastreader.data.record import Record
from fastreader.eor import scoring
from fastreader.eor.scoring import ROUNDING, Ballots, Rules, majority_of, plurality_of
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


@dataclass(frozen=True)
class FitReport(Record):
    """The report of a fit.

    Attributes:
        objective: mean correctness of the answers selected with the learned weights, on the training questions.
        unweighted: the same with equal weights.
        starts: the final objective of each start; their spread shows how rough the search was.
        evaluations: total number of evaluations of the objective.
        questions: Q.
        varying: number of questions whose answers differ in correctness; the others decide nothing.
        seconds: wall-clock time.
    """

    objective: float
    unweighted: float
    starts: list[float]
    evaluations: int
    questions: int
    varying: int
    seconds: float


def search(
    objective: Objective,
    *,
    upper: float,
    starts: int,
    accuracy: FloatArray,
    max_evaluations: int | None,
    prune: bool,
    seed: int,
) -> tuple[FloatArray, FitReport]:
    """Return the best weights over all starts, and the report.

    The first start has all weights at the bound, which is unweighted voting, so the fit is never worse on the training
    questions. The second has w^r in proportion to the retrievers' accuracy; the others are uniformly random. The
    initial simplex of a start toggles one weight at a time, inside the bounds.

    Args:
        objective: to maximise.
        upper: bound of every weight; the lower bound is 0.
        starts: number of starts, at least 1.
        accuracy: float64 [M], of each retriever.
        max_evaluations: maximum number of evaluations per start; None allows 200 per weight.
        prune: afterwards set the weights of retrievers to 0, smallest first, if that raises the objective, or keeps it
            and turns no right answer wrong.
        seed: seed of the random starts.
    """
    began = time.perf_counter()
    size = objective.retrievers + objective.similarities
    generator = random_generator(seed)
    even = np.full(size, upper)
    best, reached = even, objective(even)
    unweighted, values = reached, []
    for i in range(starts):
        start = even
        if i == 1 and accuracy.max(initial=0.0) > 0:
            shares = np.maximum(accuracy, 0.0) / accuracy.max()  # a wrong answer may score below 0
            start = np.concatenate([upper * shares, np.full(objective.similarities, upper)])
        elif i:
            start = generator.uniform(0.0, upper, size)
        found, value = _nelder_mead(objective, start, upper, max_evaluations or 200 * size)
        values.append(value)
        if value > reached:
            best, reached = found, value
    if prune:
        best = _prune(objective, best)
        reached = objective(best)
    return best, FitReport(
        objective=reached,
        unweighted=unweighted,
        starts=values,
        evaluations=objective.evaluations,
        questions=objective.questions,
        varying=objective.varying,
        seconds=time.perf_counter() - began,
    )


def simplex(start: FloatArray, upper: float) -> FloatArray:
    """Return float64 [n + 1, n]: `start`, and for each weight `start` with that weight at the farther bound."""
    vertices = np.tile(start, (len(start) + 1, 1))
    rows = np.arange(len(start))
    vertices[rows + 1, rows] = np.where(start > upper / 2, 0.0, upper)
    return vertices


def _nelder_mead(objective: Objective, start: FloatArray, upper: float, budget: int) -> tuple[FloatArray, float]:
    from scipy.optimize import minimize

    result = minimize(
        lambda x: -objective(x),
        start,
        method="Nelder-Mead",
        bounds=[(0.0, upper)] * len(start),
        options={
            "initial_simplex": simplex(start, upper),
            "maxfev": budget,
            "maxiter": budget,
            "xatol": 1e-3 * upper,
            "fatol": 1e-12,
            "adaptive": True,
        },
    )
    return np.asarray(result.x, dtype=np.float64), -float(result.fun)


def _prune(objective: Objective, weights: FloatArray) -> FloatArray:
    """Return `weights` without the retrievers that `search` drops, but with at least one."""
    if not objective.varying:
        return weights  # no question tells one retriever from another
    retriever = weights[: objective.retrievers]
    weights = weights.copy()
    weights[: objective.retrievers] = np.where(objective.rules.selected(retriever), retriever, 0.0)
    value, outcomes = objective(weights), objective.outcomes(weights)
    for m in np.argsort(weights[: objective.retrievers], kind="stable"):
        if weights[m] == 0.0 or np.count_nonzero(weights[: objective.retrievers]) == 1:
            continue
        without = weights.copy()
        without[m] = 0.0
        value_without, outcomes_without = objective(without), objective.outcomes(without)
        unharmed = value_without == value and not (outcomes_without < outcomes).any()
        if unharmed or value_without > value:
            weights, value, outcomes = without, value_without, outcomes_without
    return weights
