"""decoder_layer_in and decoder_layer_out against their reference, and bit for bit against the ops they are made of."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cpu_cases import available
from decoder_cases import ALLOWED, EPSILON, HEADS, INNER, KEY_HEADS, SIZE, Case
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from fastreader.errors import InputError
from fastreader.ops import extension
from fastreader.ops.decoder_layer.reference import decoder_layer_in_reference, decoder_layer_out_reference
from fastreader.ops.linear import linear, linear_add, linear_gated
from fastreader.ops.pointwise import rms_norm, rotary

pytestmark = pytest.mark.skipif(not available(), reason=f"no C++ extension: {extension.why_missing()}")


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x.double(), (x.shape[-1],), weight.double(), EPSILON)


@pytest.fixture(params=available())
def isa(request, monkeypatch):
    monkeypatch.setenv("FASTREADER_CPU_ISA", request.param)
    return request.param


def assert_near(got: Tensor, want: Tensor, precision: str) -> None:
    assert (got.double() - want).abs().max() <= ALLOWED[precision] * want.abs().max()


def reference(case: Case, hadamard: bool = False) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Return queries, keys and values, and the stream after the layer, in float64."""
    plain = {name: (weight, case.biases[name]) for name, weight in case.plain.items()}
    norms = case.head_norms and (case.head_norms.query, case.head_norms.key, case.head_norms.epsilon)
    before = decoder_layer_in_reference(
        *(case.stream, case.norm, EPSILON, plain["projections"]),
        heads=HEADS,
        key_heads=KEY_HEADS,
        head_norms=norms,
        angles=case.angles,
        hadamard=hadamard,
    )
    rest = {"norm": case.second, "epsilon": EPSILON, "inner": plain["inner"], "activation": "silu"}
    return before, decoder_layer_out_reference(case.stream, case.attended, plain["out"], down=plain["down"], **rest)


@pytest.mark.parametrize(("biases", "norms"), [(False, "none"), (True, "head"), (True, "flat")])
def test_the_reference_against_transformers_and_pytorch(biases, norms):
    case = Case(70, "bf16", biases=biases, norms=norms)
    wide = {n: (w.double(), None if case.biases[n] is None else case.biases[n].double()) for n, w in case.plain.items()}
    projected = F.linear(normed(case.stream, case.norm), *wide["projections"])
    parts = torch.split(projected, [HEADS * SIZE, KEY_HEADS * SIZE, KEY_HEADS * SIZE], dim=1)
    query, key, value = (part.unflatten(1, (-1, SIZE)) for part in parts)
    if case.head_norms:
        flat = norms == "flat"
        query, key = (
            normed(x.flatten(1) if flat else x, w).view(x.shape)
            for x, w in ((query, case.head_norms.query), (key, case.head_norms.key))
        )
    angles = [x[None].double() for x in case.angles]
    query, key = (
        x[0].transpose(0, 1) for x in apply_rotary_pos_emb(*(x.transpose(0, 1)[None] for x in (query, key)), *angles)
    )
    before, after = reference(case)
    for got, want in zip(before, (query, key, value), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    stream = case.stream.double() + F.linear(case.attended.double(), *wide["out"])
    gates, up = F.linear(normed(stream, case.second), *wide["inner"]).chunk(2, dim=1)
    want = stream + F.linear(F.silu(gates) * up, *wide["down"])
    torch.testing.assert_close(after, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("precision", list(ALLOWED))
@pytest.mark.parametrize("rows", [1, 31, 70, 1100])
@pytest.mark.parametrize(("biases", "norms"), [(False, "none"), (True, "head"), (True, "flat")])
def test_against_the_reference(isa, rows, precision, biases, norms):
    case = Case(rows, precision, biases=biases, norms=norms)
    before, after = reference(case, hadamard=precision == "bf16")
    for got, want in zip(case.before(), before, strict=True):
        assert got.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
        assert_near(got, want, precision)
    assert_near(case.after(), after, precision)


@pytest.mark.parametrize("precision", list(ALLOWED))
@pytest.mark.parametrize("rows", [1, 33, 700])
def test_the_bits_of_the_ops_it_is_made_of(isa, rows, precision):
    case = Case(rows, precision, biases=True)
    bf16 = precision == "bf16"
    first = rms_norm(case.stream, case.norm, EPSILON, bf16=bf16)
    weight = case.weights["projections"]
    projected = linear(first, weight.packed, weight.bias, precision=precision)
    parts = torch.split(projected, [HEADS * SIZE, KEY_HEADS * SIZE, KEY_HEADS * SIZE], dim=1)
    query, key, value = (part.unflatten(1, (-1, SIZE)) for part in parts)
    want = [*(rotary(each, *case.angles, hadamard=bf16, bf16=bf16) for each in (query, key)), value]
    for got, expected in zip(case.before(), want, strict=True):
        assert torch.equal(got, expected.to(got.dtype))

    stream = case.stream.clone()
    out, inner, down = (case.weights[name] for name in ("out", "inner", "down"))
    linear_add(stream, case.attended, out.packed, out.bias, precision=precision)
    second = rms_norm(stream, case.second, EPSILON, bf16=bf16)
    gated = linear_gated(second, inner.packed, inner.bias, activation="silu", bf16=bf16, precision=precision)
    linear_add(stream, gated, down.packed, down.bias, precision=precision)
    assert torch.equal(case.after(), stream)


@pytest.mark.parametrize("precision", list(ALLOWED))
def test_a_row_does_not_depend_on_its_neighbours(isa, precision):
    case = Case(900, precision)
    whole, after = case.before(), case.after()
    few = slice(130, 171)
    case.stream, case.attended = case.stream[few], case.attended[few]
    case.angles = tuple(x[few] for x in case.angles)
    assert all(torch.equal(a[few], b) for a, b in zip(whole, case.before(), strict=True))
    assert torch.equal(after[few], case.after())


def test_threads_do_not_matter():
    case = Case(1100, "bf16")
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append((*case.before(), case.after()))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_opcheck():
    case = Case(5, "bf16", biases=True, norms="head")
    weight, norms = case.weights["projections"], case.head_norms
    arguments = (case.stream, case.norm, EPSILON, weight.packed.data, weight.bias, norms.query, norms.key, EPSILON)
    sizes = (HEADS, KEY_HEADS, SIZE, True, None, "bf16", "auto")
    torch.library.opcheck(torch.ops.fastreader.decoder_layer_in, (*arguments, *case.angles, *sizes))
    out, inner, down = (case.weights[name] for name in ("out", "inner", "down"))
    arguments = (case.stream, case.attended, out.packed.data, out.bias, case.second, EPSILON)
    rest = (inner.packed.data, INNER, inner.bias, "silu", down.packed.data, down.bias, None, "bf16", "auto")
    torch.library.opcheck(torch.ops.fastreader.decoder_layer_out_, (*arguments, *rest))


@pytest.mark.parametrize("change", [lambda stream: stream.double(), lambda stream: stream.T.contiguous().T])
@pytest.mark.parametrize("call", ["before", "after"])
def test_they_take_float32_streams_of_contiguous_rows(change, call):
    case = Case(8, "bf16")
    case.stream = change(case.stream)
    with pytest.raises(RuntimeError, match=r"the residual stream must be float32 \[T, E\] of contiguous rows"):
        getattr(case, call)()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c: c.weights.update(projections=c.weights["down"]),
            r"projections must be \[\(3 \+ 2 \* 1\) \* D, 40\]",
        ),
        (lambda c: setattr(c, "attended", c.attended[:, :-1]), r"out must be \[40, 71\], got \[40, 72\]"),
        (lambda c: setattr(c, "attended", c.attended[:-1]), "attended must have 8 rows like stream, got 7"),
        (lambda c: c.weights.update(inner=c.weights["out"]), r"inner must be \[192, 40\], got \[40, 72\]"),
        (lambda c: c.weights.update(out=Case(8, "bf16x3").weights["out"]), "expected weights packed alike"),
    ],
)
def test_bad_inputs_are_refused(change, message):
    case = Case(8, "bf16")
    change(case)
    with pytest.raises(InputError, match=message):
        case.before()
        case.after()
