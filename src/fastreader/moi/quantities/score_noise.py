"""Noise as scores show it: a scale for each question, and a part shared by orderings that start alike.

With r(k) the correlation of the noises of two orderings that share their first k places, and a scale g of the question,

    e ~ N(0, g sigma^2 R),   R[i, j] = r(shared places of i and j),   1 / g ~ Gamma(nu / 2, nu / 2).          (3)

The scale multiplies the spread of the utilities too, so that a question's scores follow a multivariate t distribution
with nu degrees of freedom. Only differences of scores count, so r(0) = 0 is a convention.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastreader.moi.quantities.observations import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Noise:
    """The noise of (3).

    Attributes:
        df: nu, the degrees of freedom of a question's scale; inf for one scale of all questions.
        shared: float64 [L], r(k) for k = 0 to L - 1 shared places; None for independent noise.
    """

    df: float = float("inf")
    shared: FloatArray | None = None

    @property
    def plain(self) -> bool:
        """Whether the noise is Gaussian, of one scale, and independent."""
        return not np.isfinite(self.df) and self.shared is None


def correlations(share: float, decay: float, length: int) -> FloatArray:
    """Return r(k) = share (1 - decay^k), float64 [L], to which each further shared place adds less."""
    return np.asarray(share * (1 - decay ** np.arange(length)), dtype=np.float64)


def shared_places(permutations: IntArray) -> IntArray:
    """Return the number of first places that two orderings share: int64 [..., M, M] from [..., M, L].

    >>> shared_places(np.array([[0, 1, 2], [0, 2, 1], [2, 1, 0]])).tolist()
    [[3, 1, 0], [1, 3, 0], [0, 0, 3]]
    """
    same = permutations[..., :, None, :] == permutations[..., None, :, :]
    return np.asarray(np.logical_and.accumulate(same, axis=-1).sum(axis=-1), dtype=np.int64)


def covariance(permutations: IntArray, shared: FloatArray | None) -> FloatArray:
    """Return R of (3), float64 [..., M, M] from orderings [..., M, L], the identity if `shared` is None."""
    rows, length = permutations.shape[-2:]
    identity = np.broadcast_to(np.eye(rows), (*permutations.shape[:-2], rows, rows))
    if shared is None:
        return identity
    found = np.append(shared, 1.0)[np.minimum(shared_places(permutations), length)]
    return np.where(identity > 0, 1.0, found)


def whitener(noise: FloatArray, rows: np.ndarray) -> FloatArray:
    """Return W, float64 [..., M, M]: W e has independent entries of variance 1, less what a constant explains.

    Args:
        noise: R, float64 [..., M, M].
        rows: bool [..., M]; the others get zeros.
    """
    both = rows[..., :, None] & rows[..., None, :]
    root = np.linalg.cholesky(np.where(both, noise, np.eye(rows.shape[-1])))
    inverse = np.linalg.inv(root) * both
    constant = inverse.sum(axis=-1, keepdims=True)  # of ones, whitened
    length = np.maximum((constant**2).sum(axis=-2, keepdims=True), 1e-300)
    return np.asarray(inverse - constant @ (np.swapaxes(constant, -1, -2) @ inverse) / length, dtype=np.float64)


def log_determinant(noise: FloatArray, rows: np.ndarray) -> FloatArray:
    """Return log det of R on the contrasts of the rows, up to a constant: float64 [...]."""
    both = rows[..., :, None] & rows[..., None, :]
    masked = np.where(both, noise, np.eye(rows.shape[-1]))
    ones = rows.astype(np.float64)[..., None]
    total = (ones * np.linalg.solve(masked, ones)).sum(axis=(-1, -2))
    return np.asarray(np.linalg.slogdet(masked)[1] + np.log(total), dtype=np.float64)
