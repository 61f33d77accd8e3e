"""linear_logprob's C++ kernels against float64, on every instruction set of this machine."""

from __future__ import annotations

import pytest
import torch
from cpu_cases import available, operand, quantised, worst

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.linear_logprob import linear_logprob, linear_logprob_stats
from fastreader.ops.serving import serving

pytestmark = pytest.mark.skipif(not available(), reason=f"no C++ extension: {extension.why_missing()}")
MODES = ("float32", "bfloat16", "bf16x3", "bf16x2")
# The eager computation here sums in float32 like the kernel, in another order; polynomials of exp2 add 7.5e-8.
TIMES_EAGER = 3.0
FLOOR = {"float32": 5e-6, "bfloat16": 5e-6, "bf16x3": 2e-5, "bf16x2": 2e-5}


@pytest.fixture(params=available())
def isa(request, monkeypatch):
    monkeypatch.setenv("FASTREADER_CPU_ISA", request.param)
    return request.param


def inputs(mode, rows, size, vocabulary, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden, weight, bias = (
        torch.randn(shape, generator=generator) for shape in ((rows, size), (vocabulary, size), (vocabulary,))
    )
    weight *= 2 * size**-0.5
    hidden, weight, bias = quantised("bfloat16" if mode == "bfloat16" else "float32", hidden, weight, bias)
    if mode == "bf16x2":
        weight = weight.bfloat16()
    target = torch.randint(0, vocabulary, (rows,), generator=generator)
    return hidden, weight, bias, target, torch.randint(0, vocabulary, (5,), generator=generator)


def check(mode, rows, size, vocabulary, with_bias=False, **options):
    hidden, weight, bias, target, labels = inputs(mode, rows, size, vocabulary)
    input_precision = "bf16x3" if mode in ("bf16x3", "bf16x2") else None
    bias = bias if with_bias else None
    wide_bias = None if bias is None else bias.double()
    wanted = linear_logprob_stats(
        hidden.double(), weight.double(), target, bias=wide_bias, labels=labels, impl="reference", **options
    )
    rounded = [operand(input_precision or "float32", t).to(hidden.dtype) for t in (hidden, weight)]
    eager = linear_logprob_stats(*rounded, target, bias=bias, labels=labels, impl="torch", **options)
    got = linear_logprob_stats(
        hidden, weight, target, bias=bias, labels=labels, input_precision=input_precision, impl="cpu", **options
    )
    for name in ("logprob", "logsumexp", "entropy", "label_logprob"):
        error, allowed = (
            worst(getattr(got, name), getattr(wanted, name)),
            worst(getattr(eager, name), getattr(wanted, name)),
        )
        assert error <= TIMES_EAGER * allowed + FLOOR[mode] * (10 if name == "entropy" else 1), name
    if input_precision is None:
        assert torch.equal(got.argmax, eager.argmax)
    again = linear_logprob_stats(
        hidden, weight, target, bias=bias, labels=labels, input_precision=input_precision, impl="cpu", **options
    )
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("rows", "size", "vocabulary"),
    [(1, 8, 1), (1, 64, 5000), (63, 40, 33), (129, 64, 1025), (300, 100, 127), (5, 7, 64)],
)
def test_shapes(isa, mode, rows, size, vocabulary):
    check(mode, rows, size, vocabulary)


@pytest.mark.parametrize("mode", MODES)
def test_bias_scale_and_cap(isa, mode):
    check(mode, 40, 64, 500, with_bias=True)
    check(mode, 40, 64, 500, with_bias=True, softcap=3.0, scale=0.5)
    check(mode, 40, 64, 500, scale=-1.0)


def test_no_rows(isa):
    hidden, weight, _, _, labels = inputs("float32", 3, 16, 40)
    nothing = torch.zeros(0, dtype=torch.int64)
    stats = linear_logprob_stats(hidden[:0], weight, nothing, labels=labels, impl="cpu")
    assert [list(t.shape) for t in stats] == [[0], [0], [0], [0], [0, 5]]


def test_large_logits_and_ties(isa):
    weight = torch.zeros(100, 8)
    weight[37] = weight[70] = 30.0
    stats = linear_logprob_stats(torch.ones(2, 8), weight, torch.tensor([37, 0]), impl="cpu")
    assert stats.argmax.tolist() == [37, 37]
    assert torch.allclose(stats.logprob, torch.tensor([-0.6931472, -240.6931472]))
    assert torch.allclose(stats.entropy, torch.tensor(0.6931472), atol=1e-4)


def test_strided_rows_and_threads(isa):
    hidden, weight, _, target, _ = inputs("bfloat16", 90, 64, 3000)
    plain = linear_logprob(hidden, weight, target, impl="cpu")
    wide_hidden, wide_weight = torch.zeros(90, 100).bfloat16(), torch.zeros(3000, 70).bfloat16()
    wide_hidden[:, 30:94], wide_weight[:, :64] = hidden, weight
    assert torch.equal(linear_logprob(wide_hidden[:, 30:94], wide_weight[:, :64], target, impl="cpu"), plain)
    by_column = hidden.T.contiguous().T
    assert torch.equal(linear_logprob(by_column, weight.T.contiguous().T, target, impl="cpu"), plain)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert torch.equal(linear_logprob(hidden, weight, target, impl="cpu"), plain)
    finally:
        torch.set_num_threads(before)


def test_labels_are_none_unless_asked_for():
    hidden, weight, _, target, labels = inputs("float32", 4, 16, 40)
    for impl in ("reference", "torch", "cpu"):
        assert linear_logprob_stats(hidden, weight, target, impl=impl).label_logprob is None
        stats = linear_logprob_stats(hidden, weight, target, labels=labels, impl=impl)
        assert stats.label_logprob is not None and list(stats.label_logprob.shape) == [4, 5]


def test_refusals():
    hidden, weight, _, target, _ = inputs("float32", 4, 16, 40)
    with pytest.raises(InputError, match="labels must be in"):
        linear_logprob_stats(hidden, weight, target, labels=torch.tensor([40]))
    with pytest.raises(InputError, match="requires a gradient"):
        linear_logprob(hidden, weight.clone().requires_grad_(), target)
    with pytest.raises(InputError, match="input_precision 'bf16x3' takes float32"):
        linear_logprob(hidden.bfloat16(), weight.bfloat16(), target, input_precision="bf16x3")
    with pytest.raises(UnsupportedImplementationError, match=r"got torch\.float64"):
        linear_logprob(hidden.double(), weight.double(), target, impl="cpu")
    assert linear_logprob(hidden.double(), weight.double(), target).dtype == torch.float64
    assert serving()["linear_logprob"][0].implementation == "cpu"


@pytest.mark.parametrize("mode", ["float32", "bfloat16"])
def test_opcheck(mode):
    hidden, weight, bias, target, labels = inputs(mode, 5, 16, 40)
    for optional in ((None, None), (bias, labels)):
        torch.library.opcheck(
            torch.ops.fastreader.linear_logprob.default, (hidden, weight, target, *optional, 1.0, 2.0, None, 0, "auto")
        )


def test_tokens_that_cannot_come_first(isa):
    """A first block of tokens with logit -inf has no effect, and a NaN is not hidden."""
    hidden, weight, bias, target, _ = inputs("float32", 40, 32, 100)
    bias[:32] = float("-inf")
    target[:] = 50
    got = linear_logprob(hidden, weight, target, bias=bias, impl="cpu")
    torch.testing.assert_close(got, linear_logprob(hidden, weight, target, bias=bias, impl="reference").float())
    weight[70] = float("nan")
    assert bool(linear_logprob(hidden, weight, target, bias=bias, impl="cpu").isnan().all())


def test_states_of_no_value_are_refused():
    with pytest.raises(InputError, match=r"states of at least one value, got \[2, 0\]"):
        linear_logprob(torch.zeros(2, 0), torch.zeros(5, 0), torch.zeros(2, dtype=torch.int64))
