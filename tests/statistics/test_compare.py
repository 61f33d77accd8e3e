"""A study's table against its parts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fastreader.errors import InputError
from fastreader.statistics import bootstrap, compare, holm, mcnemar, paired_bootstrap, sign_flip, wilcoxon, wilson


@pytest.fixture
def outcomes():
    generator = np.random.default_rng(0)
    return {
        name: {f"q{i}": int(generator.random() < share) for i in range(60)}
        for name, share in (("gold", 0.6), ("noise", 0.4), ("random", 0.7), ("closed", 0.1))
    }


def test_each_number_equals_its_function(outcomes):
    clusters = {f"q{i}": i // 2 for i in range(60)}
    result = compare(outcomes, "gold", clusters=clusters)
    values = list(outcomes["noise"].values())
    assert [c.name for c in result.conditions] == ["gold", "noise", "random", "closed"]
    assert result.conditions[1].wilson == wilson(sum(values), 60)
    assert result.conditions[1].bootstrap == bootstrap(values, clusters=[i // 2 for i in range(60)])
    contrasts = {c.name: c for c in result.contrasts}
    assert list(contrasts) == ["noise", "random", "closed"]
    base = list(outcomes["gold"].values())
    assert contrasts["noise"].difference == paired_bootstrap(values, base, clusters=[i // 2 for i in range(60)])
    raw = [mcnemar(list(outcomes[name].values()), base) for name in contrasts]
    assert [c.mcnemar for c in result.contrasts] == raw
    assert [c.wilcoxon for c in result.contrasts] == [wilcoxon(list(outcomes[n].values()), base) for n in contrasts]
    flips = [sign_flip(list(outcomes[name].values()), base, clusters=[i // 2 for i in range(60)]) for name in contrasts]
    assert [c.test for c in result.contrasts] == ["sign flip"] * 3 and [c.p for c in result.contrasts] == flips
    assert [c.p_holm for c in result.contrasts] == holm(flips)
    json.dumps(result.to_dict(), allow_nan=False)


def test_primary_contrast_is_not_corrected(outcomes):
    result = compare(outcomes, "gold", primary="random")
    primary = next(c for c in result.contrasts if c.primary)
    others = [c for c in result.contrasts if not c.primary]
    assert primary.name == "random"
    assert primary.p_holm == primary.p == primary.mcnemar
    assert [c.p_holm for c in others] == holm([c.mcnemar for c in others])


def test_mixed_outcomes_are_corrected_together():
    """Six McNemar and two Wilcoxon p values are eight tests, not six and two."""
    generator = np.random.default_rng(1)
    base = {i: float(generator.random() < 0.3) for i in range(80)}
    columns = {f"right {s}": {i: float(generator.random() < s) for i in base} for s in (0.4, 0.45, 0.5, 0.55, 0.6, 0.7)}
    columns |= {f"f1 {s}": {i: s * float(generator.random()) for i in base} for s in (0.8, 1.0)}
    result = compare({"base": base, **columns}, "base")
    assert [c.test for c in result.contrasts] == ["McNemar"] * 6 + ["Wilcoxon"] * 2
    reported = [c.mcnemar if c.test == "McNemar" else c.wilcoxon for c in result.contrasts]
    assert [c.p for c in result.contrasts] == reported and [c.p_holm for c in result.contrasts] == holm(reported)
    least = min(result.contrasts, key=lambda c: c.p)
    assert least.p_holm == pytest.approx(8 * least.p)


def test_pairs_are_the_shared_questions(outcomes):
    del outcomes["noise"]["q0"], outcomes["gold"]["q1"]
    result = compare(outcomes, {"noise": "gold", "closed": "random"})
    assert [(c.name, c.baseline, c.n) for c in result.contrasts] == [("noise", "gold", 58), ("closed", "random", 60)]
    assert result.conditions[1].n == 59


def test_question_without_label_is_its_own_cluster(outcomes):
    alone = compare(outcomes, "gold", clusters={"q0": None})
    assert alone == compare(outcomes, "gold")


def test_outcomes_that_are_not_binary():
    result = compare({"a": {1: 0.5, 2: 0.25}, "b": {1: 0.25, 2: 0.5}}, "b")
    assert result.conditions[0].wilson is None
    assert result.contrasts[0].mcnemar is None and result.contrasts[0].test == "Wilcoxon"
    assert result.contrasts[0].odds_ratio is None


def test_several_primary_contrasts_form_a_family(outcomes):
    more = {**outcomes, **{f"{name} again": outcomes[name] for name in outcomes if name != "gold"}}
    names = [name for name in outcomes if name != "gold"]
    result = compare(more, "gold", primary=names)
    assert [c.name for c in result.contrasts if c.primary] == names
    for stated in (True, False):
        own = [c for c in result.contrasts if c.primary is stated]
        assert len(own) > 1 and [c.p_holm for c in own] == holm([c.p for c in own])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: compare({}, "gold"), "at least one condition"),
        (lambda o: compare(o, "golden"), "conditions among gold, noise.*got 'golden'"),
        (lambda o: compare(o, {"noise": "nothing"}), "baselines: .*got 'nothing'"),
        (lambda o: compare(o, "gold", primary="gold"), "primary: expected .*got 'gold'"),
        (lambda o: compare({**o, "empty": {}}, "gold"), r"outcomes\['empty'\]: expected a list of at least one"),
        (lambda o: compare({**o, "other": {"x": 1}}, "gold"), "a question that 'other' and 'gold' have in common"),
    ],
)
def test_bad_input(outcomes, call, message):
    with pytest.raises(InputError, match=message):
        call(outcomes)
