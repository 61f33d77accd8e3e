import pytest
import torch
from cpu_cases import available
from hypothesis import given, settings
from hypothesis import strategies as st
from pointwise_cases import GATES, NORMS, ROTARIES, gated, halves_of, heads_of, normed, random, turned
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.pointwise import gate, rms_norm, rotary

no_extension = pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))


@no_extension
@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (3, 24), (70, 576), (129, 97)])
def test_rms_norm_is_transformers(monkeypatch, isa, rows, size):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    x, weight = random(rows, size) * 3, random(size, seed=1)
    own = LlamaRMSNorm(size, eps=1e-5)
    own.weight.data = weight.clone()
    for scale in (1.0, 1e-3):  # where epsilon matters
        with torch.no_grad():
            torch.testing.assert_close(
                rms_norm(x * scale, weight, 1e-5, impl="cpu"), own(x * scale), rtol=2e-6, atol=1e-7
            )


@no_extension
@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize(
    ("tokens", "heads", "size", "width"), [(0, 2, 8, 8), (5, 3, 64, 64), (33, 1, 40, 20), (7, 2, 10, 6)]
)
def test_rotary_is_transformers(monkeypatch, isa, tokens, heads, size, width):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    x = heads_of(tokens, heads, size)
    cosine, sine = random(tokens, width, seed=1), random(tokens, width, seed=2)
    want = turned(x, cosine, sine)
    torch.testing.assert_close(rotary(x, cosine, sine, impl="cpu").double(), want, rtol=1e-6, atol=2e-6)
    rounded = rotary(x, cosine, sine, bf16=True, impl="cpu")
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.double(), want, rtol=2**-8, atol=1e-5)


@no_extension
@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize(
    ("size", "block"), [(64, 64), (128, 128), (96, 32), (40, 8), (20, 4), (7, 1), (1024, 1024), (1026, 1)]
)
def test_hadamard_matrices_by_their_definition(monkeypatch, isa, size, block):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    query, key, width = heads_of(5, 3, size), heads_of(5, 3, size, seed=7), 6
    angles = random(5, width, seed=1), random(5, width, seed=2)
    signs = [[(-1.0) ** (i & j).bit_count() for j in range(block)] for i in range(block)]
    matrix = torch.block_diag(*[torch.tensor(signs).double() / block**0.5] * (size // block))
    want = turned(query, *angles) @ matrix
    for impl in ("cpu", "torch", "reference"):
        got = rotary(query, *angles, hadamard=True, impl=impl)
        assert rotary(query[:0], *(angle[:0] for angle in angles), hadamard=True, impl=impl).shape == (0, 3, size)
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    rounded = rotary(query, *angles, hadamard=True, bf16=True, impl="cpu")
    torch.testing.assert_close(
        rounded, rotary(query, *angles, hadamard=True, impl="cpu").bfloat16(), rtol=0, atol=1e-37
    )
    products = [(rotary(query, *angles, hadamard=h) * rotary(key, *angles, hadamard=h)).sum(-1) for h in (False, True)]
    torch.testing.assert_close(*products, rtol=1e-4, atol=1e-4)


def test_a_large_feature_is_rounded_less_when_spread():
    query, key = (heads_of(200, 1, 64, seed=seed)[:, 0] for seed in (1, 2))
    query, key = (torch.cat([32 * states[:, :1], states[:, 1:]], dim=1) for states in (query, key))
    none = random(200, 0)
    want = query.double() @ key.double().T
    errors = []
    for hadamard in (False, True):
        rounded = [
            rotary(each[:, None], none, none, hadamard=hadamard, bf16=True)[:, 0].double() for each in (query, key)
        ]
        errors.append(float((rounded[0] @ rounded[1].T - want).square().mean().sqrt()))
    assert errors[1] < 0.3 * errors[0]


@no_extension
@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gate_is_torch(monkeypatch, isa, activation):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    g, up = halves_of(37, 83)
    got = gate(g, up, activation, impl="cpu")
    torch.testing.assert_close(got.double(), gated(g, up, activation), rtol=4e-6, atol=2e-6)
    rounded = gate(g, up, activation, bf16=True, impl="cpu")
    torch.testing.assert_close(rounded, got.bfloat16(), rtol=0, atol=1e-37)  # AVX-512 BF16 flushes denormals


@no_extension
@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.integers(1, 70), st.integers(0, 99))
def test_rows_do_not_depend_on_their_neighbours(rows, size, seed):
    x, weight, up = random(rows, size, seed=seed), random(size, seed=1), random(rows, size, seed=2)
    together, gated = rms_norm(x, weight, 1e-6), gate(x, up, "silu")
    for row in (0, rows - 1):
        one = slice(row, row + 1)
        assert torch.equal(rms_norm(x[one], weight, 1e-6), together[one])
        assert torch.equal(gate(x[one], up[one], "silu"), gated[one])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("impl", ["torch", "reference"])
def test_pytorch_and_reference_in_each_type(impl, dtype):
    close = {"rtol": 1e-13, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 4e-6, "atol": 4e-6}

    def assert_close(got, want):
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), want, **close)

    for rows, size in NORMS:
        x, weight = random(rows, size).to(dtype), random(size, seed=1).to(dtype)
        assert_close(rms_norm(x, weight, 1e-6, impl=impl), normed(x, weight, 1e-6))
    for tokens, heads, size, width in ROTARIES:
        x, cosine, sine = (t.to(dtype) for t in (heads_of(tokens, heads, size), *random(2, tokens, width)))
        assert_close(rotary(x, cosine, sine, impl=impl), turned(x, cosine, sine))
    for activation in ("silu", "gelu_tanh"):
        for rows, size in GATES:
            x, up = (t.to(dtype) for t in halves_of(rows, size))
            assert_close(gate(x, up, activation, impl=impl), gated(x, up, activation))
            assert gate(x, up, activation, bf16=True, impl=impl).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "call",
    [
        lambda: rms_norm(random(3, 4), random(5), 1e-6),
        lambda: rms_norm(random(3, 4).half(), random(4).half(), 1e-6),
        lambda: rms_norm(random(3, 4).requires_grad_(), random(4), 1e-6),
        lambda: rotary(random(3, 2, 8), random(3, 7), random(3, 7)),
        lambda: rotary(random(3, 2, 8), random(2, 8), random(2, 8)),
        lambda: gate(random(3, 4), random(3, 5), "silu"),
        lambda: gate(random(3, 4), random(3, 4), "relu"),
        lambda: gate(random(3, 4), random(3, 4).double(), "silu"),
    ],
)
def test_bad_input(call):
    with pytest.raises(InputError):
        call()


def test_a_named_implementation():
    with pytest.raises(UnsupportedImplementationError, match="one of"):
        gate(random(3, 4), random(3, 4), "silu", impl="cuda")
    with pytest.raises(UnsupportedImplementationError, match="cannot run"):
        rms_norm(random(3, 4).double(), random(4).double(), 1e-6, impl="cpu")


@no_extension
def test_opcheck():
    x, weight, angles = random(5, 12), random(12), random(5, 4)
    torch.library.opcheck(torch.ops.fastreader.rms_norm, (x, weight, 1e-6, True, "auto"))
    torch.library.opcheck(torch.ops.fastreader.rotary, (x.unflatten(1, (2, 6)), angles, angles, True, True, "auto"))
    torch.library.opcheck(torch.ops.fastreader.gate, (x, x, "silu", False, "auto"))
