"""The bias's sign: by the convention that query likelihoods help, or by a known passage moved through the places."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError
from fastreader.moi.probe import Probe
from fastreader.moi.types import FloatArray

DECISIVE = 3.0  # standard errors from which a contrast decides the sign


def decide(
    best: FloatArray,
    samples: list[FloatArray],
    bias: FloatArray,
    biases: FloatArray,
    with_qg: bool,
    contrast: Probe | npt.ArrayLike | None,
) -> tuple[str, float | None, float | None, bool, str]:
    """(sign, beta's z, the contrast's z in the direction returned, whether to turn the bias round, why undecided)."""
    k = len(best) - 2
    sign_z: float | None = None
    if with_qg:
        sign_z = _over_error(_beta(best, k), np.array([_beta(sample, k) for sample in samples]))
        decided = sign_z >= DECISIVE
    else:
        total = biases.sum(axis=1)
        decided = bool(np.abs(bias.sum()) > 1e-9 and _over_error(float(bias.sum()), total) >= DECISIVE)
    if contrast is None:
        why = "" if decided else "the query likelihoods do not decide the bias's sign"
        return ("convention" if decided else "undetermined"), sign_z, None, False, why
    effects = contrast.effects if isinstance(contrast, Probe) else np.asarray(contrast, dtype=np.float64)
    if effects.ndim != 2 or effects.shape[1] != len(bias) or len(effects) < 2 or not np.isfinite(effects).all():
        raise InputError(
            f"contrast: expected finite nats [questions, {len(bias)} places] of at least 2 questions, got shape "
            f"{list(effects.shape)}"
        )
    each = (effects - effects.mean(axis=1, keepdims=True)) @ bias
    contrast_z = _ratio(float(each.mean()), float(each.std(ddof=1)) / np.sqrt(len(each)))
    if abs(contrast_z) < DECISIVE:
        why = "" if decided else "neither the query likelihoods nor the gold contrast decide the bias's sign"
        return ("convention" if decided else "undetermined"), sign_z, contrast_z, False, why
    if contrast_z > 0:
        return "contrast", sign_z, contrast_z, False, ""
    if decided:
        return "undetermined", sign_z, contrast_z, False, "query likelihoods and gold contrast disagree on the sign"
    return "contrast", None if sign_z is None else -sign_z, -contrast_z, True, ""


def _beta(parameters: FloatArray, k: int) -> float:
    return float(parameters[k] * np.linalg.norm(parameters[:k]))


def _over_error(value: float, samples: FloatArray) -> float:
    return _ratio(value, float(samples.std(ddof=1)))


def _ratio(value: float, error: float) -> float:
    return value / error if error > 0 else float(np.sign(value)) * 1e9
