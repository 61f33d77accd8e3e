"""calibrate: the position bias of a reader, from many questions' scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import random_generator
from fastreader.errors import InputError
from fastreader.moi.debias import debias
from fastreader.moi.observe import Scored, observe
from fastreader.moi.probe import Probe
from fastreader.moi.solve.fitting import bootstrap, maximise, towards_convention, unit
from fastreader.moi.solve.held_out import held_out
from fastreader.moi.solve.likelihood import bias_basis, pool
from fastreader.moi.solve.p_best import tempered
from fastreader.moi.solve.sign import decide, effects_of
from fastreader.moi.types import Observations, PositionBias


def calibrate(
    scores: Iterable[Scored],
    *,
    kind: str = "question",
    per_token: bool = False,
    candidate: int | str | None = None,
    contrast: Probe | npt.ArrayLike | None = None,
    gold: Sequence[int | None] | None = None,
    confidence_level: float = 0.95,
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
            Scored with ``query_likelihood=True`` they bring the query likelihoods that decide the sign.
        kind, per_token, candidate: what to explain, as in `observe`.
        contrast: decides the sign, or confirms it: a `Probe`, or float [Q', L], nats by the place of a passage known
            to be right. Like the query likelihoods it counts where a wrong sign has a chance below 1 in 2,000 by
            Student's t over its questions, of which it needs 8. The query likelihoods must also make the scores
            likelier than chance would, by a likelihood ratio test against beta = 0.
        gold: for each question the index of the passage known to be right, or None; makes P(best) fit how often it
            is (`temperature`).
        confidence_level: of the intervals.
        resamples: bootstrap samples of the questions.
        starts: random starts of the maximisation.
        folds: of held-out orderings.
        seed: of starts, folds and bootstrap.

    Returns:
        `PositionBias`.

    Raises:
        InputError: fewer than 2 questions; questions of several N, L, readers or templates (both are named); fewer
            than 3 orderings of a question, or fewer in all than unknowns; scores that are all constant; a contrast
            of another reader, template or number of places.
    """
    observed = []
    for q, scored in enumerate(scores):
        try:
            observed.append(observe(scored, kind, per_token=per_token, candidate=candidate))
        except InputError as error:
            raise InputError(f"scores: question {q}: {error}") from error
    _check(observed, confidence_level, resamples, starts, folds)
    first = observed[0]
    effects = effects_of(contrast, first)
    with_qg = all(o.qg is not None for o in observed)
    raw = pool(observed)
    size = float(np.sqrt((raw.centred**2).sum() / raw.rows.sum()))
    z_size = float(np.sqrt(np.mean(raw.z**2))) if with_qg else 1.0
    with_qg, z_size = (with_qg, z_size) if z_size > 0 else (False, 1.0)
    data = replace(raw, scores=raw.scores / size, z=raw.z / z_size)
    basis = bias_basis(data.length, data.passages)
    rng = random_generator(seed)
    best, rivals, beyond_chance = maximise(data, basis, with_qg, starts, rng)
    best = towards_convention(best, basis, with_qg)
    held = held_out(best, data, basis, with_qg, folds, rng)
    samples = bootstrap(best, data, basis, with_qg, resamples, rng)
    bias, tau = unit(best, basis)
    biases = np.stack([unit(sample, basis)[0] for sample in samples])
    k = basis.shape[1]
    query = beyond_chance if with_qg else None
    sign, sign_z, contrast_z, flipped, why = decide(best, samples, bias, biases, query, effects, len(observed))
    turn = -1.0 if flipped else 1.0
    tail = 100 * (1 - confidence_level) / 2
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
        num_passages=data.passages,
        sign=sign,
        intervals=np.percentile(turn * biases, [tail, 100 - tail], axis=0).T,
        covariance=np.atleast_2d(np.cov(biases.T, ddof=1)),
        r2=held.r2,
        num_questions=len(observed),
        num_orderings=int(data.rows.sum()),
        reader=dict(first.reader),
        template=first.template,
        kind=kind,
        per_token=per_token,
        confidence_level=confidence_level,
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


def _check(observed: list[Observations], confidence_level: float, resamples: int, starts: int, folds: int) -> None:
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
    if not 0 < confidence_level < 1:
        raise InputError(f"level: expected a number in (0, 1), got {confidence_level}")


_MUST_AGREE: dict[str, Any] = {
    "passages N": lambda o: o.passages,
    "places L": lambda o: o.length,
    "reader": lambda o: o.reader.get("name", ""),
    "the reader's revision": lambda o: o.reader.get("revision", ""),
    "template": lambda o: o.template,
    "query likelihoods": lambda o: o.qg is not None,
}


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
        p_best = debias(part, bias).p_best
        assert p_best is not None  # of a calibrated solve
        chosen.append((p_best, index))
    if len(chosen) < 2:
        raise InputError(f"gold: expected at least 2 questions with a gold passage, got {len(chosen)}")

    def loss(log_temperature: float) -> float:
        t = float(np.exp(log_temperature))
        return -float(np.mean([np.log(tempered(p, t if t != 1.0 else 1.0 + 1e-12)[i]) for p, i in chosen]))

    from scipy.optimize import minimize_scalar

    found: Any = minimize_scalar(loss, bounds=(np.log(0.2), np.log(20.0)), method="bounded")
    return float(np.exp(found.x))
