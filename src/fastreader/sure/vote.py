"""Compute SuRe's vote (Eq. 4 to 6), for which no reader is needed."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Matrix = list[list[float | None]]


@dataclass(frozen=True)
class Choice:
    """The label chosen after one prompt.

    Attributes:
        label: 0 or 1; None if both are equally likely, or the reply names neither.
        probability: share of label 0 against label 1; None if the reply was parsed.
    """

    label: int | None
    probability: float | None


def choice_of(first: float, second: float) -> Choice:
    """Return the likelier of two labels from their log-likelihoods in nats, or none if they are equal."""
    difference = second - first
    probability = 1 / (1 + math.exp(difference)) if difference < 700 else 0.0
    return Choice(None if first == second else int(second > first), probability)


def validity_value(choice: Choice) -> float:
    """Return v of Eq. 4: 1 for "True", 0 for anything else."""
    return float(choice.label == 0)


def pair_value(first: int | None, second: int | None) -> float:
    """Return r_pair of Eq. 5 for summaries i and j: 1 if i is preferred in both orders, 0 if j is, else 0.5.

    Args:
        first: label chosen when i comes first; 0 prefers i.
        second: label chosen when j comes first; 1 prefers i.
    """
    return {(0, 1): 1.0, (1, 0): 0.0}.get((first, second), 0.5)  # type: ignore[arg-type]


def comparisons(ordered: Mapping[tuple[int, int], Choice], count: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return three [K, K] matrices of the choices for ordered pairs (i, j), None on the diagonal and without a choice.

    Returns:
        `pair_value`, whose entries [i][j] and [j][i] sum to 1; the probability of label 0; and 1.0 for label 0, 0.0 for
        label 1, None for neither.
    """
    pairwise, preference, replied = np.full((3, count, count), None).tolist()
    for (i, j), choice in ordered.items():
        pairwise[i][j] = pair_value(choice.label, ordered[j, i].label)
        preference[i][j] = choice.probability
        replied[i][j] = None if choice.label is None else 1.0 - choice.label
    return pairwise, preference, replied


def ranking_scores(pairwise: Matrix) -> list[float]:
    """Return r of Eq. 5: the sum of each row."""
    return [sum(filter(None, row), 0.0) for row in pairwise]


def vote(validity: Sequence[float] | None, ranking: Sequence[float] | None, count: int) -> list[float]:
    """Return v + r for each of `count` candidates (Eq. 6); None counts as 0.

    >>> vote([1.0, 0.0], [0.5, 0.5], 2)
    [1.5, 0.5]
    """
    zeros = [0.0] * count
    return list(map(operator.add, validity or zeros, ranking or zeros))


def winner(scores: Sequence[float]) -> int:
    """Return the index of the largest score, the earliest of equal ones."""
    return scores.index(max(scores))
