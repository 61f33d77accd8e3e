"""Conformal sets by hand, and their coverage in simulation."""

import numpy as np
import pytest
import torch

from fastreader.errors import InputError
from fastreader.statistics import ConformalSets, coverage


def test_a_threshold_by_hand():
    """Nine scores 1 - p of .1 to .9. At 80 % the ceil(10 x .8) = 8th smallest is .8, so p of at least .2 is in."""
    rows = [[p, 1 - p] for p in np.arange(1, 10) / 10]
    sets = ConformalSets.fit(rows, [0] * 9, 0.8)
    assert sets.threshold == pytest.approx(0.2) and sets.reachable and sets.num_questions == 9
    assert sets.set_of([0.2, 0.8]) == [1, 0] and sets.set_of([0.19, 0.81]) == [1]
    assert ConformalSets.fit(rows, [0] * 9, 0.9).threshold == pytest.approx(0.1)
    assert not ConformalSets.fit(rows, [0] * 9, 0.95).reachable
    assert ConformalSets.fit(rows, [0] * 9, 0.95).set_of([0.0, 1.0]) == [1, 0]


@pytest.mark.parametrize(("level", "n"), [(0.5, 19), (0.8, 99), (0.9, 19)])
@pytest.mark.long(keep=1)
def test_coverage_in_simulation(level, n):
    """With continuous scores the mean coverage is ceil((n + 1) level) / (n + 1), whatever the probabilities mean."""
    rng = np.random.default_rng(n)
    shares = []
    for _ in range(400):
        probabilities = rng.dirichlet(np.ones(4), n + 50)
        steps = probabilities[:, ::-1].cumsum(axis=1)  # a badly calibrated model
        right = (rng.random((n + 50, 1)) > steps[:, :-1]).sum(axis=1).tolist()
        sets = ConformalSets.fit(probabilities[:n].tolist(), right[:n], level)
        shares.append(coverage([sets.set_of(row) for row in probabilities[n:]], right[n:]))
    expected = np.ceil((n + 1) * level - 1e-9) / (n + 1)
    assert np.mean(shares) == pytest.approx(expected, abs=4 * np.std(shares) / 20)


def test_right_answers_that_are_no_candidate():
    sets = ConformalSets.fit([[0.9, 0.1]] * 6 + [[0.5, 0.5]] * 4, [0] * 6 + [None] * 4, 0.9)
    assert not sets.reachable and sets.set_of([1.0, 0.0]) == [0, 1]
    assert ConformalSets.fit([[0.9, 0.1]] * 9 + [[0.5, 0.5]], [0] * 9 + [None], 0.8).threshold == pytest.approx(0.9)
    assert coverage([[0], [1, 0]], [None, 0]) == 0.5
    assert sets.to_dict()["confidence_level"] == 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.5, 0.5]], [0, 1]), "right: expected one index for each of 1 questions"),
        (([[0.5, 0.5]], [2]), r"right\[0\]: expected an integer from 0 to 1"),
        (([[0.5, 1.5]], [0]), r"probabilities\[0\]: expected probabilities in"),
        (([[0.5]], [0], 1.0), "confidence_level: expected a finite number above 0 and below 1"),
    ],
)
def test_rejects(arguments, message):
    with pytest.raises(InputError, match=message):
        ConformalSets.fit(*arguments)


def test_a_tensor_with_a_gradient_is_refused():
    rows = [torch.tensor([0.5, 0.5], requires_grad=True)]
    for call in (
        lambda: ConformalSets.fit(rows, [0]),
        lambda: ConformalSets.fit([[0.5, 0.5]] * 9, [0] * 9).set_of(rows[0]),
    ):
        with pytest.raises(InputError, match="probabilities"):
            call()
