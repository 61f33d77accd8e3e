"""The Triton kernel of linear_logprob in the interpreter, against float64."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from helpers.support import LONG_FORMS, chequered
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_as_exact_as_eager

from fastreader.errors import UnsupportedImplementationError
from fastreader.ops import linear_logprob, linear_logprob_stats
from fastreader.ops.linear_logprob.reference import linear_logprob_reference

pytestmark = pytest.mark.interpreter
SINGLE_AND_HALF = (torch.float32, torch.float16)
SMALL = (16, 32, 16, 4, 2)
CASES = int(os.environ.get("FASTREADER_LOGPROB_CASES", "28" if LONG_FORMS else "12"))  # 500 have passed


def check(
    rows: int,
    width: int,
    vocabulary: int,
    dtype: torch.dtype,
    *,
    bias: bool = False,
    softcap: float | None = None,
    scale: float = 1.0,
    block: tuple[Any, ...] | None = SMALL,
    num_splits: int | None = None,
    shift: float = 0.0,
) -> None:
    from fastreader.ops.linear_logprob.triton import LinearLogprobConfig, linear_logprob_triton

    generator = torch.Generator().manual_seed(rows + width)
    # Every second element of a wider tensor: strides other than 1.
    hidden = torch.randn((rows, 2 * width), generator=generator).to(dtype)[:, ::2]
    weight = (torch.randn((vocabulary, width), generator=generator) * width**-0.5 * 3).to(dtype)
    target = torch.randint(0, vocabulary, (rows, 2), generator=generator)[:, 1]
    offset = (torch.randn((vocabulary, 2), generator=generator) + shift).to(dtype)[:, 1] if bias else None
    labels = torch.tensor([[vocabulary - 1, 0, vocabulary // 2, 0]] * 2).T[:, 0]
    config = None if block is None else LinearLogprobConfig(*block)
    options: dict[str, Any] = {"bias": offset, "softcap": softcap, "scale": scale}
    options |= {"config": config, "num_splits": num_splits}
    got = linear_logprob_triton(hidden, weight, target, labels=labels, **options)
    assert got.label_logprob is not None
    wide = [t if t is None else t.double() for t in (hidden, weight, offset)]
    golden = linear_logprob_reference(wide[0], wide[1], target, wide[2], softcap, scale)
    # Logits accumulate in float32, so float32 is what eager means here, whatever the inputs are stored in.
    single = [t if t is None else t.float() for t in (hidden, weight, offset)]
    eager = linear_logprob_reference(single[0], single[1], target, single[2], softcap, scale)
    logits = torch.cat([golden[0] + golden[1], golden[1]])  # the targets', and the log-sum-exps
    for name, mine, near, exact in zip(("logprob", "logsumexp", "entropy"), got, eager, golden, strict=False):
        # Each is a log-sum-exp, or its difference from a logit or a mean of logits, which may be as large.
        assert_as_exact_as_eager(name, mine, near, exact, logits)
    assert torch.equal(got.argmax, golden[3])
    for column, label in enumerate(labels.tolist()):
        everywhere = torch.full_like(target, label)
        near, exact = (linear_logprob_reference(h, w, everywhere, b, softcap, scale)[0] for h, w, b in (single, wide))
        assert_as_exact_as_eager(f"label {label}", got.label_logprob[:, column], near, exact, logits)
    lean = linear_logprob_triton(hidden, weight, target, entropy=False, argmax=False, **options)
    assert torch.equal(lean.logprob, got.logprob)
    assert len(lean.entropy) == len(lean.argmax) == 0
    assert lean.label_logprob is None


SIZES = [(0, 8, 5), (1, 1, 1), (1, 63, 127), (17, 33, 129), (5, 16, 64)]


@pytest.mark.parametrize(("rows", "width", "vocabulary", "dtype"), chequered(SIZES, SINGLE_AND_HALF))
def test_awkward_sizes(rows: int, width: int, vocabulary: int, dtype: torch.dtype) -> None:
    check(rows, width, vocabulary, dtype)


@pytest.mark.parametrize(
    ("num_splits", "dtype"), [(1, torch.float32), (2, torch.float16), (7, torch.float32), (1000, torch.float16)]
)
def test_splits_of_the_vocabulary(num_splits: int, dtype: torch.dtype) -> None:
    check(20, 24, 250, dtype, num_splits=num_splits, bias=True)


@pytest.mark.parametrize(("rows", "dtype"), chequered([3, 40], SINGLE_AND_HALF))
def test_pinned_configurations(rows: int, dtype: torch.dtype) -> None:
    check(rows, 70, 300, dtype, block=None)


def test_bfloat16_by_way_of_float32() -> None:
    check(9, 40, 100, torch.bfloat16, bias=True)


@pytest.mark.parametrize("shift", [-200.0, 200.0])
def test_large_logits_leave_entropy_exact(shift: float) -> None:
    check(6, 16, 90, torch.float32, bias=True, shift=shift)


@settings(max_examples=12 if LONG_FORMS else 5, deadline=None)
@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 40),
    vocabulary=st.integers(1, 150),
    bias=st.booleans(),
    softcap=st.sampled_from([None, 5.0]),
    scale=st.sampled_from([1.0, 0.25, -1.5]),
    num_splits=st.sampled_from([1, 2, None]),
)
def test_random_shapes(
    rows: int, width: int, vocabulary: int, bias: bool, softcap: float | None, scale: float, num_splits: int | None
) -> None:
    options: dict[str, Any] = {"bias": bias, "softcap": softcap, "scale": scale, "num_splits": num_splits}
    check(rows, width, vocabulary, torch.float32, **options)


def test_random_cases_grouped_swapped_and_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastreader.ops.linear_logprob import triton

    monkeypatch.setattr(triton, "_GROUP", 2)  # so that 48 rows are two groups
    monkeypatch.setattr(triton, "_JOIN_SPLITS", 2)
    rng, worst = np.random.default_rng(0), 0.0
    for seed in range(CASES):
        torch.manual_seed(seed)
        rows, width, vocabulary = (int(rng.integers(1, most)) for most in (48, 24, 90))
        hidden, weight = torch.randn(rows, width), torch.randn(vocabulary, width) * width**-0.5
        bias = torch.randn(vocabulary) if seed % 3 == 0 else None
        target, labels = torch.randint(0, vocabulary, (rows,)), torch.randint(0, vocabulary, (2,))
        softcap, scale = (None, 5.0)[seed % 5 == 0], (1.0, 0.25, -1.5)[seed % 7 % 3]
        config = triton.LinearLogprobConfig(16, (16, 32)[seed % 2], 16, 4, 2, swapped=seed % 4 > 1)
        got = triton.linear_logprob_triton(
            hidden,
            weight,
            target,
            bias=bias,
            softcap=softcap,
            scale=scale,
            labels=labels,
            config=config,
            num_splits=int(rng.integers(1, 5)),
            entropy=seed % 2 == 0,
        )
        wide = (None if tensor is None else tensor.double() for tensor in (hidden, weight, bias))
        hidden, weight, bias = wide  # type: ignore[assignment]
        want = linear_logprob_reference(hidden, weight, target, bias, softcap, scale, labels=labels)
        assert got.label_logprob is not None and want.label_logprob is not None
        pairs = [(got.logprob, want.logprob), (got.logsumexp, want.logsumexp), (got.label_logprob, want.label_logprob)]
        pairs += [(got.entropy, want.entropy)] * (seed % 2 == 0)
        worst = max([worst, *(float((mine - golden).abs().max()) for mine, golden in pairs)])
        assert torch.equal(got.argmax, want.argmax), seed
    assert worst <= 2e-6


@pytest.mark.parametrize(("rows", "swapped"), [(40, False), (5, True)])
def test_tiles_loaded_by_descriptors(rows: int, swapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastreader.ops.linear_logprob import triton

    generator = torch.Generator().manual_seed(rows)
    hidden, weight = (torch.randn(count, 56, generator=generator).half() for count in (rows, 150))
    arguments = (hidden, weight, torch.arange(rows))
    config = triton.LinearLogprobConfig(16, 32, 16, 4, 2, swapped=swapped)
    by_pointers = triton.linear_logprob_triton(*arguments, scale=0.3, config=config, num_splits=2)
    made = []
    honest = triton.TensorDescriptor.from_tensor
    monkeypatch.setattr(triton.TensorDescriptor, "from_tensor", lambda *given: made.append(1) or honest(*given))
    monkeypatch.setattr(triton, "_TMA_TARGETS", (80,))
    described = triton.linear_logprob_triton(*arguments, scale=0.3, config=config, num_splits=2)
    assert len(made) == 2
    for mine, other in zip(described[:4], by_pointers[:4], strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("rows", [3, 80])
def test_states_as_two_terms(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    hidden, weight = torch.randn(rows, 200, generator=generator), torch.randn(300, 200, generator=generator).bfloat16()
    target = torch.arange(rows)
    golden = linear_logprob_reference(hidden.double(), weight.double(), target, None, None, 0.1)
    by_terms, rounded = (
        linear_logprob_stats(states, weight, target, scale=0.1, input_precision=precision, impl="triton")
        for states, precision in ((hidden, "bf16x3"), (hidden.bfloat16(), None))
    )
    assert float((by_terms.logprob - golden.logprob).abs().max()) <= 2e-4
    assert float((rounded.logprob - golden.logprob).abs().max()) > 1e-3


def test_only_what_is_asked_for() -> None:
    hidden, weight, target = torch.randn(3, 8), torch.randn(20, 8), torch.arange(3)
    for impl in ("triton", "torch", "reference"):
        stats = linear_logprob_stats(hidden, weight, target, entropy=False, argmax=False, impl=impl)
        assert len(stats.entropy) == len(stats.argmax) == 0
        assert len(stats.logprob) == len(stats.logsumexp) == 3


def test_ties_go_to_the_lowest_token() -> None:
    hidden, weight = torch.ones(2, 8), torch.zeros(100, 8)
    weight[[30, 70]] = 1.0
    stats = linear_logprob_stats(hidden, weight, torch.zeros(2, dtype=torch.int64), impl="triton")
    assert stats.argmax.tolist() == [30, 30]


def test_bfloat16_weight_under_float32_states() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden, weight = torch.randn(5, 32, generator=generator), torch.randn(60, 32, generator=generator).bfloat16()
    target, labels = torch.arange(5), torch.tensor([7, 59])
    golden = linear_logprob_stats(hidden.double(), weight.double(), target, labels=labels, impl="reference")
    for precision, tolerance in ((None, 1e-5), ("bf16x3", 2e-4)):
        states = weight.float() if precision is None else weight
        mine = linear_logprob_stats(hidden, states, target, labels=labels, input_precision=precision, impl="triton")
        assert mine.label_logprob is not None and golden.label_logprob is not None
        for got, want in ((mine.logprob, golden.logprob), (mine.label_logprob, golden.label_logprob)):
            assert float((got - want).abs().max()) <= tolerance


def test_dispatch_by_name() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(5, 32, generator=generator), torch.randn(60, 32, generator=generator)
    target = torch.arange(5)
    mine = linear_logprob(hidden, weight, target, impl="triton")
    golden, eager = (
        linear_logprob_reference(h, w, target, None, None, 1.0)[0]
        for h, w in ((hidden.double(), weight.double()), (hidden, weight))
    )
    assert_as_exact_as_eager("logprob", mine, eager, golden)
    with pytest.raises(UnsupportedImplementationError, match="float64"):
        linear_logprob(hidden.double(), weight.double(), target, impl="triton")


def test_opcheck() -> None:
    from fastreader.ops.linear_logprob.triton import linear_logprob_triton

    assert callable(linear_logprob_triton)  # importing it registers the op
    hidden, weight, target = torch.randn(5, 24), torch.randn(70, 24), torch.tensor([3, 0, 69, 1, 1])
    for bias, labels, stats in ((None, None, False), (torch.randn(70), torch.tensor([1, 2]), True)):
        config = [16, 32, 16, 4, 2, 0, int(stats)]
        arguments = (hidden, None, weight, target, bias, labels, 1.0, 2.0, stats, True, 2, 2, config)
        torch.library.opcheck(torch.ops.fastreader.linear_logprob_triton.default, arguments)
