"""Weights whose values are computed as they are used, against a copy of the values."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastreader.errors import InputError
from fastreader.ops import extension
from fastreader.ops.linear import UnpackedTensor, linear, prepare
from fastreader.ops.linear.blocks import AT_ONCE
from fastreader.ops.linear.cpu import pack_together


def made(rows, depth, most=None):
    """A weight of one byte a value, whose rows are unpacked `most` at once at most."""
    raw = torch.randint(0, 256, (rows, depth), generator=torch.Generator().manual_seed(rows)).to(torch.uint8)

    def unpack(some):
        assert most is None or len(some) <= most
        return some.float() / 64 - 2

    return UnpackedTensor(raw, depth, unpack), raw.float() / 64 - 2


def test_it_computes_as_a_copy_does():
    shown, plain = made(70, 64)
    assert shown.dtype == torch.float32 and shown.shape == plain.shape and "70, 64" in repr(shown)
    inputs = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(F.linear(inputs, shown), F.linear(inputs, plain))
    torch.testing.assert_close(F.linear(inputs, shown, plain[:, 0]), F.linear(inputs, plain, plain[:, 0]))
    assert torch.equal(shown.double(), plain.double()) and torch.equal(shown[3:9] * 2, plain[3:9] * 2)
    assert torch.equal(inputs @ shown.T, inputs @ plain.T) and torch.equal(shown[::2] + 0, plain[::2])
    assert isinstance(shown[3:9], UnpackedTensor) and copy.deepcopy(shown) is shown
    with torch.inference_mode():
        layer = nn.Linear(64, 70, bias=False)
        layer.weight = nn.Parameter(shown, requires_grad=False)
        torch.testing.assert_close(layer(inputs), F.linear(inputs, plain))
        assert torch.equal(layer.weight.view(7, 10, 64)[2], plain.view(7, 10, 64)[2])
    with pytest.raises(InputError, match="got a UnpackedTensor"):
        shown.zero_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_unpack_a_part_at_a_time(dtype):
    depth = 512
    shown, plain = made(3 * AT_ONCE // depth, depth, most=AT_ONCE // depth)
    inputs = torch.randn(5, depth, dtype=dtype, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        got = F.linear(inputs, shown)
    torch.testing.assert_close(got, F.linear(inputs, plain.to(dtype)), atol=1e-4, rtol=1e-5)


@pytest.mark.skipif(extension.why_missing() is not None, reason="needs the C++ extension")
@pytest.mark.parametrize("precision", ["bf16", "bf16x3", "float32", "int16"])
def test_it_is_laid_out_as_its_values(precision):
    (first, first_values), (second, second_values) = made(64, 96), made(32, 96)
    inputs = torch.randn(7, 96, generator=torch.Generator().manual_seed(2))
    for shown, values in ((first, first_values), (second, second_values)):
        packed = prepare(shown, precision)
        assert torch.equal(packed.data, prepare(values, precision).data)
        want = linear(inputs, prepare(values, precision), precision=precision)
        assert torch.equal(linear(inputs, packed, precision=precision), want)
    together, want = (pack_together(each, precision) for each in ([first, second], [first_values, second_values]))
    assert (together is None) == (want is None)
    if want is not None:
        assert torch.equal(together[0].data, want[0].data)
