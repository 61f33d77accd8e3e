"""Predict the scores of orderings from other orderings of the same questions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastreader.moi.quantities.observations import FloatArray
from fastreader.moi.quantities.score_noise import covariance
from fastreader.moi.solve.likelihood import Pooled, contrasts


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
