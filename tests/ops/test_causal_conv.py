import numpy as np
import pytest
import torch
from recurrent_cases import random_tree

from fastreader.errors import InputError
from fastreader.ops.causal_conv import causal_conv
from fastreader.ops.recurrent.chains import nearest_ancestors


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ancestors(parent, taps):
    return torch.from_numpy(nearest_ancestors(np.asarray(parent), taps - 1))


@pytest.mark.parametrize("taps", [1, 2, 3, 4, 7])
def test_equals_the_definition_on_random_trees(taps):
    rng = np.random.default_rng(taps)
    for size in (0, 1, 2, 63, 64, 130):
        outside = size % 3
        near = ancestors(random_tree(rng, size, 0.2, outside), taps)
        before = drawn(outside, taps - 1, 5, seed=2) if outside else None
        given = (drawn(size, 5), drawn(5, taps, seed=1), near)
        for bias in (None, drawn(5, seed=3)):
            want = causal_conv(*given, bias=bias, initial=before, impl="reference")
            torch.testing.assert_close(causal_conv(*given, bias=bias, initial=before), want)
        narrow = causal_conv(given[0].bfloat16(), given[1].bfloat16(), near, initial=before)
        assert narrow.dtype == torch.bfloat16 and len(narrow) == size


@pytest.mark.parametrize("bias", [None, drawn(5, seed=3)])
def test_equals_a_convolution_on_a_sequence(bias):
    rows, weight = drawn(40, 5), drawn(5, 4, seed=1)
    want = torch.nn.functional.conv1d(rows.T[None], weight[:, None], bias, padding=3, groups=5)[0, :, :40].T
    torch.testing.assert_close(causal_conv(rows, weight, ancestors(range(-1, 39), 4), bias=bias), want)


def test_bad_operands_raise():
    rows, weight, near = drawn(4, 5), drawn(5, 3), ancestors([-1, 0, 1, 1], 3)
    for bad in ((rows[:, :4], weight, near), (rows, weight, near[:3]), (rows, weight, near.int())):
        with pytest.raises(InputError, match="expected"):
            causal_conv(*bad)
    with pytest.raises(InputError, match="ancestors"):
        causal_conv(rows, weight, ancestors([-2, 0, 1, 2], 3))
    with pytest.raises(InputError, match="bias"):
        causal_conv(rows, weight, near, bias=drawn(4))
    with pytest.raises(InputError, match="gradient"):
        causal_conv(rows.requires_grad_(), weight, near)
