"""Search for the weights of a voter (section 4.2): Nelder-Mead over (w^r, w^s) within bounds, from several starts."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from fastreader.core.checks import random_generator
from fastreader.data.record import Record
from fastreader.eor.objective import Objective
from fastreader.eor.types import FloatArray


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
