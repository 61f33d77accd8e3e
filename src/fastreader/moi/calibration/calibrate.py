"""calibrate: measure the position bias of a reader from many questions' scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import accept, checked, kind_of
from fastreader.core.checks import (
    MOST_RESAMPLES,
    MOST_STARTS,
    check_int,
    check_number,
    expect,
    located,
    random_generator,
    require,
)
from fastreader.moi.calibration.probe import Probe
from fastreader.moi.quantities.observations import FloatArray, Observations, Scored, observe
from fastreader.moi.quantities.position_bias import PositionBias, differing
from fastreader.moi.solve.debias import debias
from fastreader.moi.solve.fitting import bootstrap, maximise, towards_convention, unit
from fastreader.moi.solve.held_out import held_out
from fastreader.moi.solve.likelihood import Pooled, pool
from fastreader.moi.solve.noise_fit import fit_with_noise
from fastreader.moi.solve.p_best import tempered
from fastreader.moi.solve.sign import decide


@checked
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
    """Measure the weight of each place, by the marginal likelihood of many questions' scores.

    The model is `likelihood`'s (1): utilities are integrated out, so the bias is that of the reader and not of a
    question, and its size cannot be traded against theirs. The maximum is sought from the regression of the scores
    on the query likelihoods and from random starts; the result is not `identified` if starts end in another bias that
    is just as likely. Held-out orderings decide whether there is a bias at all.

    Args:
        scores: of many questions with one N, L, reader and template; 30 questions with 20 orderings suffice at N = 5.
            Scores with ``query_likelihood=True`` hold the query likelihoods that decide the sign.
        kind, per_token, candidate: the score to explain, as in `observe`.
        contrast: decides or confirms the sign: a `Probe`, or float [Q', L], nats by the place of a passage known
            to be right. It counts, as the query likelihoods do, if a wrong sign has a chance below 1 in 2,000 by
            Student's t over its questions, of which it needs 8. The query likelihoods must also make the scores
            likelier than chance would, by a likelihood ratio test against beta = 0.
        gold: for each question the index of the passage known to be right, or None; fits P(best) to how often that
            passage is the best (`temperature`).
        confidence_level: of the intervals.
        resamples: number of bootstrap samples of the questions.
        starts: number of random starts of the maximisation.
        folds: number of folds of held-out orderings.
        seed: of starts, folds and bootstrap.

    Raises:
        InputError: if there are fewer than 2 questions; if questions differ in N, L, reader or template (both are
            named); if a question has fewer than 3 orderings, or all together fewer than there are unknowns; if all
            scores are constant; if the contrast has another reader, template or number of places.
    """
    observed = []
    for q, scored in enumerate(scores):
        with located(f"scores: question {q}"):
            observed.append(observe(scored, kind, per_token=per_token, candidate=candidate))
    check_int("resamples", resamples, 20, MOST_RESAMPLES)
    check_int("starts", starts, 1, MOST_STARTS)
    check_int("folds", folds, 2)
    check_number("confidence_level", confidence_level, above=0, below=1)
    raw = _pooled(observed)
    first = observed[0]
    effects = _effects_of(contrast, first)
    size = float(np.sqrt((raw.centred**2).sum() / raw.rows.sum()))
    query = raw.query and bool(raw.z.any())
    z_size = float(np.sqrt(np.mean(raw.z**2))) if query else 1.0
    data = replace(raw, scores=raw.scores / size, z=raw.z / z_size, query=query)
    rng = random_generator(seed)
    best, rivals, beyond_chance = maximise(data, starts, rng)
    best, data = fit_with_noise(towards_convention(best, data), data)
    best = towards_convention(best, data)
    held = held_out(best, data, folds, rng)
    samples = bootstrap(best, data, resamples, rng)
    bias, tau = unit(best, data)
    biases = np.stack([unit(sample, data)[0] for sample in samples])
    evidence = beyond_chance if query else None
    sign, sign_z, contrast_z, flipped, why = decide(
        best, samples, bias, biases, query=evidence, effects=effects, questions=len(observed)
    )
    turn = -1.0 if flipped else 1.0
    tail = 100 * (1 - confidence_level) / 2
    reasons = []
    if not held.beyond_chance:
        reasons.append(f"held-out orderings do not show a bias beyond chance (R^2 {held.r2:.3f})")
    if rivals:
        reasons.append("other biases are as likely")
    found = PositionBias(
        bias=turn * bias,
        beta=turn * float(best[-2]) * tau * size / z_size,
        tau=tau * size,
        sigma=float(np.exp(best[-1] / 2)) * size,
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
        df=data.noise.df if np.isfinite(data.noise.df) else None,
        shared=data.noise.shared,
        reason="; ".join([*reasons, *([why] if why else [])]),
    )
    if gold is not None:
        found = replace(found, temperature=_temperature(found, observed, gold))
    return found


def _pooled(observed: list[Observations]) -> Pooled:
    """Stack the questions, once checked to be of one kind and to determine a bias."""
    expect(len(observed) >= 2, "scores", "at least 2 questions", len(observed))
    first = observed[0]
    for name, get in _MUST_AGREE.items():
        for q, o in enumerate(observed):
            differs = f"scores: question {q} has {name} {get(o)!r}, question 0 has {get(first)!r}"
            require(get(o) == get(first), differs)
    n = first.passages
    expect(n >= 3, "scores", "N >= 3 passages (the orderings of 2 cannot separate noise from utilities)", n)
    for q, o in enumerate(observed):
        expect(len(o) >= 3, f"scores: question {q}", "at least 3 orderings", len(o))
    pooled = pool(observed)
    unknowns = pooled.basis.shape[1] + 2
    differences = sum(len(o) - 1 for o in observed)
    require(
        differences > unknowns,
        f"scores: {differences + len(observed)} orderings of {len(observed)} questions give {differences} "
        f"differences, fewer than needed for {unknowns} unknowns",
    )
    require(
        not all(o.constant for o in observed),
        "scores: all orderings of every question scored the same, so no bias can be measured; a template that puts "
        "the question first does this to the question's log-likelihood",
    )
    return pooled


_NUMBERS = kind_of(npt.ArrayLike)
_MUST_AGREE: dict[str, Any] = {
    "passages N": lambda o: o.passages,
    "places L": lambda o: o.length,
    "reader": lambda o: o.reader.get("name", ""),
    "the reader's revision": lambda o: o.reader.get("revision", ""),
    "template": lambda o: o.template,
    "query likelihoods": lambda o: o.qg is not None,
}


def _effects_of(contrast: Probe | npt.ArrayLike | None, first: Observations) -> FloatArray | None:
    """Return the nats by place of a known passage, float64 [Q', L], or None without a contrast."""
    if contrast is None:
        return None
    effects = (
        contrast.effects
        if isinstance(contrast, Probe)
        else np.asarray(accept("contrast", contrast, _NUMBERS), dtype=np.float64)
    )
    fits = effects.ndim == 2 and effects.shape[1] == first.length and len(effects) > 1 and np.isfinite(effects).all()
    expected = f"finite nats [questions, {first.length} places] of at least 2 questions"
    expect(bool(fits), "contrast", expected, f"shape {list(effects.shape)}")
    if isinstance(contrast, Probe):
        wrong = differing("probe", contrast.reader, contrast.template, "scores", first.reader, first.template)
        require(not wrong, f"contrast: measured on something else than these scores: {'; '.join(wrong)}")
    return effects


def _temperature(bias: PositionBias, observed: list[Observations], gold: Sequence[int | None]) -> float:
    """Return the temperature at which P(best), from N orderings a question, makes the gold passages likeliest."""
    expect(len(gold) == len(observed), "gold", f"one entry for each of {len(observed)} questions", len(gold))
    chosen = []
    for q, (o, index) in enumerate(zip(observed, gold, strict=True)):
        if index is None:
            continue
        expect(0 <= index < o.passages, f"gold: question {q}", f"a passage in [0, {o.passages})", index)
        few = min(len(o), o.passages)
        part = replace(o, values=o.values[:few], permutations=o.permutations[:few])
        p_best = debias(part, bias).p_best
        assert p_best is not None  # of a calibrated solve
        chosen.append((p_best, index))
    expect(len(chosen) >= 2, "gold", "at least 2 questions with a gold passage", len(chosen))

    def loss(log_temperature: float) -> float:
        t = float(np.exp(log_temperature))
        return -float(np.mean([np.log(tempered(p, t if t != 1.0 else 1.0 + 1e-12)[i]) for p, i in chosen]))

    from scipy.optimize import minimize_scalar

    found: Any = minimize_scalar(loss, bounds=(np.log(0.2), np.log(20.0)), method="bounded")
    return float(np.exp(found.x))
