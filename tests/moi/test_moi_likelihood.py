import numpy as np
import pytest
from lib.simulate import bias_shape, simulate
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal

from fastreader.moi.solve.likelihood import contrasts, negative_log_likelihood, pool
from fastreader.permutations import pruned, random


def brute(theta, b, s, observed, drop=()):
    """Minus the density that scipy gives to the contrasts of one question's scores, less its constant."""
    rows = [i for i in range(len(observed)) if i not in drop]
    x = np.zeros((len(rows), observed.passages))
    for at, i in enumerate(rows):
        for place, passage in enumerate(observed.permutations[i]):
            x[at, passage] = theta[place]
    z = observed.qg - observed.qg.mean()
    h = contrasts(len(rows)).T
    density = multivariate_normal(h @ (b * x @ z), h @ (x @ x.T + s * np.eye(len(rows))) @ h.T)
    return -density.logpdf(h @ observed.values[rows]) - 0.5 * (len(rows) - 1) * np.log(2 * np.pi)


@pytest.mark.parametrize(("n", "length"), [(5, 5), (6, 3), (4, 4)])
def test_value_and_gradient(n, length):
    bias = np.linspace(0.2, 1, length)
    rows = iter([12, 7, 9])
    data = simulate(bias, 3, lambda s: pruned(random(n, next(rows), s), length), passages=n)
    pooled, weights = pool(data.observations), np.array([1.0, 2.0, 0.5])
    basis = pooled.basis
    parameters = np.random.default_rng(1).normal(size=basis.shape[1] + 2)

    def f(p):
        return negative_log_likelihood(p, pooled, weights)

    theta, b, s = basis @ parameters[:-2], parameters[-2], np.exp(parameters[-1])
    expected = sum(w * brute(theta, b, s, o) for w, o in zip(weights, data.observations, strict=True))
    value, gradient = f(parameters)
    assert value == pytest.approx(expected, rel=1e-9)
    assert gradient == pytest.approx(approx_fprime(parameters, lambda p: f(p)[0], 1e-6), rel=1e-4, abs=1e-3)


def test_rows_left_out_do_not_count():
    data = simulate(bias_shape("decreasing", 4), 2, lambda s: random(4, 10, s))
    pooled = pool(data.observations)
    basis = pooled.basis
    rows = np.ones((2, 10), dtype=bool)
    rows[:, [0, 4, 9]] = False
    kept = pooled.keep(rows)
    parameters = np.array([0.3, -0.4, 0.8, 1.1, -0.7])
    value, _ = negative_log_likelihood(parameters, kept, np.ones(2))
    expected = sum(brute(basis @ parameters[:3], 1.1, np.exp(-0.7), o, (0, 4, 9)) for o in data.observations)
    assert value == pytest.approx(expected, rel=1e-9)
