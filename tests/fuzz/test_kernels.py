"""Every C++ kernel on random shapes, layouts and instruction sets, against its definition in float64.

`make sanitize` runs this file on a build with AddressSanitizer and UndefinedBehaviorSanitizer, which also report reads
and writes that change no result.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest
import torch
from cpu_cases import MODES, PRECISION, available, measure, random_case
from fuzzing import fuzz
from hypothesis import given
from hypothesis import strategies as st
from layouts import LAYOUTS, laid_out
from torch import Tensor

from fastreader.ops import extension, linear_logprob_stats, tree_attention
from fastreader.ops.decode_attention import Ranges, decode_attention
from fastreader.ops.decoder_layer import HeadNorms, Weight, decoder_layer_in, decoder_layer_out
from fastreader.ops.decoder_layer.reference import decoder_layer_in_reference, decoder_layer_out_reference
from fastreader.ops.linear import linear, linear_add, linear_gated, prepare
from fastreader.ops.pointwise import ACTIVATIONS, gate, rms_norm, rotary

pytestmark = pytest.mark.skipif(not available(), reason=f"no C++ extension: {extension.why_missing()}")

SEEDS = st.integers(0, 2**31 - 1)
LAYOUT = st.sampled_from(LAYOUTS)
ISA = st.sampled_from(available(products=True) or ["none"])
BF16, FLOAT32 = torch.bfloat16, torch.float32


class Drawn:
    """Random tensors, each in another layout, on one instruction set."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.generator = torch.Generator().manual_seed(data.draw(SEEDS, label="seed"))
        self.isa = data.draw(ISA, label="instruction set")

    def size(self, low: int, high: int, label: str) -> int:
        return self.data.draw(st.integers(low, high), label=label)

    def choice(self, values, label: str):
        return self.data.draw(st.sampled_from(values), label=label)

    def values(self, *shape: int, dtype: torch.dtype = FLOAT32) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(dtype)

    def tensor(self, *shape: int, dtype: torch.dtype = FLOAT32) -> Tensor:
        """Draw normal values in a random layout."""
        return laid_out(self.values(*shape, dtype=dtype), self.data.draw(LAYOUT, label=f"layout of {list(shape)}"))


@pytest.fixture
def drawn(monkeypatch):
    """Make a `Drawn` from an example, and name its instruction set to the kernels."""

    def draw(data: st.DataObject) -> Drawn:
        drawn = Drawn(data)
        monkeypatch.setenv("FASTREADER_CPU_ISA", drawn.isa)
        return drawn

    return draw


def test_the_build_is_sanitized():
    """`make sanitize` must not pass on an ordinary build."""
    if not os.environ.get("FASTREADER_SANITIZE"):
        pytest.skip("an ordinary build; `make sanitize` makes the other one")
    built = Path(importlib.import_module(f"fastreader._C{extension.ABI}").__file__).read_bytes()
    assert b"__asan_report_load" in built and b"__ubsan_handle_" in built


@fuzz(60, 3000)
@given(st.data())
def test_tree_attention(drawn, data):
    d = drawn(data)
    mode = d.choice(MODES, "mode")
    inputs, subtree_end, query_node, options = random_case(data.draw(SEEDS, label="case"))
    got = measure(mode, *inputs, subtree_end, query_node, **options)
    assert got.error <= got.allowed and got.lse_error <= got.lse_allowed
    dtype = BF16 if mode == "bfloat16" else FLOAT32
    placed = [laid_out(t.to(dtype), data.draw(LAYOUT, label="layout")) for t in inputs]
    options.setdefault("scale", inputs[0].shape[-1] ** -0.5)
    out, lse = tree_attention(
        *placed,
        subtree_end,
        query_node=query_node,
        impl="cpu",
        input_precision=PRECISION[mode],
        return_lse=True,
        **options,
    )
    assert torch.equal(out, got.out) and torch.equal(lse, got.lse)


@fuzz(60, 3000)
@given(st.data())
def test_decode_attention(drawn, data):
    d = drawn(data)
    rows, key_heads, groups = d.size(0, 5, "rows"), d.size(1, 3, "key heads"), d.size(1, 9, "groups")
    size, value_size = 8 * d.size(1, 12, "size / 8"), d.size(1, 90, "value size")
    dtype = d.choice((FLOAT32, BF16), "dtype")
    lengths = [d.size(0, 140, "keys") for _ in range(d.size(1, 3, "parts"))]
    pointer, columns = [0], []
    for _ in range(rows):
        for part in data.draw(st.lists(st.integers(0, len(lengths) - 1), unique=True), label="parts of a row"):
            start = d.size(0, lengths[part], "start")
            columns.append((part, start, d.size(0, lengths[part], "stop")))
        pointer.append(len(columns))
    table = torch.tensor(columns, dtype=torch.int32).reshape(-1, 3).T.contiguous().numpy()
    ranges = Ranges(torch.tensor(pointer, dtype=torch.int32).numpy(), *(row.copy() for row in table))
    query = d.tensor(rows, key_heads * groups, size, dtype=dtype)
    keys = [d.tensor(n, key_heads, size, dtype=dtype) for n in lengths]
    values = [d.tensor(n, key_heads, value_size, dtype=dtype) for n in lengths]
    options = {"scale": size**-0.5, "softcap": d.choice((None, 2.5), "soft cap")}
    got = decode_attention(query, keys, values, ranges, impl="cpu", **options)
    wide = query.double(), [k.double() for k in keys], [v.double() for v in values]
    want = decode_attention(*wide, ranges, impl="reference", **options)
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine.double(), theirs, atol=1e-5, rtol=1e-5)


@fuzz(60, 3000)
@given(st.data())
def test_linear_logprob(drawn, data):
    d = drawn(data)
    rows, size = d.size(0, 70, "rows"), d.size(1, 100, "size")
    vocabulary = d.choice((1, 31, 32, 33, 400, 2100), "vocabulary")
    dtype, weight_dtype, precision = d.choice(
        ((FLOAT32, FLOAT32, None), (BF16, BF16, None), (FLOAT32, BF16, "bf16x3"), (FLOAT32, FLOAT32, "bf16x3")), "types"
    )
    hidden, weight = d.tensor(rows, size, dtype=dtype), d.tensor(vocabulary, size, dtype=weight_dtype)
    tokens = [torch.randint(vocabulary, (n,), generator=d.generator) for n in (rows, d.size(0, 40, "labels"))]
    target, labels = (laid_out(t[:, None], data.draw(LAYOUT, label="layout of tokens"))[:, 0] for t in tokens)
    options = {"softcap": d.choice((None, 3.0), "soft cap"), "scale": d.choice((1.0, 0.25), "scale"), "labels": labels}
    bias = d.tensor(vocabulary, 1)[:, 0] if d.choice((True, False), "bias") else None
    given_bias = None if bias is None else bias.to(dtype)
    got = linear_logprob_stats(
        hidden, weight, target, bias=given_bias, input_precision=precision, impl="cpu", **options
    )
    wide_bias = None if given_bias is None else given_bias.double()
    want = linear_logprob_stats(hidden.double(), weight.double(), target, bias=wide_bias, impl="reference", **options)
    # Products of `size` terms near one: bf16x3 omits 2^-16 of each.
    allowed = {"atol": 2e-3 if precision else 2e-4, "rtol": 1e-4}
    for name in ("logprob", "logsumexp", "entropy", "label_logprob"):
        torch.testing.assert_close(getattr(got, name).double(), getattr(want, name), **allowed)
    if rows:
        best = linear_logprob_stats(hidden.double(), weight.double(), got.argmax, bias=wide_bias, **options)
        most = linear_logprob_stats(hidden.double(), weight.double(), want.argmax, bias=wide_bias, **options)
        torch.testing.assert_close(best.logprob, most.logprob, **allowed)  # another index only for a tie


@fuzz(60, 3000)
@given(st.data())
def test_pointwise(drawn, data):
    d = drawn(data)
    rows, size, bf16 = d.size(0, 40, "rows"), d.size(1, 100, "size"), d.choice((False, True), "bf16")
    allowed = {"rtol": 1e-2, "atol": 1e-2} if bf16 else {"rtol": 2e-5, "atol": 2e-5}
    input, up, weight = d.tensor(rows, size), d.tensor(rows, size), d.tensor(size, 1)[:, 0]
    got = rms_norm(input, weight, 1e-5, bf16=bf16, impl="cpu")
    torch.testing.assert_close(got.float(), rms_norm(input, weight, 1e-5, impl="reference"), **allowed)
    activation = d.choice(ACTIVATIONS, "activation")
    got = gate(input, up, activation, bf16=bf16, impl="cpu")
    torch.testing.assert_close(got.float(), gate(input, up, activation, impl="reference"), **allowed)
    heads, turned = d.size(0, 4, "heads"), 2 * d.size(0, size // 2, "angles / 2")
    angles = d.tensor(rows, turned), d.tensor(rows, turned)
    states = d.tensor(rows, heads, size)
    hadamard = d.choice((False, True), "hadamard")
    got = rotary(states, *angles, hadamard=hadamard, bf16=bf16, impl="cpu")
    want = rotary(states, *angles, hadamard=hadamard, impl="reference")
    if hadamard:  # sums round by their largest terms
        allowed["atol"] += allowed["rtol"] * float(want.abs().max()) if want.numel() else 0.0
    torch.testing.assert_close(got.float(), want, **allowed)


def near(got: Tensor, want: Tensor, precision: str, allowed: Tensor | None = None) -> None:
    """Compare with a product in float64: the share of the largest value that the operands' rounding may move."""
    if want.numel():
        bound = SHARE[precision] * max(1.0, float(want.abs().max())) if allowed is None else allowed
        assert ((got.double() - want.double()).abs() <= bound).all()


def after_norm(projected: Tensor, weight: Tensor, epsilon: float, precision: str) -> Tensor:
    """Return how far heads may be off after their norm, which magnifies a short head's error: [T, H, 1]."""
    error = SHARE[precision] * max(1.0, float(projected.abs().max()))
    whole = projected if weight.numel() == projected.shape[2] else projected.flatten(1)[:, None]
    length = (whole.square().mean(2, keepdim=True) + epsilon).sqrt()
    return 2 * error * max(1.0, float(weight.abs().max())) / length


SHARE = {"bf16": 3e-2, "bf16x3": 2e-4, "float32": 2e-5, "int16": 1e-2}


@fuzz(60, 3000)
@given(st.data())
def test_linear(drawn, data):
    d = drawn(data)
    rows, depth, width = d.size(0, 70, "rows"), d.size(1, 100, "depth"), d.size(1, 100, "width")
    precision, dtype = d.choice(tuple(SHARE), "precision"), d.choice((FLOAT32, BF16), "weight's type")
    input, weight = d.tensor(rows, depth), d.tensor(width, depth, dtype=dtype)
    bias = d.tensor(width, 1)[:, 0] if d.choice((True, False), "bias") else None
    packed = prepare(weight, precision)
    want = linear(input.double(), weight, bias, precision="torch", impl="reference")
    if precision == "int16":  # its definition, which rounds the operands as the kernel does, to float32's tolerance
        defined = linear(input.float(), weight, bias, precision=precision, impl="reference")
        near(linear(input, packed, bias, precision=precision), defined, "float32")
    near(linear(input, packed, bias, precision=precision), want, precision)
    sum = d.tensor(rows, width)
    expected = sum.double() + want
    linear_add(sum, input, packed, bias, precision=precision)
    near(sum, expected, precision)
    half = 32 * d.size(1, 3, "gate / 32")
    inner, activation = d.tensor(2 * half, depth, dtype=dtype), d.choice(ACTIVATIONS, "activation")
    got = linear_gated(input, prepare(inner, precision), activation=activation, precision=precision)
    halves = linear(input.double(), inner, precision="torch", impl="reference").chunk(2, dim=1)
    near(got, gate(*halves, activation, impl="reference"), precision)


@fuzz(40, 2000)
@given(st.data())
def test_decoder_layer(drawn, data):
    d = drawn(data)
    rows, hidden = d.choice((0, 1, 5, 33, 300), "rows"), d.size(1, 80, "hidden")
    key_heads, groups, size = d.size(1, 2, "key heads"), d.size(1, 3, "groups"), 2 * d.size(1, 20, "size / 2")
    heads, inner, precision = (
        key_heads * groups,
        32 * d.size(1, 3, "inner / 32"),
        d.choice(tuple(SHARE), "precision"),
    )
    shapes = {
        "projections": ((heads + 2 * key_heads) * size, hidden),
        "out": (hidden, heads * size),
        "inner": (2 * inner, hidden),
        "down": (hidden, inner),
    }
    biases = d.choice((True, False), "biases")
    plain = {
        name: ((0.2 * d.values(*shape)).bfloat16(), d.values(shape[0]) if biases else None)
        for name, shape in shapes.items()
    }
    weights = {name: Weight(prepare(weight, precision), bias) for name, (weight, bias) in plain.items()}
    norm, epsilon = d.tensor(hidden, 1)[:, 0], 1e-2
    kind, angles = d.choice((None, "head", "all"), "norms"), None
    sizes = (size, size) if kind == "head" else (heads * size, key_heads * size)
    head_norms = None if kind is None else HeadNorms(*(d.values(n) for n in sizes), epsilon)
    if d.choice((True, False), "rotary"):
        turned = 2 * d.size(0, size // 2, "angles / 2")
        angles = d.tensor(rows, turned), d.tensor(rows, turned)
    stream = laid_out(d.values(rows, hidden), d.choice(("contiguous", "offset", "end of wider rows"), "layout"))
    attended = d.tensor(rows, heads * size, dtype=d.choice((FLOAT32, BF16), "attention's type"))
    got = decoder_layer_in(
        stream,
        norm,
        epsilon,
        weights["projections"],
        heads=heads,
        key_heads=key_heads,
        head_norms=head_norms,
        angles=angles,
    )
    norms = head_norms and (head_norms.query, head_norms.key, head_norms.epsilon)
    spread = precision == "bf16"
    shape = {"heads": heads, "key_heads": key_heads}
    want = decoder_layer_in_reference(
        *(stream, norm, epsilon, plain["projections"]), **shape, head_norms=norms, angles=angles, hadamard=spread
    )
    bounds: list[Tensor | None] = [None, None, None]
    if head_norms is not None and rows:
        plainly = decoder_layer_in_reference(stream, norm, epsilon, plain["projections"], **shape)
        for i, weight in enumerate((head_norms.query, head_norms.key)):
            bounds[i] = after_norm(plainly[i], weight, epsilon, precision)
            if angles is not None:
                bounds[i] *= 2 * max(1.0, *(float(angle.abs().max()) for angle in angles if angle.numel()), 0.0)
            if spread:  # a sum over a block, over the square root of its size
                block = size & -size
                sums = bounds[i].unflatten(-1, (-1, block)).sum(-1, keepdim=True) / block**0.5
                bounds[i] = sums.expand(*sums.shape[:-1], block).flatten(-2)
    for mine, theirs, bound in zip(got, want, bounds, strict=True):
        near(mine, theirs, precision, bound)
    rest = {"norm": norm, "epsilon": epsilon, "activation": "silu"}
    expected = decoder_layer_out_reference(
        stream, attended, plain["out"], inner=plain["inner"], down=plain["down"], **rest
    )
    decoder_layer_out(stream, attended, weights["out"], inner=weights["inner"], down=weights["down"], **rest)
    near(stream, expected, precision)
