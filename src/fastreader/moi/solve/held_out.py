"""Test whether orderings left out of the fit show the bias."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastreader.moi.quantities.observations import FloatArray
from fastreader.moi.solve.likelihood import Pooled, fit
from fastreader.moi.solve.predict import predict

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
