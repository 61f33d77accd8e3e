"""Decide the bias's sign: by the convention that query likelihoods help, or by a known passage's places."""

from __future__ import annotations

import numpy as np
from scipy.special import stdtrit

from fastreader.moi.quantities.observations import FloatArray

WRONG = 5e-4  # accepted chance of a wrong sign, one-sided, of each of the two pieces of evidence
LEAST = 8  # number of questions below which neither decides


def decisive(questions: int) -> float:
    """Return the number of standard errors at which evidence decides, Student's t at `WRONG`, or inf below `LEAST`.

    The standard error is estimated from the questions, so few questions need far more than a normal's 3.3.
    """
    return float(stdtrit(questions - 1, 1 - WRONG)) if questions >= LEAST else float("inf")


def decide(
    best: FloatArray,
    samples: list[FloatArray],
    bias: FloatArray,
    biases: FloatArray,
    *,
    query: bool | None,
    effects: FloatArray | None,
    questions: int,
) -> tuple[str, float | None, float | None, bool, str]:
    """Decide the sign of a fitted bias.

    Args:
        best, samples: parameters, as fitted and by the bootstrap.
        bias, biases: their biases, of unit norm.
        query: whether query likelihoods determine the bias beyond chance; None without query likelihoods.
        effects: nats by place of a known passage, [Q', L], or None.
        questions: number of questions behind the parameters.

    Returns:
        (sign, z of beta, z of the contrast in the direction returned, whether to negate the bias, why undecided)
    """
    sign_z: float | None = None
    if query is not None:
        sign_z = _ratio(_beta(best), float(np.std([_beta(sample) for sample in samples], ddof=1)))
        decided = query and sign_z >= decisive(questions)
    else:
        total, error = float(bias.sum()), float(biases.sum(axis=1).std(ddof=1))
        decided = abs(total) > 1e-9 and _ratio(total, error) >= decisive(questions)
    if effects is None:
        why = "" if decided else "the query likelihoods do not decide the bias's sign"
        return ("query_likelihood" if decided else "undetermined"), sign_z, None, False, why
    each = (effects - effects.mean(axis=1, keepdims=True)) @ bias
    contrast_z = _ratio(float(each.mean()), float(each.std(ddof=1)) / np.sqrt(len(each)))
    if abs(contrast_z) < decisive(len(each)):
        why = "" if decided else "neither the query likelihoods nor the gold contrast decide the bias's sign"
        return ("query_likelihood" if decided else "undetermined"), sign_z, contrast_z, False, why
    if contrast_z > 0:
        return "gold_probe", sign_z, contrast_z, False, ""
    if decided:
        return "undetermined", sign_z, contrast_z, False, "query likelihoods and gold contrast disagree on the sign"
    return "gold_probe", None if sign_z is None else -sign_z, -contrast_z, True, ""


def _beta(parameters: FloatArray) -> float:
    return float(parameters[-2] * np.linalg.norm(parameters[:-2]))


def _ratio(value: float, error: float) -> float:
    return value / error if error > 0 else float(np.sign(value)) * 1e9
