"""calibrate: the position bias of a reader, from many questions' scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError
from fastreader.moi.debias import debias, tempered
from fastreader.moi.likelihood import (
    Pooled,
    bias_basis,
    contrasts,
    design,
    fit,
    negative_log_likelihood,
    pool,
    posterior,
)
from fastreader.moi.observe import Scored, observe
from fastreader.moi.probe import Probe
from fastreader.moi.types import FloatArray, Observations, PositionBias

DECISIVE = 3.0  # standard errors from which a contrast decides the sign
_CHANCE = 1e-3  # held-out orderings must beat no bias at this one-sided level
_AS_LIKELY = 2.0  # nats: fits within this of the best count as its equals
_FLOORS = (1e-4, 1e-7, 1e-10)  # of the scores' variance: how low sigma^2 is sought, in turn
_LARGEST = 30.0  # tau, and beta over tau, in units of the scores' and query likelihoods' spread


@dataclass(frozen=True)
class _HeldOut:
    """What orderings left out of the fit show.

    Attributes:
        r2: share of their variance explained against no bias.
        beyond_chance: whether that is above 0 beyond chance, questions being the unit.
        inflation: mean squared error over the variance the model expects.
    """

    r2: float
    beyond_chance: bool
    inflation: float


def calibrate(
    scores: Iterable[Scored],
    *,
    kind: str = "question",
    per_token: bool = False,
    candidate: int | str | None = None,
    contrast: Probe | npt.ArrayLike | None = None,
    gold: Sequence[int | None] | None = None,
    level: float = 0.95,
    resamples: int = 200,
    starts: int = 8,
    folds: int = 5,
    seed: int = 0,
) -> PositionBias:
    """Measure how much each place counts, by the marginal likelihood of many questions' scores.

    The model is `likelihood`'s (1): utilities are integrated out, so the bias is that of the reader and not of a
    question, and its size cannot be traded against theirs. The maximum is sought from the regression of the scores
    on the query likelihoods and from random starts; starts that end in another bias just as likely make the result
    not `identified`. Whether there is a bias at all is judged on held-out orderings.

    Args:
        scores: of many questions with one N, L, reader and template; 30 questions with 20 orderings do at N = 5.
            Scored with ``alone=True`` they bring the query likelihoods that decide the sign.
        kind, per_token, candidate: what to explain, as in `observe`.
        contrast: decides the sign, or confirms it: a `Probe`, or float [Q', L], nats by the place of a passage known
            to be right. It counts from 3 standard errors on.
        gold: for each question the index of the passage known to be right, or None; makes P(best) fit how often it
            is (`temperature`).
        level: of the intervals.
        resamples: bootstrap samples of the questions.
        starts: random starts of the maximisation.
        folds: of held-out orderings.
        seed: of starts, folds and bootstrap.

    Returns:
        `PositionBias`.

    Raises:
        InputError: fewer than 2 questions; questions of several N, L, readers or templates (both are named); fewer
            than 3 orderings of a question, or fewer in all than unknowns; scores that are all constant.
    """
    observed = [observe(s, kind, per_token=per_token, candidate=candidate) for s in scores]
    _check(observed, level, resamples, starts, folds)
    first = observed[0]
    with_qg = all(o.qg is not None for o in observed)
    if not with_qg:
        observed = [replace(o, qg=None) for o in observed]
    raw = pool(observed)
    size = float(np.sqrt((raw.centred**2).sum() / raw.rows.sum()))
    z_size = float(np.sqrt(np.mean(raw.z**2))) if with_qg else 1.0
    with_qg, z_size = (with_qg, z_size) if z_size > 0 else (False, 1.0)
    data = replace(raw, scores=raw.scores / size, z=raw.z / z_size)
    basis = bias_basis(data.length, data.passages)
    rng = np.random.default_rng(seed)
    best, rivals = _maximise(data, basis, with_qg, starts, rng)
    best = _towards_convention(best, basis, with_qg)
    held = _held_out(best, data, basis, with_qg, folds, rng)
    samples = _bootstrap(best, data, basis, with_qg, resamples, rng)
    bias, tau = _unit(best, basis)
    biases = np.stack([_unit(sample, basis)[0] for sample in samples])
    k = basis.shape[1]
    sign, sign_z, contrast_z, flipped, why = _sign(best, samples, bias, biases, with_qg, contrast)
    turn = -1.0 if flipped else 1.0
    tail = 100 * (1 - level) / 2
    reasons = []
    if not held.beyond_chance:
        reasons.append(f"held-out orderings do not show a bias beyond chance (R^2 {held.r2:.3f})")
    if rivals:
        reasons.append("other biases are as likely")
    found = PositionBias(
        bias=turn * bias,
        beta=turn * float(best[k]) * tau * size / z_size,
        tau=tau * size,
        sigma=float(np.exp(best[k + 1] / 2)) * size,
        passages=data.passages,
        sign=sign,
        intervals=np.percentile(turn * biases, [tail, 100 - tail], axis=0).T,
        covariance=np.atleast_2d(np.cov(biases.T, ddof=1)),
        r2=held.r2,
        questions=len(observed),
        permutations=int(data.rows.sum()),
        reader=dict(first.reader),
        template=first.template,
        kind=kind,
        per_token=per_token,
        level=level,
        inflation=held.inflation,
        sign_z=sign_z,
        contrast_z=contrast_z,
        flat=not held.beyond_chance,
        identified=not rivals,
        reason="; ".join([*reasons, *([why] if why else [])]),
    )
    if gold is not None:
        found = replace(found, temperature=_temperature(found, observed, gold))
    return found


def _check(observed: list[Observations], level: float, resamples: int, starts: int, folds: int) -> None:
    if len(observed) < 2:
        raise InputError(f"scores: expected those of at least 2 questions, got {len(observed)}")
    first = observed[0]
    for name, get in _MUST_AGREE.items():
        for q, o in enumerate(observed):
            if get(o) != get(first):
                raise InputError(f"scores: question {q} has {name} {get(o)!r}, question 0 has {get(first)!r}")
    if first.passages < 3:
        raise InputError(
            f"scores: a bias is measured from N = 3 passages on, got N = {first.passages}, whose orderings are too few "
            "to tell noise from utilities"
        )
    if short := [q for q, o in enumerate(observed) if len(o) < 3]:
        raise InputError(f"scores: question {short[0]} has {len(observed[short[0]])} orderings, expected at least 3")
    unknowns = bias_basis(first.length, first.passages).shape[1] + 2
    if (told := sum(len(o) - 1 for o in observed)) <= unknowns:
        raise InputError(
            f"scores: {told + len(observed)} orderings of {len(observed)} questions give {told} differences, fewer "
            f"than needed for {unknowns} unknowns"
        )
    if all(o.constant for o in observed):
        raise InputError(
            "scores: all orderings of every question scored the same, so that no bias can be measured; a template "
            "that puts the question first makes it so for the question's log-likelihood"
        )
    for name, value, least in (("resamples", resamples, 20), ("starts", starts, 1), ("folds", folds, 2)):
        if value < least:
            raise InputError(f"{name}: expected at least {least}, got {value}")
    if not 0 < level < 1:
        raise InputError(f"level: expected a number in (0, 1), got {level}")


_MUST_AGREE: dict[str, Any] = {
    "passages N": lambda o: o.passages,
    "places L": lambda o: o.length,
    "reader": lambda o: o.reader.get("name", ""),
    "template": lambda o: o.template,
}


def _maximise(
    data: Pooled, basis: FloatArray, with_qg: bool, starts: int, rng: np.random.Generator
) -> tuple[FloatArray, bool]:
    """The likeliest parameters, and whether another bias is as likely."""
    k = basis.shape[1]
    y, weights = data.centred, np.ones(len(data.rows))
    tried = []
    for number in range(starts + 1):
        theta = _regression(data, basis) if number == 0 and with_qg else rng.standard_normal(k)
        theta = 0.8 * theta / max(float(np.linalg.norm(theta)), 1e-12)
        start = np.concatenate([theta, [0.5 * with_qg, np.log(0.4)]])
        tried.append(fit(start, data, y, basis, weights, _bounds(k, with_qg)))
    best, lowest = min(tried, key=lambda found: found[1])
    # Scores almost without noise: lower sigma step by step, since from afar its valley is too narrow to follow.
    value = lowest
    for floor in _FLOORS[1:]:
        if best[k + 1] > np.log(_FLOORS[0]) + 1e-6:
            break
        best, value = fit(best, data, y, basis, weights, _bounds(k, with_qg, floor))
        exact = np.concatenate([_polished(best[:k], data, y, basis), [best[k], np.log(floor)]])
        exact_value, _slope = negative_log_likelihood(exact, data, y, basis, weights)
        if exact_value < value:
            best, value = exact, exact_value
    bias = _unit(best, basis)[0]
    equals = [_unit(p, basis)[0] for p, value in tried if value <= lowest + _AS_LIKELY]
    return best, any(abs(float(bias @ other)) < 0.95 for other in equals)


def _polished(theta: FloatArray, data: Pooled, y: FloatArray, basis: FloatArray) -> FloatArray:
    """Gauss-Newton on the scores that no utilities explain, for scores without noise: theta to rounding.

    The residual of a question is P y with P = I - X X^+, and its derivative -P dX v (Kaufman's variable projection).
    """
    left = np.inf
    for _ in range(20):
        x = design(basis @ theta, data)
        inverse = np.linalg.pinv(x, rcond=1e-8)
        v = inverse @ y[:, :, None]
        residual = y - (x @ v)[:, :, 0]
        if float((residual**2).sum()) >= left:
            break
        left, best = float((residual**2).sum()), theta
        moved = np.concatenate([design(basis[:, j], data) @ v for j in range(len(theta))], axis=2)
        moved = moved - x @ (inverse @ moved)
        step = np.linalg.lstsq(moved.reshape(-1, len(theta)), residual.ravel(), rcond=1e-10)[0]
        theta = theta + step
    return best


def _bounds(k: int, with_qg: bool, floor: float = _FLOORS[0]) -> list[tuple[float, float]]:
    slope = (-_LARGEST, _LARGEST) if with_qg else (0.0, 0.0)
    return [(-_LARGEST, _LARGEST)] * k + [slope, (float(np.log(floor)), float(np.log(1e2)))]


def _regression(data: Pooled, basis: FloatArray) -> FloatArray:
    """Least squares of the scores on the query likelihood at each place: a first guess of theta, float64 [k]."""
    blocks = np.stack([design(basis[:, j], data) @ data.z[:, :, None] for j in range(basis.shape[1])], axis=-1)
    found = np.linalg.lstsq(blocks.reshape(-1, basis.shape[1]), data.centred.ravel(), rcond=None)[0]
    guess = np.asarray(found, dtype=np.float64)
    return guess if np.linalg.norm(guess) > 0 else np.ones(basis.shape[1])


def _unit(parameters: FloatArray, basis: FloatArray) -> tuple[FloatArray, float]:
    """Bias of unit norm, and tau."""
    theta = parameters[: basis.shape[1]]
    tau = float(np.linalg.norm(theta))
    return basis @ (theta / tau if tau > 0 else np.eye(len(theta))[0]), tau


def _towards_convention(parameters: FloatArray, basis: FloatArray, with_qg: bool) -> FloatArray:
    """beta > 0; without query likelihoods prefixes have a positive sum (a passage read counts for itself)."""
    k = basis.shape[1]
    towards = float(parameters[k]) if with_qg else float((basis @ parameters[:k]).sum())
    return parameters if towards >= 0 else _negated(parameters, k)


def _negated(parameters: FloatArray, k: int) -> FloatArray:
    return np.concatenate([-parameters[: k + 1], parameters[k + 1 :]])


def _bootstrap(
    best: FloatArray, data: Pooled, basis: FloatArray, with_qg: bool, resamples: int, rng: np.random.Generator
) -> list[FloatArray]:
    """Parameters of refits to resampled questions, each of the sign nearer to `best`."""
    k, count = basis.shape[1], len(data.rows)
    y = data.centred
    samples = []
    for _ in range(resamples):
        weights = np.bincount(rng.integers(count, size=count), minlength=count).astype(np.float64)
        drawn = np.flatnonzero(weights)
        found, _value = fit(best, data.take(drawn), y[drawn], basis, weights[drawn], _bounds(k, with_qg), 3e-7, 60)
        samples.append(found if found[:k] @ best[:k] >= 0 else _negated(found, k))
    return samples


def _held_out(
    best: FloatArray, data: Pooled, basis: FloatArray, with_qg: bool, folds: int, rng: np.random.Generator
) -> _HeldOut:
    """Fit without a fold of every question's orderings, predict it, and so on in turn."""
    k = basis.shape[1]
    fold = np.full(data.rows.shape, -1)
    for q, count in enumerate(data.counts.tolist()):
        fold[q, :count] = rng.permutation(count) % min(folds, count)
    gained, spread = np.zeros(len(data.rows)), np.zeros(len(data.rows))
    surprise = rows = 0.0
    for number in range(int(fold.max()) + 1):
        out = fold == number
        kept = data.keep(~out)
        y = kept.centred
        parameters, _value = fit(best, kept, y, basis, np.ones(len(y)), _bounds(k, with_qg), 1e-8)
        theta, b, s = basis @ parameters[:k], float(parameters[k]), float(np.exp(parameters[k + 1]))
        found = posterior(design(theta, kept), y, kept.z, b, s)
        x = _against(theta, data.keep(out), kept)  # held-out rows, less the mean row that was fitted
        error = (data.scores - kept.means[:, None]) * out
        left = (error - (x @ found.mean[:, :, None])[:, :, 0]) * out
        expected = s * (1 + 1 / kept.counts[:, None] + ((x @ found.inverse) * x).sum(axis=-1))
        gained += (error**2).sum(axis=1) - (left**2).sum(axis=1)
        spread += (error**2).sum(axis=1)
        surprise += float((left**2 / expected)[out].sum())
        rows += float(out.sum())
    r2 = float(gained.sum() / spread.sum())
    return _HeldOut(r2, r2 > 0 and _beyond_chance(gained), max(1.0, surprise / rows))


def _beyond_chance(gained: FloatArray) -> bool:
    """Whether the questions gain: their mean by Student's t, or, robust to a few wild ones, their ranks by Wilcoxon's.

    Args:
        gained: float64 [Q], squared error that the bias takes away from each question's held-out scores.
    """
    from scipy.special import stdtrit
    from scipy.stats import wilcoxon

    deviation = float(gained.std(ddof=1)) / np.sqrt(len(gained))
    if float(gained.mean()) > float(stdtrit(len(gained) - 1, 1 - _CHANCE)) * deviation:
        return True
    return bool(np.any(gained != 0) and wilcoxon(gained, alternative="greater").pvalue < _CHANCE)


def _against(theta: FloatArray, held: Pooled, kept: Pooled) -> FloatArray:
    """Rows of X of the held-out orderings, less the mean row of those kept: float64 [Q, M, N - 1]."""
    padded = np.append(theta, 0.0)
    mean = (padded[kept.place] * kept.rows[:, :, None]).sum(axis=1) / kept.counts[:, None]
    rows: FloatArray = ((padded[held.place] - mean[:, None]) * held.rows[:, :, None]) @ contrasts(held.passages)
    return rows


def _sign(
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


def _temperature(bias: PositionBias, observed: list[Observations], gold: Sequence[int | None]) -> float:
    """The temperature under which P(best), from N orderings a question, gives the gold passages most likelihood."""
    if len(gold) != len(observed):
        raise InputError(f"gold: expected one entry for each of {len(observed)} questions, got {len(gold)}")
    chosen = []
    for q, (o, index) in enumerate(zip(observed, gold, strict=True)):
        if index is None:
            continue
        if not 0 <= index < o.passages:
            raise InputError(f"gold: question {q}: expected a passage in [0, {o.passages}), got {index}")
        few = min(len(o), o.passages)
        part = replace(o, values=o.values[:few], permutations=o.permutations[:few])
        chosen.append((debias(part, bias).p_best, index))
    if len(chosen) < 2:
        raise InputError(f"gold: expected at least 2 questions with a gold passage, got {len(chosen)}")

    def loss(log_temperature: float) -> float:
        t = float(np.exp(log_temperature))
        return -float(np.mean([np.log(tempered(p, t if t != 1.0 else 1.0 + 1e-12)[i]) for p, i in chosen]))

    from scipy.optimize import minimize_scalar

    found: Any = minimize_scalar(loss, bounds=(np.log(0.2), np.log(20.0)), method="bounded")
    return float(np.exp(found.x))
