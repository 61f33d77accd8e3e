"""The marginal likelihood of a position bias over many questions, with its gradient.

Model of question q, ordering i, after subtracting the question's mean score (Equation numbers are ours):

    y_i = sum_j d[j] v[pi_i[j]] + e_i,   v ~ N(beta z, tau^2 I),   e_i ~ N(0, sigma^2)                      (1)

The utilities v are integrated out. Scale is fixed by v / tau, so that theta = tau d is free and b = beta / tau:

    y ~ N(b X z, S),   S = X X^T + s I,   X[i, p] = theta[place of p in pi_i],   s = sigma^2                (2)

on the M - 1 contrasts of a question's M scores. Without log det S the fit would inflate theta. `noise` replaces the
Gaussian by a multivariate t and s I by s R. Scores and X are then multiplied by `Pooled.whitener`, so that (2) holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import helmert
from scipy.special import gammaln

from fastreader.core.lazy import cached_property
from fastreader.moi.quantities.observations import FloatArray, IntArray, Observations
from fastreader.moi.quantities.score_noise import Noise, covariance, whitener

_LARGEST = 30.0  # theta and b in units of the scores' and query likelihoods' spread


@dataclass(frozen=True, eq=False)
class Pooled:
    """Q questions as padded arrays, with absent and left-out rows masked.

    Attributes:
        scores: float64 [Q, M], nats, masked rows 0.
        place: int64 [Q, M, N], the place of passage p in ordering i; L if it is not read, and in masked rows.
        rows: bool [Q, M].
        z: float64 [Q, N - 1], contrasts of the query likelihoods; zeros without query likelihoods.
        length: L.
        query: whether there are query likelihoods.
        noise: of the scores.
        whitener: float64 [Q, M, M], see `score_noise.whitener`; None for independent noise.
    """

    scores: FloatArray
    place: IntArray
    rows: npt.NDArray[np.bool_]
    z: FloatArray
    length: int
    query: bool
    noise: Noise = field(default_factory=Noise)
    whitener: FloatArray | None = None

    @property
    def passages(self) -> int:
        """N."""
        return int(self.place.shape[2])

    @cached_property
    def basis(self) -> FloatArray:
        """Basis of the biases that orderings can show, float64 [L, k]: sum zero for whole orderings, else all."""
        return contrasts(self.passages) if self.length == self.passages else np.eye(self.length)

    @cached_property
    def counts(self) -> IntArray:
        """Number of rows of each question: int64 [Q]."""
        return np.asarray(self.rows.sum(axis=1), dtype=np.int64)

    @cached_property
    def means(self) -> FloatArray:
        """Mean score of each question: float64 [Q]."""
        return np.asarray(self.scores.sum(axis=1) / np.maximum(self.counts, 1), dtype=np.float64)

    @cached_property
    def centred(self) -> FloatArray:
        """Scores less their question's mean: float64 [Q, M], masked rows 0."""
        return (self.scores - self.means[:, None]) * self.rows

    @cached_property
    def whitened(self) -> FloatArray:
        """Scores as the likelihood takes them, centred and whitened: float64 [Q, M], masked rows 0."""
        return self.centred if self.whitener is None else (self.whitener @ self.centred[:, :, None])[:, :, 0]

    @cached_property
    def permutations(self) -> IntArray:
        """Orderings: int64 [Q, M, L], none in masked rows."""
        order = np.argsort(self.place, axis=2, kind="stable")
        return np.asarray(order[:, :, : self.length], dtype=np.int64)

    def with_noise(self, noise: Noise) -> Pooled:
        """Return the same scores with another noise."""
        shared = noise.shared
        white = None if shared is None else whitener(covariance(self.permutations, shared), self.rows)
        return replace(self, noise=noise, whitener=white)

    def keep(self, rows: npt.NDArray[np.bool_]) -> Pooled:
        """Return the same questions with only these rows, bool [Q, M]."""
        rows = rows & self.rows
        place = np.where(rows[:, :, None], self.place, self.length)
        kept = replace(self, scores=self.scores * rows, place=place, rows=rows, whitener=None)
        if self.whitener is None:
            return kept
        # Masked rows hold no ordering any more, so R comes from the rows as they were.
        return replace(kept, whitener=whitener(covariance(self.permutations, self.noise.shared), rows))

    def take(self, questions: IntArray) -> Pooled:
        """Return only these questions."""
        arrays = {name: getattr(self, name)[questions] for name in ("scores", "place", "rows", "z")}
        white = None if self.whitener is None else self.whitener[questions]
        return replace(self, **arrays, whitener=white)


def places_of(permutations: IntArray, passages: int) -> IntArray:
    """Return the place of each passage: int64 [M, N], L for a passage that is not read."""
    rows, length = permutations.shape
    place = np.full((rows, passages), length, dtype=np.int64)
    np.put_along_axis(place, permutations, np.broadcast_to(np.arange(length), (rows, length)), axis=1)
    return place


@lru_cache(maxsize=64)
def contrasts(passages: int) -> FloatArray:
    """Return an orthonormal basis of the vectors that sum to zero: float64 [N, N - 1], read-only."""
    basis: FloatArray = np.ascontiguousarray(helmert(passages).T)
    basis.setflags(write=False)
    return basis


def pool(observations: Sequence[Observations]) -> Pooled:
    """Stack questions of one N and L."""
    first = observations[0]
    most, n, length = max(len(o) for o in observations), first.passages, first.length
    scores = np.zeros((len(observations), most))
    rows = np.zeros((len(observations), most), dtype=bool)
    place = np.full((len(observations), most, n), length, dtype=np.int64)
    z = np.zeros((len(observations), n - 1))
    basis = contrasts(n)
    for q, o in enumerate(observations):
        scores[q, : len(o)] = o.values
        rows[q, : len(o)] = True
        place[q, : len(o)] = places_of(o.permutations, n)
        if o.qg is not None:
            z[q] = o.qg @ basis
    return Pooled(scores, place, rows, z, length, all(o.qg is not None for o in observations))


def design(theta: FloatArray, data: Pooled) -> FloatArray:
    """Return X of (2), rows centred within each question, in contrasts of the passages: float64 [Q, M, N - 1]."""
    raw = np.append(theta, 0.0)[data.place] * data.rows[:, :, None]
    if data.whitener is not None:
        return np.asarray(data.whitener @ (raw @ contrasts(data.passages)), dtype=np.float64)
    mean = raw.sum(axis=1, keepdims=True) / np.maximum(data.counts, 1)[:, None, None]
    return np.asarray(((raw - mean) * data.rows[:, :, None]) @ contrasts(data.passages), dtype=np.float64)


def negative_log_likelihood(parameters: FloatArray, data: Pooled, weights: FloatArray) -> tuple[float, FloatArray]:
    """Return minus the log-likelihood of (2), less its constant, and its gradient.

    With K = X^T X + s I, w = K^-1 X^T (y - b X z) (the posterior mean of v - b z) and alpha = (y - b X z - X w) / s:

        log det S on the contrasts = (M - N) log s + log det K;  the quadratic form is s alpha . alpha + w . w;
        d/dX = X K^-1 - alpha (w + b z)^T,  d/db = -z . w,  d/ds = ((M - N) / s + tr K^-1 - alpha . alpha) / 2.

    For a t distribution the quadratic form F becomes (nu + M - 1) log(1 + F / nu), whose slope in F multiplies the
    terms that come from F: a noisy question weighs less.

    Args:
        parameters: [k + 2]: theta in `Pooled.basis`, b, log s.
        data: the questions.
        weights: float64 [Q], the multiplicity of each question.
    """
    b, s = float(parameters[-2]), float(np.exp(parameters[-1]))
    x = design(data.basis @ parameters[:-2], data)
    post = posterior(x, data, b, s)
    spare = data.counts - data.passages
    _, logdet = np.linalg.slogdet(post.precision)
    # alpha . (y - b X z) is equal up to rounding, which can make it negative and the likelihood unbounded; this is the
    # ridge objective, which no error in w can decrease.
    form, weight = _tails(s * (post.alpha**2).sum(axis=1) + (post.deviation**2).sum(axis=1), data)
    each = 0.5 * (spare * np.log(s) + logdet + form)
    value = float(weights @ each)

    alpha = weight[:, None] * post.alpha
    slope = x @ post.inverse - alpha[:, :, None] * post.mean[:, None, :]  # [Q, M, N-1]
    if data.whitener is not None:
        slope = data.whitener.transpose(0, 2, 1) @ slope
    slope = (slope * weights[:, None, None]) @ contrasts(data.passages).T
    by_place = np.bincount(data.place.ravel(), weights=slope.ravel(), minlength=data.length + 1)[: data.length]
    by_s = 0.5 * (spare / s + np.trace(post.inverse, axis1=1, axis2=2) - (alpha * post.alpha).sum(axis=1))
    by_b = -weight * (data.z * post.deviation).sum(axis=1)
    return value, np.concatenate([data.basis.T @ by_place, [weights @ by_b, s * float(weights @ by_s)]])


def _tails(form: FloatArray, data: Pooled) -> tuple[FloatArray, FloatArray]:
    """Return what a quadratic form F adds to twice minus the log-likelihood, and its slope in F: float64 [Q] each."""
    nu, contrasts_of = data.noise.df, data.counts - 1
    if not np.isfinite(nu):
        return form, np.ones(len(form))
    scale = gammaln((nu + contrasts_of) / 2) - gammaln(nu / 2) - contrasts_of / 2 * np.log(nu / 2)
    return (nu + contrasts_of) * np.log1p(form / nu) - 2 * scale, (nu + contrasts_of) / (nu + form)


@dataclass(frozen=True, eq=False)
class Posterior:
    """Utilities of each question given theta, b and s, in contrasts of the passages and in units of tau.

    Attributes:
        mean: float64 [Q, N - 1]: b z + w.
        deviation: float64 [Q, N - 1]: w.
        precision: float64 [Q, N - 1, N - 1]: K; the posterior covariance is s K^-1.
        inverse: K^-1.
        alpha: float64 [Q, M]: S^-1 (y - b X z).
    """

    mean: FloatArray
    deviation: FloatArray
    precision: FloatArray
    inverse: FloatArray
    alpha: FloatArray


def posterior(x: FloatArray, data: Pooled, b: float, s: float) -> Posterior:
    """Solve the ridge problem of each question: w = (X^T X + s I)^-1 X^T (y - b X z)."""
    precision = x.transpose(0, 2, 1) @ x
    index = np.arange(precision.shape[1])
    precision[:, index, index] += s
    inverse = np.asarray(np.linalg.inv(precision), dtype=np.float64)
    error = data.whitened - b * (x @ data.z[:, :, None])[:, :, 0]
    deviation: FloatArray = (inverse @ (x.transpose(0, 2, 1) @ error[:, :, None]))[:, :, 0]
    alpha = (error - (x @ deviation[:, :, None])[:, :, 0]) / s
    return Posterior(b * data.z + deviation, deviation, precision, inverse, alpha)


def fit(
    start: FloatArray,
    data: Pooled,
    weights: FloatArray | None = None,
    floor: float = 1e-4,
    tolerance: float = 1e-11,
    iterations: int = 500,
) -> tuple[FloatArray, float]:
    """Minimise `negative_log_likelihood` from one start, by L-BFGS-B with the analytic gradient.

    Args:
        start: [k + 2], as the parameters of `negative_log_likelihood`.
        data: the questions, of unit spread; without query likelihoods b stays 0.
        weights: float64 [Q], the multiplicity of each question; 1 by default.
        floor: lower bound of s.
        tolerance, iterations: limits of the optimiser.

    Returns:
        (parameters, minimum)
    """
    from scipy.optimize import minimize

    slope = (-_LARGEST, _LARGEST) if data.query else (0.0, 0.0)
    weights = np.ones(len(data.rows)) if weights is None else weights

    found: Any = minimize(
        negative_log_likelihood,
        start,
        args=(data, weights),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-_LARGEST, _LARGEST)] * data.basis.shape[1] + [slope, (np.log(floor), np.log(1e2))],
        options={"maxiter": iterations, "ftol": tolerance, "gtol": max(1e-7, 1e2 * tolerance), "maxcor": 20},
    )
    return np.asarray(found.x, dtype=np.float64), float(found.fun)
