import numpy as np
import pytest
from lib.simulate import SHAPES, bias_shape
from test_debias import known

from fastreader.errors import InputError
from fastreader.moi import Observations, debias
from fastreader.moi.quantities.designs import cyclic_for, prefixes
from fastreader.moi.solve.cyclic import layout
from fastreader.permutations import cyclic, model_rank, random


@pytest.mark.parametrize("n", [3, 4, 6, 10, 20])
@pytest.mark.parametrize("shape", [s for s in SHAPES if s != "flat"])
def test_every_passage_stands_at_every_place_once_and_all_are_separated(n, shape):
    bias = known(bias_shape(shape, n))
    design = cyclic_for(bias, seed=n)
    squares = len(design) // n
    for place in range(n):
        assert np.bincount(design.permutations[:, place], minlength=n).tolist() == [squares] * n
    found = debias(Observations(np.random.default_rng(0).normal(size=len(design)), design.permutations, n), bias)
    assert found.rank == n - 1
    assert found.condition < 40


def test_a_u_shape_on_an_even_cycle_needs_another_arrangement():
    bias = known(bias_shape("u-shaped", 6))
    rows = cyclic_for(bias).permutations
    assert len(rows) == 6
    assert layout(rows, 6) is not None
    plain = debias(Observations(np.arange(6.0), cyclic(6).permutations, 6), bias)
    assert plain.rank == 4


def test_layout_tells_rotations_from_other_orderings():
    g, f = layout(cyclic(5).permutations, 5)
    assert (g.tolist(), f.tolist()) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    assert layout(random(5, 5).permutations, 5) is None
    assert layout(cyclic(5).permutations[:, :4], 5) is None


def test_prefixes_of_a_bias_and_without_one():
    bias = known([0.5, 0.4, 0.3], 6)
    design = cyclic_for(bias)
    assert design.length == 3
    assert len(design) == 6
    for n in (2, 3, 4, 5, 10):
        free = prefixes(n)
        assert free.length < n
        assert model_rank(free) == free.length - 1 + n
    with pytest.raises(InputError, match="length"):
        prefixes(4, 4)
    with pytest.raises(InputError, match="squares"):
        cyclic_for(known(bias_shape("decreasing", 3)), squares=3)
    assert len(cyclic_for(known(bias_shape("decreasing", 3)), squares=2)) == 6


def test_a_seed_is_an_integer():
    for seed in (-1, 1.5, "1"):
        with pytest.raises(InputError, match=f"seed: expected an integer.*, got {seed!r}"):
            prefixes(5, seed=seed)
