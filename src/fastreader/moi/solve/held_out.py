"""Predict the scores of orderings left out of the fit, and test whether they show the bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastreader.moi.quantities.observations import FloatArray
from fastreader.moi.quantities.score_noise import covariance
from fastreader.moi.solve.likelihood import Pooled, contrasts, fit

_CHANCE = 1e-3  # held-out orderings must beat no bias at this one-sided level


@dataclass(frozen=True)
class HeldOut:
    """The fit of orderings that were left out.

    Attributes:
        r2: share of their variance explained, against no bias.
        beyond_chance: whether `r2` is above 0 beyond chance, with questions as the unit.
        inflation: mean squared error over the variance that the model expects; at least 1.
    """

    r2: float
    beyond_chance: bool
    inflation: float


def held_out(best: FloatArray, data: Pooled, folds: int, rng: np.random.Generator) -> HeldOut:
    """Fit without a fold of every question's orderings and predict that fold, for each fold."""
    fold = np.full(data.rows.shape, -1)
    for q, count in enumerate(data.counts.tolist()):
        fold[q, :count] = rng.permutation(count) % min(folds, count)
    gained, spread = np.zeros(len(data.rows)), np.zeros(len(data.rows))
    surprise = rows = 0.0
    for number in range(int(fold.max()) + 1):
        out = fold == number
        kept = data.keep(~out)
        parameters, _ = fit(best, kept, tolerance=1e-8)
        found = predict(parameters, data, ~out)
        error = (data.scores - kept.means[:, None]) * out
        left = (data.scores - found.mean) * out
        expected = found.variance
        gained += (error**2).sum(axis=1) - (left**2).sum(axis=1)
        spread += (error**2).sum(axis=1)
        surprise += float((left[out] ** 2 / expected[out]).sum())
        rows += float(out.sum())
    r2 = float(gained.sum() / spread.sum())
    return HeldOut(r2, r2 > 0 and _beyond_chance(gained), max(1.0, surprise / rows))


def _beyond_chance(gained: FloatArray) -> bool:
    """Return whether the questions gain: by Student's t, or by Wilcoxon's ranks, which a few outliers do not upset.

    Args:
        gained: float64 [Q], squared error that the bias removes from each question's held-out scores.
    """
    from scipy.special import stdtrit
    from scipy.stats import wilcoxon

    deviation = float(gained.std(ddof=1)) / np.sqrt(len(gained))
    if float(gained.mean()) > float(stdtrit(len(gained) - 1, 1 - _CHANCE)) * deviation:
        return True
    return bool(np.any(gained != 0) and wilcoxon(gained, alternative="greater").pvalue < _CHANCE)


@dataclass(frozen=True, eq=False)
class Predicted:
    """A Student's t for each ordering that was left out.

    Attributes:
        mean: float64 [Q, M], in the unit of the scores; 0 in other rows.
        scale: float64 [Q, M].
        df: float64 [Q], degrees of freedom; inf under Gaussian noise.
    """

    mean: FloatArray
    scale: FloatArray
    df: FloatArray

    @property
    def variance(self) -> FloatArray:
        """Variance of each: float64 [Q, M], inf without a finite one (df of 2 or less)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            wider = np.where(np.isinf(self.df), 1.0, np.where(self.df > 2, self.df / (self.df - 2), np.inf))
        return np.asarray(self.scale**2 * wider[:, None], dtype=np.float64)


def predict(parameters: FloatArray, data: Pooled, kept: np.ndarray) -> Predicted:
    """Predict the rows that are not kept from those that are, under the model with its noise (universal kriging).

    The question's constant is estimated by generalised least squares, and its uncertainty is part of the scale.

    Args:
        parameters: [k + 2], as in `likelihood.negative_log_likelihood`.
        data: the questions with all their rows.
        kept: bool [Q, M], at least one in each question.
    """
    b, s = float(parameters[-2]), float(np.exp(parameters[-1]))
    kept, held = kept & data.rows, data.rows & ~kept
    x = np.append(data.basis @ parameters[:-2], 0.0)[data.place] @ contrasts(data.passages)
    prior = b * (x @ data.z[:, :, None])[:, :, 0]
    joint = x @ x.transpose(0, 2, 1) + s * covariance(data.permutations, data.noise.shared)
    both = kept[:, :, None] & kept[:, None, :]
    inverse = np.linalg.inv(np.where(both, joint, np.eye(kept.shape[1]))) * both
    of_one = inverse.sum(axis=2)
    total = of_one.sum(axis=1)
    constant = (of_one * (data.scores - prior)).sum(axis=1) / total
    left = (data.scores - prior - constant[:, None]) * kept
    solved = (inverse @ left[:, :, None])[:, :, 0]
    across = joint * kept[:, None, :]
    mean = prior + constant[:, None] + (across @ solved[:, :, None])[:, :, 0]
    variance = np.diagonal(joint, axis1=1, axis2=2) - ((across @ inverse) * across).sum(axis=2)
    variance = variance + (1 - (across @ of_one[:, :, None])[:, :, 0]) ** 2 / total[:, None]
    nu, count = data.noise.df, kept.sum(axis=1) - 1
    if np.isfinite(nu):
        form = (left * solved).sum(axis=1)
        variance = variance * ((nu + form) / (nu + count))[:, None]
    return Predicted(mean * held, np.sqrt(np.maximum(variance, 0.0)) * held, nu + count)
