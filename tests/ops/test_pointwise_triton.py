"""The Triton kernels of rms_norm, rotary and gate in the interpreter, against float64."""

from __future__ import annotations

import pytest
import torch
from pointwise_cases import GATES, NORMS, ROTARIES, gated, halves_of, heads_of, normed, random, turned

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops.pointwise import gate, rms_norm, rotary

pytestmark = pytest.mark.interpreter
# The interpreter rounds to bfloat16 by cutting off, a device to nearest: one unit here, half a unit there.
UNIT = 2**-7


@pytest.mark.parametrize(("rows", "size"), NORMS)
def test_rms_norm(rows: int, size: int) -> None:
    x, weight = random(rows, size) * 3, random(size, seed=1)
    for scale in (1.0, 1e-3):  # where epsilon matters
        want = normed(x * scale, weight, 1e-5)
        got = rms_norm(x * scale, weight, 1e-5, impl="triton")
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=1e-7)
        rounded = rms_norm(x * scale, weight, 1e-5, bf16=True, impl="triton")
        assert rounded.dtype == torch.bfloat16
        torch.testing.assert_close(rounded.double(), want, rtol=UNIT, atol=1e-7)


def test_rms_norm_of_strided_rows() -> None:
    x, weight = random(9, 40)[:, 3:27], random(24, seed=1)
    torch.testing.assert_close(
        rms_norm(x, weight, 1e-5, impl="triton").double(), normed(x, weight, 1e-5), rtol=2e-6, atol=1e-7
    )


@pytest.mark.parametrize(("tokens", "heads", "size", "width"), ROTARIES)
def test_rotary(tokens: int, heads: int, size: int, width: int) -> None:
    x = heads_of(tokens, heads, size)
    cosine, sine = random(tokens, width, seed=1), random(tokens, width, seed=2)
    want = turned(x, cosine, sine)
    got = rotary(x, cosine, sine, impl="triton")
    assert got.is_contiguous()
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=2e-6)
    rounded = rotary(x, cosine, sine, bf16=True, impl="triton")
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.double(), want, rtol=UNIT, atol=1e-5)


@pytest.mark.parametrize("impl", ["triton", "torch", "reference"])
@pytest.mark.parametrize("turned_heads", [0, 2, 5])
def test_rotary_passes_later_heads(turned_heads: int, impl: str) -> None:
    x, cosine, sine = heads_of(9, 5, 16), random(9, 12, seed=1), random(9, 12, seed=2)
    got = rotary(x, cosine, sine, heads=turned_heads, impl=impl)
    want = turned(x[:, :turned_heads], cosine, sine)
    torch.testing.assert_close(got[:, :turned_heads].double(), want, rtol=1e-6, atol=2e-6)
    assert torch.equal(got[:, turned_heads:], x[:, turned_heads:])
    with pytest.raises(InputError, match="heads must be from 0 to H"):
        rotary(x, cosine, sine, heads=6, impl=impl)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("rows", "size"), GATES)
def test_gate(rows: int, size: int, activation: str) -> None:
    x, up = halves_of(rows, size)
    want = gated(x, up, activation)
    torch.testing.assert_close(gate(x, up, activation, impl="triton").double(), want, rtol=4e-6, atol=2e-6)
    rounded = gate(x, up, activation, bf16=True, impl="triton")
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.double(), want, rtol=UNIT, atol=2e-6)


@pytest.mark.parametrize("impl", ["triton", "torch", "reference"])
def test_gate_of_bfloat16_is_computed_in_float32(impl: str) -> None:
    x, up = (each.bfloat16() for each in halves_of(37, 83))
    got = gate(x, up, "silu", impl=impl)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), gated(x, up, "silu"), rtol=4e-6, atol=2e-6)


def test_float64_is_not_for_triton() -> None:
    x, weight = random(4, 6).double(), random(6, seed=1).double()
    with pytest.raises(UnsupportedImplementationError, match="float64"):
        rms_norm(x, weight, 1e-6, impl="triton")


def test_shapes_are_checked_first() -> None:
    with pytest.raises(InputError, match="rms_norm"):
        rms_norm(random(3, 4), random(5), 1e-6, impl="triton")
