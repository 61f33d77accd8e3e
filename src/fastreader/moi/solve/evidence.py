"""Evidence of a position bias without labels: do passages that explain the question count more at some places?

The scores of a question are regressed on the query likelihood of the passage at each place,

    y_i = sum_j d[j] z[pi_i[j]] + e_i,   sum_j d[j] = 0,                                                     (4)

each question weighted by the inverse variance of its scores. If places do not matter, a question's scores could as
well belong to its orderings in any other way; under such exchanges ``d^T V d`` is chi^2 with L - 1 degrees of freedom,
V being the weighted cross products. This holds for orderings that share no prefix, as in a Latin square.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import chdtrc

from fastreader.moi.quantities.observations import FloatArray
from fastreader.moi.solve.likelihood import Pooled, design


@dataclass(frozen=True, eq=False)
class ModelEvidence:
    """What the query likelihoods show of a bias.

    Attributes:
        bias: float64 [L], d of (4), not scaled.
        information: float64 [L, L], V in the space of the biases.
        chi2: d^T V d.
        chance: probability of as large a chi2 if places do not matter.
    """

    bias: FloatArray
    information: FloatArray
    chi2: float
    chance: float

    def share(self, bias: FloatArray) -> float:
        """Return the share of the evidence that a bias explains, in [-1, 1], negative if it has the wrong sign."""
        length = float(bias @ self.information @ bias)
        if length <= 0 or self.chi2 <= 0:
            return 0.0
        return float(bias @ self.information @ self.bias / np.sqrt(length * self.chi2))


def evidence(data: Pooled) -> ModelEvidence:
    """Return the evidence in the scores of many questions.

    Args:
        data: scores and query likelihoods; without query likelihoods the evidence is 0.
    """
    k = data.basis.shape[1]
    blocks = np.stack([design(data.basis[:, j], data) @ data.z[:, :, None] for j in range(k)], axis=-1)[:, :, 0]
    square = (data.whitened**2).sum(axis=1)
    weight = np.divide(data.counts - 1, square, out=np.zeros(len(square)), where=square > 0)
    information = np.einsum("q,qmi,qmj->ij", weight, blocks, blocks)
    towards = np.einsum("q,qmi,qm->i", weight, blocks, data.whitened)
    found = np.linalg.pinv(information, hermitian=True) @ towards
    chi2 = float(found @ towards)
    return ModelEvidence(
        data.basis @ found, data.basis @ information @ data.basis.T, chi2, float(chdtrc(k, max(chi2, 0.0)))
    )
