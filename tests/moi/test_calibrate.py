from dataclasses import replace

import numpy as np
import pytest
from lib.simulate import bias_shape, simulate

import fastreader as fr
from fastreader.errors import InputError
from fastreader.moi import Observations, PositionBias, Probe, calibrate, debias
from fastreader.moi.analyses import mean_bias
from fastreader.moi.solve.sign import decisive
from fastreader.permutations import cyclic, latin, pruned, random

QUICK = {"resamples": 40, "starts": 4}


def off(found, truth):
    return float(np.abs(found.bias - truth).max())


@pytest.mark.parametrize(("shape", "n"), [("decreasing", 3), ("u-shaped", 5), ("last-dominant", 10)])
def test_without_noise_bias_and_utilities_are_exact(shape, n):
    data = simulate(bias_shape(shape, n), 20, lambda s: random(n, None, s), sigma=0.0)
    found = calibrate(data.observations, **QUICK)
    assert off(found, data.bias) < 1e-6
    assert found.sign == "query_likelihood"
    assert found.r2 > 0.999
    assert found.identified
    assert not found.flat
    for o, truth in zip(data.observations, data.utilities, strict=True):
        assert debias(o, found).utility == pytest.approx(truth, abs=1e-5)


def test_with_noise_everything_is_found_within_its_error():
    data = simulate(bias_shape("last-dominant", 5), 60, lambda s: latin(5, 3, s), beta=1.5, tau=0.8, sigma=0.6, seed=4)
    found = calibrate(data.observations, resamples=100)
    assert np.linalg.norm(found.bias) == pytest.approx(1)
    assert found.bias.sum() == pytest.approx(0, abs=1e-12)
    assert off(found, data.bias) < 0.1
    inside = (found.intervals[:, 0] <= data.bias) & (data.bias <= found.intervals[:, 1])
    assert inside.sum() >= 4
    assert (found.beta, found.tau, found.sigma) == pytest.approx((1.5, 0.8, 0.6), rel=0.2)
    assert found.sign_z > 3
    assert 0.5 < found.r2 < 0.95
    assert found.inflation == pytest.approx(1.0, abs=0.15)
    assert (found.num_questions, found.num_orderings, found.length) == (60, 900, 5)


def test_prefixes():
    truth = np.array([0.8, 0.5, 0.33])
    truth /= np.linalg.norm(truth)
    data = simulate(truth, 20, lambda s: pruned(random(6, 24, s), 3), passages=6, sigma=0.0, query=False)
    found = calibrate(data.observations, **QUICK)
    assert off(found, truth) < 1e-6
    assert found.sign == "query_likelihood"  # a passage that is read counts for itself
    assert (found.num_passages, found.length) == (6, 3)


@pytest.mark.parametrize("query", [True, False])
@pytest.mark.long(keep=1)
def test_a_flat_bias_is_flagged_every_time(query):
    for seed in range(8):
        data = simulate(bias_shape("flat", 4), 12, lambda s: random(4, 12, s), sigma=0.5, query=query, seed=seed)
        found = calibrate(data.observations, resamples=20, starts=2, seed=seed)
        assert found.flat
        assert "beyond chance" in found.reason
        assert not debias(data.observations[0], found).identified


def test_cyclic_orderings_alone_do_not_identify_the_bias():
    data = simulate(bias_shape("last-dominant", 5), 30, lambda s: cyclic(5), sigma=0.1, query=False)
    found = calibrate(data.observations, **QUICK)
    assert found.flat or not found.identified
    assert not debias(data.observations[0], found).identified


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_cyclic_orderings_need_informative_query_likelihoods(beta):
    data = simulate(bias_shape("decreasing", 5), 40, lambda seed: cyclic(5), beta=beta, sigma=0.7, seed=0)
    found = calibrate(data.observations, resamples=20, starts=1, folds=2)
    assert found.identified == (beta > 0)  # chance agreement with query likelihoods shows no bias


def test_worthless_query_likelihoods_decide_no_sign_by_a_small_standard_error():
    """Scores drawn with beta = 0: of 6,000 such runs beta passed Student's t in 9, most reversed. This is one."""
    data = simulate(bias_shape("decreasing", 3), 12, lambda s: random(3, 6, s), beta=0.0, seed=719738503)
    found = calibrate(data.observations, resamples=50, starts=2, folds=2, seed=4366)
    assert found.sign_z > decisive(12)
    assert off(found, -data.bias) < off(found, data.bias)
    assert found.sign == "undetermined"


def test_a_likelier_fit_replaces_one_whose_utilities_the_query_likelihoods_fix():
    data = simulate(bias_shape("decreasing", 5), 12, lambda s: random(5, 6, s), beta=0.0, seed=2112420632)
    found = calibrate(data.observations, resamples=50, starts=2, folds=2, seed=3181)
    assert min(off(found, data.bias), off(found, -data.bias)) < 0.15
    assert found.tau > 0.5


def test_the_sign_is_undetermined_without_evidence():
    data = simulate(bias_shape("decreasing", 5), 15, lambda s: random(5, 15, s), query=False)
    found = calibrate(data.observations, **QUICK)
    assert found.sign == "undetermined"
    assert min(off(found, data.bias), off(found, -data.bias)) < 0.2
    utilities = debias(data.observations[0], found)
    assert "sign" in utilities.flags
    # Matched order is the same under either sign.
    turned = replace(found, bias=-found.bias)
    other = debias(data.observations[0], turned)
    assert (other.order("matched") == utilities.order("matched")).all()
    assert other.utility == pytest.approx(-utilities.utility)


def test_a_gold_contrast_decides_the_sign():
    truth = bias_shape("decreasing", 5)
    data = simulate(truth, 20, lambda s: random(5, 15, s), query=False)
    rng = np.random.default_rng(0)
    effects = 2 * truth + 0.3 * rng.normal(size=(12, 5))
    for contrast in (effects, Probe(effects - effects.mean(axis=1, keepdims=True))):
        found = calibrate(data.observations, contrast=contrast, **QUICK)
        assert found.sign == "gold_probe"
        assert off(found, truth) < 0.2
        assert found.contrast_z > 3
    turned = calibrate(data.observations, contrast=-effects, **QUICK)
    assert off(turned, -truth) < 0.2
    assert turned.beta <= 0
    noise = calibrate(data.observations, contrast=rng.normal(size=(12, 5)), **QUICK)
    assert noise.sign == "undetermined"


def test_when_contrast_and_convention_disagree_the_sign_is_undetermined():
    truth = bias_shape("decreasing", 5)
    data = simulate(truth, 20, lambda s: random(5, 15, s))
    found = calibrate(data.observations, contrast=-truth + 0.01 * np.random.default_rng(0).normal(size=(9, 5)), **QUICK)
    assert found.sign == "undetermined"
    assert "disagree" in found.reason


def test_few_noisy_contrasts_do_not_decide():
    """Of 3 questions a noise contrast passes 3 standard errors in one run of ten. 8 are needed, and Student's t."""
    truth = bias_shape("decreasing", 4)
    data = simulate(truth, 12, lambda s: random(4, 12, s), query=False)
    fitted = calibrate(data.observations, **QUICK)
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(400, 3, 4))
    each = noise @ fitted.bias
    z = np.abs(each.mean(axis=1)) / (each.std(axis=1, ddof=1) / np.sqrt(3))
    found = calibrate(data.observations, contrast=noise[z.argmax()], **QUICK)
    assert abs(found.contrast_z) > 20
    assert found.sign == "undetermined"
    assert "neither" in found.reason
    for q in (8, 12, 40):
        draws = rng.normal(size=(100_000, q))
        t = draws.mean(axis=1) / (draws.std(axis=1, ddof=1) / np.sqrt(q))
        assert (t > decisive(q)).mean() == pytest.approx(5e-4, abs=2.5e-4)
    assert decisive(7) == np.inf


def test_the_convention_needs_questions_too():
    data = simulate(bias_shape("decreasing", 4), 7, lambda s: random(4, 12, s), sigma=0.1, beta=3.0)
    found = calibrate(data.observations, **QUICK)
    assert found.sign_z > 5
    assert found.sign == "undetermined"


def test_a_contrast_of_something_else_raises_and_both_are_named():
    data = simulate(bias_shape("decreasing", 4), 6, lambda s: random(4, 8, s))
    scores = [replace(o, reader={"name": "one"}, template="t1") for o in data.observations]
    effects = np.random.default_rng(0).normal(size=(9, 4))
    with pytest.raises(InputError, match="reader: probe 'two', scores 'one'"):
        calibrate(scores, contrast=Probe(effects, reader={"name": "two"}, template="t1"))
    with pytest.raises(InputError, match="template: probe 't2', scores 't1'"):
        calibrate(scores, contrast=Probe(effects, reader={"name": "one"}, template="t2"))
    assert calibrate(scores, contrast=Probe(effects, reader={"name": "one"}, template="t1"), **QUICK).contrast_z


@pytest.mark.long
def test_gold_passages_temper_p_best():
    data = simulate(bias_shape("decreasing", 4), 40, lambda s: random(4, 12, s), sigma=0.3)
    rng = np.random.default_rng(0)
    best = [int(v.argmax()) for v in data.utilities]
    random_gold = [int(rng.integers(4)) for _ in best]
    sure = calibrate(data.observations, gold=best, **QUICK)
    unsure = calibrate(data.observations, gold=random_gold, **QUICK)
    assert sure.temperature < 2 < unsure.temperature
    o = data.observations[0]
    assert debias(o, unsure).p_best.max() < debias(o, sure).p_best.max()
    with pytest.raises(InputError, match="one entry for each"):
        calibrate(data.observations, gold=[0], **QUICK)
    with pytest.raises(InputError, match="question 0: expected a passage"):
        calibrate(data.observations, gold=[4] * 40, **QUICK)


def test_bad_input():
    good = simulate(bias_shape("decreasing", 4), 6, lambda s: random(4, 8, s)).observations
    other = simulate(bias_shape("decreasing", 5), 1, lambda s: random(5, 8, s)).observations
    with pytest.raises(InputError, match="at least 2 questions"):
        calibrate(good[:1])
    with pytest.raises(InputError, match="question 6 has passages N 5, question 0 has 4"):
        calibrate(good + other)
    named = [replace(o, reader={"name": "a"}) for o in good]
    with pytest.raises(InputError, match="question 6 has reader 'b'"):
        calibrate([*named, replace(good[0], reader={"name": "b"})])
    with pytest.raises(InputError, match="question 6 has template 'x'"):
        calibrate([*good, replace(good[0], template="x")])
    with pytest.raises(InputError, match="question 6 has query likelihoods False"):
        calibrate([*good, replace(good[0], qg=None)])
    with pytest.raises(InputError, match="fewer than needed for 5 unknowns"):
        calibrate([replace(o, values=o.values[:3], permutations=o.permutations[:3]) for o in good[:2]])
    with pytest.raises(InputError, match="scores: question 1: expected at least 3 orderings, got 2"):
        calibrate([good[0], replace(good[1], values=good[1].values[:2], permutations=good[1].permutations[:2])])
    with pytest.raises(InputError, match=r"scores: expected N >= 3 passages .*, got 2"):
        calibrate(simulate(bias_shape("decreasing", 2), 3, lambda s: random(2, 2, s)).observations)
    with pytest.raises(InputError, match="scored the same"):
        calibrate([replace(o, values=np.full(8, -3.0)) for o in good])
    with pytest.raises(InputError, match="contrast"):
        calibrate(good, contrast=np.zeros((3, 5)), **QUICK)
    with pytest.raises(InputError, match="resamples"):
        calibrate(good, resamples=1)


def test_a_calibration_survives_its_file(tmp_path):
    data = simulate(bias_shape("decreasing", 4), 6, lambda s: random(4, 8, s))
    found = replace(calibrate(data.observations, **QUICK), measured_on={"rows": [1, 2]})
    found.save(tmp_path / "bias.json")
    again = PositionBias.load(tmp_path / "bias.json")
    assert again.to_dict() == found.to_dict()
    with pytest.raises(InputError, match=r"absent.json: cannot be read \(No such file"):
        PositionBias.load(tmp_path / "absent.json")
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(InputError, match=r"expected an object with keys and values, got \[1\]"):
        PositionBias.load(tmp_path / "other.json")
    with pytest.raises(InputError, match=r"from_dict.*missing"):
        PositionBias.from_dict({"bias": [1.0]})
    figure = found.plot(tmp_path / "bias.png")
    assert (tmp_path / "bias.png").stat().st_size > 1000
    assert "N = 4" in figure.axes[0].get_title()


@pytest.mark.parametrize("seed", [4, 11, 127])
def test_few_orderings_do_not_inflate_the_utilities(seed):
    # Fewer orderings than passages fit exactly, whatever the bias: rounding alone must not look like a likelihood.
    data = simulate(bias_shape("decreasing", 7), 8, lambda s: random(7, 4, s), beta=0.1, sigma=0.5, seed=seed)
    found = calibrate(data.observations, resamples=20, starts=1, folds=2, seed=seed)
    assert found.tau < 5 * max(float(o.values.std()) for o in data.observations)


def test_the_same_input_gives_the_same_calibration():
    data = simulate(bias_shape("decreasing", 4), 6, lambda s: random(4, 8, s))
    assert calibrate(data.observations, **QUICK).to_dict() == calibrate(data.observations, **QUICK).to_dict()


def test_observations_of_unequal_counts():
    rows = iter([24, 6, 11, 24, 9, 18, 7, 13])
    data = simulate(bias_shape("decreasing", 4), 8, lambda s: random(4, next(rows), s), sigma=0.0)
    assert off(calibrate(data.observations, **QUICK), data.bias) < 1e-6
    assert isinstance(data.observations[0], Observations)


def test_an_error_names_its_question(tiny_reader):
    passages = [fr.Passage(text) for text in ("Red.", "Green.", "Blue.")]
    scores = [
        fr.score_permutations(tiny_reader, f"Which {w}?", passages, question_only=True, permutations="random")
        for w in ("one", "two", "three")
    ]
    scores[1] = replace(scores[1], question_logprobs=np.full(6, np.nan))
    finite = r"scores: question 1: Observations.values\[0\]: expected a finite number, got nan"
    with pytest.raises(InputError, match=finite):
        calibrate(scores)
    with pytest.raises(InputError, match=finite):
        mean_bias(scores)
