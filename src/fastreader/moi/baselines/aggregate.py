"""One ranking from many: Borda's points and Kemeny's optimum, partial rankings included."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastreader.core.checks import expect
from fastreader.errors import FastreaderError
from fastreader.moi.quantities.observations import FloatArray


def preferences(rankings: Sequence[Sequence[int]], n: int) -> FloatArray:
    """Return the number of rankings that put row before column: float64 [n, n].

    A ranking may leave items out: the items it names precede those it leaves out, and two items that it leaves out
    are not compared.
    """
    votes = np.zeros((n, n))
    for ranking in rankings:
        distinct = len(set(ranking)) == len(ranking) and all(0 <= i < n for i in ranking)
        expect(distinct, "rankings", f"distinct items in [0, {n})", list(ranking))
        place = np.full(n, n)
        place[list(ranking)] = np.arange(len(ranking))
        votes += place[:, None] < place[None, :]
    return votes


def borda(rankings: Sequence[Sequence[int]], n: int) -> FloatArray:
    """Return the mean number of items ranked behind each item, float64 [n], an unordered pair counting half."""
    votes = preferences(rankings, n)
    ties = len(rankings) - votes - votes.T
    np.fill_diagonal(ties, 0.0)
    points: FloatArray = (votes + 0.5 * ties).sum(axis=1) / max(len(rankings), 1)
    return points


def kemeny(rankings: Sequence[Sequence[int]], n: int) -> list[int]:
    """Return the exact order with the fewest pairwise disagreements with the rankings (Kemeny 1959).

    Solved as an integer programme (SciPy's HiGHS) over x_ij = "i before j" without cycles of three. Among optimal
    orders the one nearest to 0, 1, ..., n-1 is taken.
    """
    from scipy.optimize import LinearConstraint, milp
    from scipy.sparse import coo_array

    if n < 2:
        return list(range(n))
    votes = preferences(rankings, n)
    rows, columns = np.triu_indices(n, 1)
    count = len(rows)
    # Putting i (< j) first costs the votes for j. Votes are whole numbers, so less than one in all for ties is safe.
    cost = (votes.T - votes)[rows, columns] - 0.5 / count
    index = np.full((n, n), -1)
    index[rows, columns] = np.arange(count)
    all_triples = [(i, j, k) for i in range(n) for j in range(i + 1, n) for k in range(j + 1, n)]
    triples = np.array(all_triples, dtype=np.int64).reshape(-1, 3)
    i, j, k = triples.T
    entries = np.concatenate([index[i, j], index[j, k], index[i, k]])
    signs = np.repeat([1.0, 1.0, -1.0], len(triples))
    matrix = coo_array((signs, (np.tile(np.arange(len(triples)), 3), entries)), shape=(len(triples), count))
    constraints = [LinearConstraint(matrix.tocsr(), 0, 1)] if len(triples) else []
    solved = milp(cost, integrality=np.ones(count), bounds=(0, 1), constraints=constraints)
    if not solved.success:
        raise FastreaderError(f"kemeny: the solver found no optimum: {solved.message}")
    before = np.zeros((n, n))
    before[rows, columns] = np.round(solved.x)
    before[columns, rows] = 1 - before[rows, columns]
    return [int(i) for i in np.argsort(-before.sum(axis=1), kind="stable")]
