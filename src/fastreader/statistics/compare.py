"""The table of a study: means of conditions with intervals, contrasts with baselines, corrected p values."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import expect
from fastreader.data.record import Record
from fastreader.statistics.checks import numbers
from fastreader.statistics.effects import cohens_d, discordant_odds_ratio, minimum_detectable_effect
from fastreader.statistics.intervals import Interval, bootstrap, paired_bootstrap, wilson
from fastreader.statistics.significance import holm, mcnemar, sign_flip, wilcoxon

Outcomes = Mapping[str, Mapping[Any, float]]  # by condition, then by question
Clusters = Mapping[Any, Hashable]


@checked_methods
@dataclass(frozen=True)
class Condition:
    """One condition's outcomes.

    Attributes:
        name: of the condition.
        n: number of questions with an outcome.
        bootstrap: mean, with an interval that draws clusters.
        wilson: the same mean with Wilson's interval, which treats questions as independent; None unless all outcomes
            are 0 or 1.
    """

    name: str
    n: int
    bootstrap: Interval
    wilson: Interval | None


@checked_methods
@dataclass(frozen=True)
class Contrast:
    """A condition against its baseline, over the questions that have an outcome in both.

    Attributes:
        name, baseline: the conditions.
        n: number of pairs.
        difference: mean of condition - baseline, with an interval that draws clusters of pairs.
        wilcoxon, mcnemar: p values that treat pairs as independent; mcnemar is None unless all outcomes are 0 or 1.
        test: the reported test: "sign flip" if pairs share a cluster, else "McNemar" if all outcomes are 0 or 1, else
            "Wilcoxon".
        p: of that test.
        p_holm: `p` corrected over all contrasts but the primary one, which needs no correction; several primary ones
            are corrected over each other.
        cohens_d: None if it is NaN.
        odds_ratio: of the pairs that differ; None unless all outcomes are 0 or 1.
        minimum_detectable_effect: at power 0.8 by an uncorrected test with alpha 1 - confidence_level, clustered; None
            if the differences have no spread.
        primary: whether this contrast was stated beforehand.
    """

    name: str
    baseline: str
    n: int
    difference: Interval
    wilcoxon: float
    mcnemar: float | None
    test: str
    p: float
    p_holm: float
    cohens_d: float | None
    odds_ratio: Interval | None
    minimum_detectable_effect: float | None
    primary: bool


@checked_methods
@dataclass(frozen=True)
class Comparison(Record):
    """The result of `compare`: `conditions` in the given order, `contrasts` of those that have a baseline."""

    conditions: list[Condition]
    contrasts: list[Contrast]


@checked
def compare(
    outcomes: Outcomes,
    baselines: str | Mapping[str, str],
    *,
    clusters: Clusters | None = None,
    primary: str | Collection[str] | None = None,
    confidence_level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare conditions on the same questions.

    Args:
        outcomes: for each condition its outcome by question; a condition may lack some questions.
        baselines: the baseline of all other conditions, or for each condition its own; a condition without a baseline
            only gets its mean.
        clusters: for each question the label of its cluster, such as its gold passage; a question without a label is
            its own cluster.
        primary: the condition whose contrast was stated beforehand; it is not corrected, and the correction of the
            others does not count it. Several primary conditions are a separate family.
        confidence_level, resamples, seed: as in `bootstrap`.

    Raises:
        InputError: if there is no condition, a condition has no outcomes, a baseline or primary condition is unknown,
            or a condition and its baseline have no question in common.
    """
    expect(bool(outcomes), "outcomes", "at least one condition", outcomes)
    pairs = _pairs(outcomes, baselines)
    stated = () if primary is None else (primary,) if isinstance(primary, str) else tuple(primary)
    for name in stated:
        expect(name in pairs, "primary", f"a condition with a baseline ({', '.join(pairs)})", name)
    options: dict[str, Any] = {"confidence_level": confidence_level, "resamples": resamples, "seed": seed}
    conditions = []
    for name, by_question in outcomes.items():
        values = numbers(f"outcomes[{name!r}]", list(by_question.values()))
        labels = _labels(list(by_question), clusters)
        share = wilson(int(values.sum()), len(values), confidence_level) if _binary(values) else None
        conditions.append(Condition(name, len(values), bootstrap(values, clusters=labels, **options), share))
    contrasts = [
        _contrast(outcomes, name, baseline, clusters, name in stated, options) for name, baseline in pairs.items()
    ]
    return Comparison(conditions, _corrected(contrasts))


def _pairs(outcomes: Outcomes, baselines: str | Mapping[str, str]) -> dict[str, str]:
    named = [baselines] if isinstance(baselines, str) else [name for pair in baselines.items() for name in pair]
    for name in named:
        expect(name in outcomes, "baselines", f"conditions among {', '.join(outcomes)}", name)
    if isinstance(baselines, str):
        baselines = {name: baselines for name in outcomes if name != baselines}
    return {name: baselines[name] for name in outcomes if name in baselines}


def _contrast(
    outcomes: Outcomes, name: str, baseline: str, clusters: Clusters | None, primary: bool, options: dict[str, Any]
) -> Contrast:
    shared = [question for question in outcomes[name] if question in outcomes[baseline]]
    expect(bool(shared), "outcomes", f"a question that {name!r} and {baseline!r} have in common", shared)
    a = [outcomes[name][question] for question in shared]
    b = [outcomes[baseline][question] for question in shared]
    labels = _labels(shared, clusters)
    binary = _binary(a) and _binary(b)
    p_wilcoxon, p_mcnemar = wilcoxon(a, b), mcnemar(a, b) if binary else None
    test, p = ("Wilcoxon", p_wilcoxon) if p_mcnemar is None else ("McNemar", p_mcnemar)
    if labels is not None and len(set(labels)) < len(labels):
        test, p = "sign flip", sign_flip(a, b, clusters=labels, seed=options["seed"])
    return Contrast(
        name=name,
        baseline=baseline,
        n=len(shared),
        difference=paired_bootstrap(a, b, clusters=labels, **options),
        wilcoxon=p_wilcoxon,
        mcnemar=p_mcnemar,
        test=test,
        p=p,
        p_holm=p,
        cohens_d=_finite(cohens_d(a, b)),
        odds_ratio=discordant_odds_ratio(a, b, options["confidence_level"]) if binary else None,
        minimum_detectable_effect=_finite(
            minimum_detectable_effect(a, b, clusters=labels, confidence_level=options["confidence_level"])
        ),
        primary=primary,
    )


def _corrected(contrasts: list[Contrast]) -> list[Contrast]:
    """Apply Holm's correction to the reported p of each contrast, primary contrasts and others separately."""
    families = {primary: iter(holm([c.p for c in contrasts if c.primary is primary])) for primary in (True, False)}
    return [replace(c, p_holm=next(families[c.primary])) for c in contrasts]


def _labels(questions: list[Hashable], clusters: Clusters | None) -> list[Hashable] | None:
    if clusters is None:
        return None
    return [("cluster", clusters[q]) if clusters.get(q) is not None else ("question", q) for q in questions]


def _binary(values: Any) -> bool:
    return all(value in (0, 1) for value in values)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
