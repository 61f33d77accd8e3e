"""Weights in a wider type than they are stored in: the values of a copy, without one."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fastreader.errors import InputError
from fastreader.ops import extension
from fastreader.ops.linear import BlockStack, BlockTensor, BlockWeight, prepare, torch_impl
from fastreader.ops.linear.blocks import AT_ONCE
from fastreader.ops.linear.cpu import pack_together
from fastreader.ops.linear.widened import WidenedTensor


def stored(rows, columns, dtype=torch.bfloat16):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("type_", [torch.bfloat16, torch.float16, torch.float32])
def test_it_computes_as_a_copy_does(dtype, type_):
    weight = stored(70, 64, type_)
    shown, plain = WidenedTensor(weight, dtype), weight.to(dtype)
    inputs = torch.randn(3, 64, dtype=dtype, generator=torch.Generator().manual_seed(1))
    assert shown.dtype == dtype and shown.shape == plain.shape and str(type_) in repr(shown)
    close = functools.partial(torch.testing.assert_close, atol=1e-5, rtol=1e-5)  # sums may be in another order
    close(F.linear(inputs, shown), F.linear(inputs, plain))
    close(F.linear(inputs, shown, plain[:, 0]), F.linear(inputs, plain, plain[:, 0]))
    assert torch.equal(inputs @ shown.T, inputs @ plain.T) and torch.equal(shown[3:5] + 0, plain[3:5])
    assert torch.equal(F.linear(shown, shown), F.linear(plain, plain))
    assert torch.equal(shown.to(torch.float64), plain.double()) and not shown.isnan().any()
    with torch.inference_mode():
        layer = nn.Linear(64, 70, bias=False)
        layer.weight = nn.Parameter(shown, requires_grad=False)
        close(layer(inputs), F.linear(inputs, plain))
        assert torch.equal(copy.copy(layer.weight) * 2, plain * 2)
        assert torch.equal(layer.weight.view(7, 10, 64)[2], plain.view(7, 10, 64)[2])


@pytest.mark.skipif(extension.why_missing() is not None, reason="needs the C++ extension")
@pytest.mark.parametrize("precision", ["bf16", "float32", "int16"])
@pytest.mark.parametrize("type_", [torch.bfloat16, torch.float16])
def test_it_is_laid_out_from_what_is_stored(type_, precision):
    weights = [stored(64, 96, type_), stored(32, 96, type_)]
    shown = [WidenedTensor(weight, torch.float32) for weight in weights]
    for got, weight in zip(shown, weights, strict=True):
        want = prepare(weight, precision)
        assert torch.equal(prepare(got, precision).data, want.data) and prepare(got, precision).stored == want.stored
        assert isinstance(got[3:9], WidenedTensor) and torch.equal(got[3:9] + 0, weight[3:9].float())
        assert copy.deepcopy(got) is got
    together, want = pack_together(shown, precision), pack_together(weights, precision)
    assert (together is None) == (want is None) == (precision == "int16")
    if want is not None:
        assert torch.equal(together[0].data, want[0].data)


@pytest.mark.skipif(extension.why_missing() is not None, reason="needs the C++ extension")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("of", ["blocks", "bfloat16"])
def test_an_expert_is_multiplied_without_the_others(of, transposed, dtype, monkeypatch):
    if of == "blocks":
        rows = torch.randint(0, 60, (3, 70, 4 * 18), dtype=torch.uint8)  # Q4_0 with scales that are finite
        stack = BlockStack([BlockTensor(BlockWeight.pack(each, "Q4_0", 128)) for each in rows], transposed)
    else:
        stack = torch.stack([stored(70, 128) for _ in range(3)])
        stack = stack.transpose(1, 2) if transposed else stack
    plain = stack.to(dtype)
    shown = WidenedTensor(stack, dtype)
    inputs = torch.randn(5, 128, dtype=dtype, generator=torch.Generator().manual_seed(1))
    want = inputs @ plain[1] if transposed else F.linear(inputs, plain[1])
    if of == "blocks":
        monkeypatch.setattr(BlockStack, "plain", None)  # it is not called
    with torch.inference_mode():
        one = shown[torch.tensor(1)]
        assert isinstance(one, WidenedTensor) and one.shape == plain[1].shape and one.dtype == dtype
        got = inputs @ one if transposed else F.linear(inputs, one)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
        assert torch.equal(one * 2, plain[1] * 2) and torch.equal(one[3:5] + 0, plain[1][3:5])


def test_it_cannot_be_written_to():
    shown = WidenedTensor(stored(4, 8), torch.float32)
    with pytest.raises(InputError, match="got a WidenedTensor"):
        shown.zero_()


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 40])
@pytest.mark.parametrize("bias", [False, True])
def test_few_rows_are_multiplied_in_parts_too(rows, bias, monkeypatch):
    """So that no copy of a large weight is made for a step of generation."""
    weight = stored(3 * AT_ONCE // 512, 512)
    inputs = torch.randn(rows, 512, generator=torch.Generator().manual_seed(2))
    added = torch.randn(len(weight), generator=torch.Generator().manual_seed(3)) if bias else None
    sizes = []
    real = torch_impl.multiply_in_parts
    monkeypatch.setattr(torch_impl, "multiply_in_parts", lambda x, *others: sizes.append(len(x)) or real(x, *others))
    got = torch_impl.linear_torch(inputs, weight, added, "torch")
    want = F.linear(inputs.double(), weight.double(), None if added is None else added.double())
    assert got.shape == (rows, len(weight)) and sizes == [rows]
    torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-5)
