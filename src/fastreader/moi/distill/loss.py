"""The loss of preference distillation, and its float64 NumPy twin without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fastreader.moi.types import FloatArray

if TYPE_CHECKING:
    from torch import Tensor


def kl_loss(teacher: Tensor, student: Tensor, temperature: float = 1.0, direction: str = "forward") -> Tensor:
    """Return the KL divergence between the softmaxes of two scorings of the same orderings, nats.

    ``t = softmax(teacher / T), s = softmax(student / T)``; "forward" is ``sum t (log t - log s)``, "reverse"
    ``sum s (log s - log t)`` (MoI, section 3.3.2, which states neither T nor the direction).

    Args:
        teacher: float [K'], log-likelihoods in nats.
        student: float [K'], receives the gradient.
        temperature: T, nats.
        direction: "forward" or "reverse".
    """
    log_t = (teacher / temperature).log_softmax(dim=-1)
    log_s = (student / temperature).log_softmax(dim=-1)
    if direction == "reverse":
        log_t, log_s = log_s, log_t
    return (log_t.exp() * (log_t - log_s)).sum()


def kl_divergence(
    teacher: FloatArray, student: FloatArray, temperature: float = 1.0, direction: str = "forward"
) -> float:
    """Return `kl_loss` of NumPy arrays, without gradients."""
    from scipy.special import log_softmax

    log_t, log_s = log_softmax(teacher / temperature), log_softmax(student / temperature)
    if direction == "reverse":
        log_t, log_s = log_s, log_t
    return float((np.exp(log_t) * (log_t - log_s)).sum())
