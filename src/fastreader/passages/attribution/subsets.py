"""Which subsets of the passages are read, and what their values say about each passage. No reader is needed here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, stdtrit

_TWO_ERRORS = float(ndtr(2.0))  # the share of a normal distribution below two standard errors
FloatArray = npt.NDArray[np.float64]
Subset = tuple[int, ...]
"""Ascending indices of passages."""
Values = Mapping[Subset, float]
"""Of subsets, in nats."""


@dataclass(frozen=True)
class SubsetPlan:
    """The subsets of N passages that are read.

    Attributes:
        exact: whether all are.
        pairs: whether all of two passages are.
        read: each once.
        drawn: those that the surrogate is fitted to, all of them or random ones.
        orders: for sampled Shapley values; empty if all subsets are read.
    """

    exact: bool
    pairs: bool
    read: list[Subset]
    drawn: list[Subset]
    orders: list[list[int]]


def exact_plan(count: int) -> SubsetPlan:
    """Return the plan that reads all 2^N subsets."""
    every = every_subset(count)
    return SubsetPlan(True, True, every, every, [])


def sampled_plan(count: int, orders: int, subsets: int, pairs: bool, rng: np.random.Generator) -> SubsetPlan:
    """Return the plan of `orders` pairs of random orders and of `subsets` random subsets."""
    sampled, drawn = random_orders(count, orders, rng), random_subsets(count, subsets, rng)
    begun = [subset for order in sampled for subset in beginnings(order)]
    read = list(dict.fromkeys([*basic_subsets(count, pairs), *begun, *drawn]))
    return SubsetPlan(False, pairs, read, drawn, sampled)


def every_subset(count: int) -> list[Subset]:
    """Return all 2^N subsets of N passages, by size."""
    return [subset for size in range(count + 1) for subset in combinations(range(count), size)]


def basic_subsets(count: int, pairs: bool) -> list[Subset]:
    """Return no passage, each alone, each two if `pairs`, all but each, and all."""
    whole = tuple(range(count))
    found = [(), *((i,) for i in whole), *(combinations(whole, 2) if pairs else ())]
    return [*found, *(without(whole, i) for i in whole), whole]


def without(subset: Sequence[int], passage: int) -> Subset:
    """Return a subset less one passage."""
    return tuple(i for i in subset if i != passage)


def random_orders(count: int, samples: int, rng: np.random.Generator) -> list[list[int]]:
    """Return `samples` orders of N passages, each followed by its reverse, whose errors partly cancel."""
    found: list[list[int]] = []
    for _ in range(samples):
        order = rng.permutation(count).tolist()
        found += [order, order[::-1]]
    return found


def beginnings(order: Sequence[int]) -> list[Subset]:
    """Return the sets of the first 0 to N passages of an order."""
    return [tuple(sorted(order[:size])) for size in range(len(order) + 1)]


def random_subsets(count: int, samples: int, rng: np.random.Generator) -> list[Subset]:
    """Return `samples` draws in which each passage is read with probability 1/2, as ContextCite draws them."""
    drawn = rng.random((samples, count)) < 0.5
    return [tuple(np.flatnonzero(row).tolist()) for row in drawn]


def shapley(count: int, values: Values) -> FloatArray:
    """Return the Shapley value of each of N passages from the values of all subsets.

    phi_i = sum over subsets S without i of ``|S|! (N - |S| - 1)! / N! (v(S + i) - v(S))`` (Shapley 1953).

    Returns:
        float64 [N], whose sum is ``v(all) - v(none)``.
    """
    weights = [math.factorial(s) * math.factorial(count - s - 1) / math.factorial(count) for s in range(count)]
    found = np.zeros(count)
    for subset, value in values.items():
        inside = set(subset)
        for i in range(count):
            found[i] += weights[len(subset) - 1] * value if i in inside else -weights[len(subset)] * value
    return found


def sampled_shapley(orders: Sequence[Sequence[int]], values: Values) -> tuple[FloatArray, FloatArray]:
    """Return estimates of the Shapley values and their standard errors, from orders in pairs of `random_orders`.

    In each order a passage contributes what it adds to the value of those before it.

    Returns:
        float64 [N] each; the errors are of the mean over pairs, NaN for one pair. Errors of few pairs are widened by
        Student's distribution, so that two of them hold as often as two of a normal distribution.
    """
    added = np.zeros((len(orders), len(orders[0])))
    for row, order in zip(added, orders, strict=True):
        row[list(order)] = np.diff([values[subset] for subset in beginnings(order)])
    means = added.reshape(len(orders) // 2, 2, -1).mean(axis=1)
    if len(means) < 2:
        return means[0], np.full(means.shape[1], np.nan)
    wider = stdtrit(len(means) - 1, _TWO_ERRORS) / 2
    return means.mean(axis=0), wider * means.std(axis=0, ddof=1) / math.sqrt(len(means))


def synergies(count: int, values: Values) -> FloatArray:
    """Return what two passages add together beyond what each adds alone: ``v(ij) - v(i) - v(j) + v(none)``.

    Returns:
        float64 [N, N], symmetric, with zeros on the diagonal.
    """
    found = np.zeros((count, count))
    for i, j in combinations(range(count), 2):
        found[i, j] = found[j, i] = values[i, j] - values[i,] - values[j,] + values[()]
    return found


def masks(count: int, subsets: Iterable[Subset]) -> npt.NDArray[np.bool_]:
    """Return which of N passages each of M subsets holds: bool [M, N]."""
    rows = list(subsets)
    found = np.zeros((len(rows), count), dtype=np.bool_)
    for row, subset in zip(found, rows, strict=True):
        row[list(subset)] = True
    return found
