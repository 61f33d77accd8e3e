from dataclasses import replace

import numpy as np
import pytest
from lib.simulate import bias_shape, simulate
from scipy.linalg import helmert
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal, multivariate_t, t
from test_debias import known

from fastreader.errors import InputError
from fastreader.moi import PositionBias, calibrate, debias
from fastreader.moi.quantities.score_noise import (
    Noise,
    correlations,
    covariance,
    log_determinant,
    shared_places,
    whitener,
)
from fastreader.moi.solve.held_out import predict
from fastreader.moi.solve.likelihood import negative_log_likelihood, pool
from fastreader.permutations import latin, prefix_sharing, random

SHARED = correlations(0.6, 0.5, 5)
PARAMETERS = np.array([0.6, -0.3, 0.2, 0.4, 0.3, np.log(0.4)])


def drawn(questions, design, **more):
    return simulate(bias_shape("last-dominant", 5), questions, design, tau=1.0, sigma=0.8, **more)


def unequal():
    counts = iter([9, 6, 12])
    return pool(drawn(3, lambda s: random(5, next(counts), s), seed=3).observations)


def test_what_orderings_share():
    rows = prefix_sharing(5, 10).permutations
    count = shared_places(rows)
    for i in range(10):
        for j in range(10):
            same = rows[i] == rows[j]
            assert count[i, j] == (5 if same.all() else int(same.argmin()))
    assert correlations(0.5, 0.5, 3).tolist() == [0.0, 0.25, 0.375]
    assert covariance(rows, None) == pytest.approx(np.eye(10))


def test_whitening_leaves_independent_contrasts():
    noise = covariance(random(5, 9, 1).permutations, SHARED)
    white = whitener(noise, np.ones(9, dtype=bool))
    product = white @ noise @ white.T
    assert product @ product == pytest.approx(product)  # a projection
    assert np.trace(product) == pytest.approx(8)
    assert white @ np.ones(9) == pytest.approx(np.zeros(9))
    assert whitener(np.eye(9), np.ones(9, dtype=bool)) == pytest.approx(np.eye(9) - 1 / 9)
    rows = np.arange(9) < 6
    assert whitener(noise, rows)[:6, :6] == pytest.approx(whitener(noise[:6, :6], np.ones(6, dtype=bool)))


@pytest.mark.parametrize("df", [np.inf, 3.5])
@pytest.mark.parametrize("shared", [None, SHARED])
def test_the_likelihood_is_that_of_a_t_on_the_contrasts(df, shared):
    """Differences of values must agree, since a constant of the data is left out. So must the gradient."""
    noise, other = Noise(df, shared), PARAMETERS + np.array([0.1, 0.2, -0.3, 0.0, 0.2, 0.5])
    data = unequal().with_noise(noise)

    def direct(parameters):
        theta, total = data.basis @ parameters[:-2], 0.0
        for q, count in enumerate(data.counts.tolist()):
            contrasts = helmert(count)
            x = theta[data.place[q, :count]]
            mean = parameters[-2] * x @ (helmert(5).T @ data.z[q])
            each = (
                np.exp(parameters[-1]) * covariance(data.permutations[q, :count], shared) + x @ (np.eye(5) - 0.2) @ x.T
            )
            spread, y = contrasts @ each @ contrasts.T, contrasts @ (data.scores[q, :count] - mean)
            total -= (
                multivariate_normal.logpdf(y, cov=spread)
                if np.isinf(df)
                else multivariate_t.logpdf(y, shape=spread, df=df)
            )
        return total

    ones = np.ones(3)
    values = [negative_log_likelihood(p, data, ones)[0] for p in (PARAMETERS, other)]
    assert values[0] - values[1] == pytest.approx(direct(PARAMETERS) - direct(other), abs=1e-8)
    gradient = approx_fprime(PARAMETERS, lambda p: negative_log_likelihood(p, data, ones)[0], 1e-6)
    assert negative_log_likelihood(PARAMETERS, data, ones)[1] == pytest.approx(gradient, abs=1e-3)


def test_the_part_of_the_noise_alone_is_its_determinant():
    data, ones = unequal(), np.ones(3)
    values = []
    for shared in (None, SHARED):
        extent = 0.5 * log_determinant(covariance(data.permutations, shared), data.rows).sum()
        nothing = np.append(np.zeros(4), [0.0, 0.0])  # scores of noise only, sigma 1
        values.append(negative_log_likelihood(nothing, data.with_noise(Noise(shared=shared)), ones)[0] + extent)
    direct = 0.0
    for q, count in enumerate(data.counts.tolist()):
        contrasts, y = helmert(count), data.scores[q, :count]
        for sign, shared in ((1, None), (-1, SHARED)):
            each = contrasts @ covariance(data.permutations[q, :count], shared) @ contrasts.T
            direct -= sign * multivariate_normal.logpdf(contrasts @ y, cov=each)
    assert values[0] - values[1] == pytest.approx(direct, abs=1e-8)


@pytest.mark.parametrize("shared", [None, SHARED])
def test_predictions_are_those_of_conditioning(shared):
    data = unequal().with_noise(Noise(4.0, shared))
    kept = np.tile(np.arange(12) % 3 != 0, (3, 1))
    found = predict(PARAMETERS, data, kept)
    theta = data.basis @ PARAMETERS[:-2]
    for q, count in enumerate(data.counts.tolist()):
        x, inside = theta[data.place[q, :count]], kept[q, :count]
        joint = np.exp(PARAMETERS[-1]) * covariance(data.permutations[q, :count], shared) + x @ (np.eye(5) - 0.2) @ x.T
        joint = joint + 1e6  # a constant that nobody knows
        y = data.scores[q, :count] - PARAMETERS[-2] * x @ (helmert(5).T @ data.z[q])
        gain = joint[~inside][:, inside] @ np.linalg.inv(joint[inside][:, inside])
        mean = data.scores[q, :count][~inside] - y[~inside] + gain @ y[inside]
        variance = np.diag(joint[~inside][:, ~inside] - gain @ joint[inside][:, ~inside])
        form = y[inside] @ np.linalg.inv(joint[inside][:, inside]) @ y[inside]
        form -= y[inside].mean() ** 2 / 1e6  # what the vague constant adds
        assert found.mean[q, :count][~inside] == pytest.approx(mean, abs=1e-3)
        assert found.df[q] == 4 + inside.sum() - 1
        widened = (4 + form) / found.df[q]
        assert found.scale[q, :count][~inside] ** 2 == pytest.approx(widened * variance, rel=2e-3)
    assert not found.mean[kept].any()


@pytest.mark.long
def test_calibrate_finds_scales_and_shared_noise():
    data = drawn(150, lambda s: random(5, 15, s), df=4.0, shared=correlations(0.6, 0.3, 5), seed=1)
    found = calibrate(data.observations, resamples=20, starts=1, folds=3)
    assert 2.5 < found.df < 7
    assert found.shared == pytest.approx(correlations(0.6, 0.3, 5), abs=0.12)
    assert found.sigma == pytest.approx(0.8, rel=0.2)
    assert float(found.bias @ data.bias) > 0.99
    plain = calibrate(drawn(150, lambda s: random(5, 15, s), seed=1).observations, resamples=20, starts=1, folds=3)
    assert plain.df > 15
    assert plain.shared.max() < 0.15
    exact = simulate(data.bias, 20, lambda s: random(5, 15, s), sigma=0.0)
    assert calibrate(exact.observations, resamples=20, starts=1).df is None  # there is no noise to describe


@pytest.mark.long
def test_intervals_cover_in_quiet_and_in_noisy_questions():
    n, shared = 5, correlations(0.6, 0.4, 5)
    data = simulate(
        bias_shape("last-dominant", n), 1200, lambda s: random(n, 10, s), beta=0.5, sigma=0.8, df=4.0, shared=shared
    )
    rms = np.array([o.values.std() for o in data.observations])
    quarter = np.searchsorted(np.quantile(rms, [0.25, 0.5, 0.75]), rms)

    def coverage(bias):
        found = [debias(o, bias) for o in data.observations]
        inside = [
            (u.intervals[:, 0] <= v) & (v <= u.intervals[:, 1]) for u, v in zip(found, data.utilities, strict=True)
        ]
        return np.array([np.mean([i for i, k in zip(inside, quarter, strict=True) if k == q]) for q in range(4)])

    right = known(data.bias, beta=0.5, sigma=0.8, df=4.0, shared=shared)
    assert coverage(right) == pytest.approx(np.full(4, 0.95), abs=0.02)
    assert coverage(replace(right, df=None, shared=None)).min() < 0.9  # one sigma for all questions does not


@pytest.mark.parametrize("design", [lambda: random(5, 9, 1), lambda: latin(5, 2, 1), lambda: prefix_sharing(5, 15)])
def test_the_posterior_under_shared_noise_is_that_of_conditioning(design):
    bias = known(bias_shape("decreasing", 5), beta=0.7, tau=1.3, sigma=0.4, shared=SHARED)
    o = simulate(bias.bias, 1, lambda s: design(), seed=5).observations[0]
    x = np.zeros((len(o), 5))
    for i, row in enumerate(o.permutations):
        x[i, row] = bias.bias
    z = o.qg - o.qg.mean()
    gain = 1.3**2 * x.T @ np.linalg.inv(1.3**2 * x @ x.T + 0.4**2 * covariance(o.permutations, SHARED) + 1e7)
    mean = 0.7 * z + gain @ (o.values - o.values.mean() - 0.7 * x @ z)
    spread = 1.3**2 * (np.eye(5) - gain @ x)
    centre = np.eye(5) - 0.2
    found = debias(o, bias)
    assert found.utility == pytest.approx(centre @ mean, abs=1e-5)
    assert found.covariance == pytest.approx(centre @ spread @ centre, abs=1e-5)
    scaled = debias(o, replace(bias, df=4.0))
    df = 4 + len(o) - 1
    half = (scaled.intervals[:, 1] - scaled.utility) / t.ppf(0.975, df)
    assert scaled.utility == pytest.approx(found.utility)
    assert half**2 * df / (df - 2) == pytest.approx(np.diag(scaled.covariance))
    assert scaled.p_best.sum() == pytest.approx(1)


def test_rotations_share_nothing_so_their_fourier_solve_is_unchanged():
    bias = known(bias_shape("decreasing", 5))
    o = simulate(bias.bias, 1, lambda s: latin(5, 1, s)).observations[0]
    shared = replace(bias, shared=SHARED)
    assert debias(o, shared, solver="fft").utility == pytest.approx(debias(o, bias).utility)
    assert debias(o, shared, solver="dense").covariance == pytest.approx(debias(o, bias).covariance)


def test_an_error_of_the_bias_adds_as_much_under_shared_noise_as_its_derivative_says():
    bias = known(bias_shape("decreasing", 5), shared=SHARED, covariance=0.01 * (np.eye(5) - 0.2))
    o = simulate(bias.bias, 1, lambda s: random(5, 15, s)).observations[0]
    without = replace(bias, covariance=np.zeros((5, 5)))
    step, slopes = 1e-5, []
    for j in range(5):
        moved = replace(without)
        object.__setattr__(moved, "bias", moved.bias + step * np.eye(5)[j])
        slopes.append((debias(o, moved).utility - debias(o, without).utility) / step)
    slope = np.array(slopes).T
    added = debias(o, bias).covariance - debias(o, without).covariance
    assert added == pytest.approx(slope @ bias.covariance @ slope.T, abs=1e-4)


def test_noise_survives_a_file_and_is_checked(tmp_path):
    bias = known(bias_shape("decreasing", 5), df=4.0, shared=SHARED)
    bias.save(tmp_path / "bias.json")
    again = PositionBias.load(tmp_path / "bias.json")
    assert (again.df, again.shared.tolist()) == (4.0, SHARED.tolist())
    older = {key: value for key, value in bias.to_dict().items() if key not in ("df", "shared")}
    assert PositionBias.from_dict(older).noise.plain
    with pytest.raises(InputError, match=r"PositionBias.df: expected .* above 0"):
        replace(bias, df=0.0)
    with pytest.raises(InputError, match=r"PositionBias.shared: expected shape \[5\]"):
        replace(bias, shared=[0.1])
    with pytest.raises(InputError, match="correlations between -1 and 1"):
        replace(bias, shared=np.ones(5))
