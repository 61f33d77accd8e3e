"""The model behind `sufficient`: from what the passages do to the question to a probability."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class SufficiencyWeights(NamedTuple):
    """Parameters of a logistic model.

    Attributes:
        constant: log-odds without evidence.
        gain: per nat of `features`' gain.
        about: of a passage that has all of the question's words.
    """

    constant: float
    gain: float
    about: float


# Fitted by studies/sufficiency.py.
WEIGHTS = SufficiencyWeights(constant=-5.121, gain=0.151, about=4.975)


def features(gains: FloatArray, about: FloatArray) -> FloatArray:
    """Return the evidence of N passages: float64 [3], 1, the largest gain in nats, and the largest share of words.

    Args:
        gains: float64 [N], log P(question | passage) - log P(question).
        about: float64 [N], share of the question's words in each passage.
    """
    return np.array([1.0, gains.max(), about.max()])


def probability(evidence: FloatArray, weights: SufficiencyWeights = WEIGHTS) -> FloatArray:
    """Return the probability that one of the passages holds an answer: [...] from `features` [..., 3]."""
    found: FloatArray = 1 / (1 + np.exp(-np.clip(evidence @ np.array(weights), -700, 700)))
    return found
