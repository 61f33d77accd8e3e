"""Learning the weights of a voter (section 4.2): Nelder-Mead over (w^r, w^s) within bounds, from several starts."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.eor import scoring
from fastreader.eor.ballots import Ballots
from fastreader.eor.pooling import ROUNDING, majority_of, plurality_of
from fastreader.eor.scoring import Rules

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_REMEMBERED = 64  # selections whose supports are kept; a search dwells on few at a time


@dataclass(frozen=True)
class FitReport:
    """How a fit went.

    Attributes:
        objective: mean correctness of the answers selected with the weights found, on the training questions.
        unweighted: the same with equal weights.
        starts: the objective each start ended at; their spread tells how rough the search was.
        evaluations: of the objective, in all.
        questions: Q.
        varying: questions whose answers differ in correctness; the others decide nothing.
        seconds: wall clock.
    """

    objective: float
    unweighted: float
    starts: list[float]
    evaluations: int
    questions: int
    varying: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """All attributes by name."""
        return asdict(self)


class Objective:
    """Mean correctness of the selected answers as a function of the weights.

    Questions whose answers are all equally right are set apart, equal questions counted together, and with mean
    pooling the supports of a selection of retrievers are computed once: the mean is linear in the similarities, so that
    a call costs a product [S] by [S, M Q]. It is exactly the mean over all questions all the same.
    """

    def __init__(self, ballots: Ballots, correct: FloatArray, rules: Rules) -> None:
        """Prepare.

        Args:
            ballots: of Q questions and M retrievers.
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
        # All candidates of a settled question are worth the same, as long as one of them is selected.
        settled = np.flatnonzero((low == high) & (high != 0))
        self._settled, place = np.unique(candidates[settled], axis=0, return_inverse=True)
        self._settled_value = np.bincount(place.ravel(), weights=high[settled], minlength=len(self._settled))

        keep, counts = _different(ballots, correct, varying)
        # From here on retrievers come first and questions last, so that each step is one sweep over the questions.
        similarity = ballots.similarity[keep]
        self._kinds = len(keep)
        if rules.pooling == "mean":
            self._rows = similarity.transpose(1, 2, 0, 3).reshape(-1, self.retrievers)  # [S M Q, M voters]
        else:
            self._cells = similarity.transpose(3, 1, 2, 0).reshape(self.retrievers, self.similarities, -1)
        self._present, self._candidates = ballots.present[keep].T.copy(), candidates[keep].T.copy()
        self._barred = np.where(self._candidates, 0.0, -np.inf)
        self._gain = (correct[keep] * counts[:, None]).T.copy()
        self._supports: dict[bytes, FloatArray] = {}

    def __call__(self, weights: FloatArray) -> float:
        """The objective at ``weights = (w^r [M], w^s [S])``."""
        self.evaluations += 1
        return float(self.outcomes(weights).sum() + self._settled_sum(weights)) / self.questions

    def outcomes(self, weights: FloatArray) -> FloatArray:
        """What each kind of question that is not settled adds: its correctness times how often it occurs."""
        retriever, similarity = self.split(weights)
        selected = self.rules.selected(retriever)
        pooled = self._pooled(scoring.shares(similarity), selected)
        order = np.flatnonzero(selected)
        if self.rules.ties == "weight":
            order = order[np.argsort(-retriever[order], kind="stable")]
        if not len(order):
            return np.zeros(self._kinds)
        # As `scoring.scores` and `scoring.winners`, in few sweeps: rounded at the same place, the first largest wins.
        score = pooled[order] * (retriever[order, None] * 10.0**scoring.DECIMALS)
        np.rint(score, out=score)
        score += self._barred[order]
        won = score.argmax(axis=0)
        every = np.arange(self._kinds)
        won_by = order[won]
        return np.where(self._candidates[won_by, every], self._gain[won_by, every], 0.0)

    def split(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(w^r, w^s)."""
        return weights[: self.retrievers], weights[self.retrievers :]

    def _settled_sum(self, weights: FloatArray) -> float:
        selected = self.rules.selected(weights[: self.retrievers])
        return float(self._settled_value[(self._settled & selected).any(axis=1)].sum())

    def _pooled(self, share: FloatArray, selected: BoolArray) -> FloatArray:
        """Pooled similarities float64 [M, Q]."""
        heard = np.ones(self.retrievers, dtype=bool) if self.rules.dropped_vote else selected
        if self.rules.pooling != "mean":
            return self._nonlinear(share, heard, selected)
        key = heard.tobytes()
        if key not in self._supports:
            if len(self._supports) >= _REMEMBERED:
                self._supports.pop(next(iter(self._supports)))
            # Who is absent is similar to nobody, and nobody to themselves, so that a product sums over the voters.
            total = (self._rows @ heard.astype(np.float64)).reshape(self.similarities, self.retrievers, -1)
            self._supports[key] = (total / np.maximum(self._count(heard), 1)).reshape(self.similarities, -1)
        return (share @ self._supports[key]).reshape(self.retrievers, -1)

    def _count(self, heard: BoolArray) -> npt.NDArray[np.int64]:
        """N, voters beside each answer itself, [M, Q]."""
        voters = self._present & heard[:, None]
        count: npt.NDArray[np.int64] = voters.sum(axis=0) - voters
        return count

    def _nonlinear(self, share: FloatArray, heard: BoolArray, selected: BoolArray) -> FloatArray:
        """The other poolings, voter by voter: a voter's similarities to all answers lie together."""
        columns = (share @ self._cells[n] for n in np.flatnonzero(heard))
        shape = (self.retrievers, self._kinds)
        if self.rules.pooling == "max":
            best = np.zeros(self.retrievers * self._kinds)
            for column in columns:
                np.maximum(best, column, out=best)
            return best.reshape(shape)
        agree = np.zeros(self.retrievers * self._kinds, dtype=np.int64)
        for column in columns:
            agree += column > self.rules.similarity_threshold + ROUNDING
        if self.rules.pooling == "majority":
            return majority_of(agree.reshape(shape), self._count(heard))
        candidates = self._candidates & selected[:, None]
        return plurality_of(agree.reshape(shape).T, self._count(heard).T, candidates.T).T


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
    """The best weights of all starts, and the report.

    The first start has all weights at the bound, which is unweighted voting, so that the fit is never below it on
    the training questions; the second has w^r in proportion to the retrievers' accuracy; the others are drawn
    uniformly. A start's simplex toggles one weight at a time, inside the bounds.

    Args:
        objective: to maximise.
        upper: bound of every weight; the lower one is 0.
        starts: how many, at least 1.
        accuracy: float64 [M], of each retriever.
        max_evaluations: for each start; None: 200 a weight.
        prune: afterwards set weights of retrievers to 0 where that turns no right answer wrong, smallest first, or
            raises the objective.
        seed: of the starts that are drawn.
    """
    began = time.perf_counter()
    size = objective.retrievers + objective.similarities
    generator = np.random.default_rng(seed)
    even = np.full(size, upper)
    best, reached = even, objective(even)
    unweighted, values = reached, []
    for i in range(starts):
        start = even
        if i == 1 and accuracy.max(initial=0.0) > 0:
            start = np.concatenate([upper * accuracy / accuracy.max(), np.full(objective.similarities, upper)])
        elif i:
            start = generator.uniform(0.0, upper, size)
        found, value = _nelder_mead(objective, start, upper, max_evaluations or 200 * size)
        values.append(value)
        if value > reached:
            best, reached = found, value
    if prune:
        best = _prune(objective, best)
        reached = objective(best)
    report = FitReport(
        objective=reached,
        unweighted=unweighted,
        starts=values,
        evaluations=objective.evaluations,
        questions=objective.questions,
        varying=objective.varying,
        seconds=time.perf_counter() - began,
    )
    return best, report


def simplex(start: FloatArray, upper: float) -> FloatArray:
    """float64 [n + 1, n]: `start`, and for each weight `start` with it at the bound that is farther away."""
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
    """`weights` without the retrievers that `search` says to drop; one is left always."""
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


def _different(ballots: Ballots, correct: FloatArray, among: npt.NDArray[np.intp]) -> tuple[list[int], FloatArray]:
    """Places of the questions in `among` that differ from each other in anything, and how often each occurs."""
    counts: dict[bytes, list[int]] = {}
    for q in among.tolist():
        parts = (ballots.similarity[q], ballots.present[q], ballots.candidates[q], correct[q])
        counts.setdefault(b"".join(part.tobytes() for part in parts), []).append(q)
    groups = list(counts.values())
    return [group[0] for group in groups], np.array([len(group) for group in groups], dtype=np.float64)
