"""The bias's sign: by the convention that query likelihoods help, or by a known passage moved through the places."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from fastreader.errors import InputError
from fastreader.moi.identity import differing
from fastreader.moi.probe import Probe
from fastreader.moi.types import FloatArray, Observations

WRONG = 5e-4  # chance of a wrong sign, one-sided, that each of the two pieces of evidence is allowed
LEAST = 8  # questions below which neither decides


def decisive(questions: int) -> float:
    """Standard errors from which evidence over so many questions decides: Student's t at `WRONG`; inf below `LEAST`.

    The standard error is estimated from the questions, so a few of them need far more than a normal's 3.3.
    """
    return float(stdtrit(questions - 1, 1 - WRONG)) if questions >= LEAST else float("inf")


def effects_of(contrast: Probe | npt.ArrayLike | None, first: Observations) -> FloatArray | None:
    """Nats by place of a known passage, float64 [Q', L]; None where there is no contrast.

    Raises:
        InputError: another number of places, fewer than 2 questions, numbers that are not finite, or a probe of
            another reader or template than the scores' (both are named).
    """
    if contrast is None:
        return None
    effects = contrast.effects if isinstance(contrast, Probe) else np.asarray(contrast, dtype=np.float64)
    if effects.ndim != 2 or effects.shape[1] != first.length or len(effects) < 2 or not np.isfinite(effects).all():
        raise InputError(
            f"contrast: expected finite nats [questions, {first.length} places] of at least 2 questions, got shape "
            f"{list(effects.shape)}"
        )
    if isinstance(contrast, Probe) and (
        wrong := differing("probe", contrast.reader, contrast.template, "scores", first.reader, first.template)
    ):
        raise InputError(f"contrast: measured on something else than these scores: {'; '.join(wrong)}")
    return effects


def decide(
    best: FloatArray,
    samples: list[FloatArray],
    bias: FloatArray,
    biases: FloatArray,
    query: bool | None,
    effects: FloatArray | None,
    questions: int,
) -> tuple[str, float | None, float | None, bool, str]:
    """(sign, beta's z, the contrast's z in the direction returned, whether to turn the bias round, why undecided).

    Args:
        best, samples: parameters, and those of the bootstrap.
        bias, biases: their biases, of unit norm.
        query: whether query likelihoods tell the bias beyond chance; None where there are none.
        effects: nats by place of a known passage, [Q', L], or None.
        questions: behind the parameters.
    """
    k = len(best) - 2
    sign_z: float | None = None
    if query is not None:
        sign_z = _over_error(_beta(best, k), np.array([_beta(sample, k) for sample in samples]))
        decided = query and sign_z >= decisive(questions)
    else:
        total = biases.sum(axis=1)
        decided = bool(np.abs(bias.sum()) > 1e-9 and _over_error(float(bias.sum()), total) >= decisive(questions))
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


def _beta(parameters: FloatArray, k: int) -> float:
    return float(parameters[k] * np.linalg.norm(parameters[:k]))


def _over_error(value: float, samples: FloatArray) -> float:
    return _ratio(value, float(samples.std(ddof=1)))


def _ratio(value: float, error: float) -> float:
    return value / error if error > 0 else float(np.sign(value)) * 1e9
