"""The Triton kernel of causal_conv in the interpreter, against the definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from recurrent_cases import TREES, random_tree, relative_error
from tolerance import assert_as_exact_as_eager
from torch import Tensor

from fastreader.errors import UnsupportedImplementationError
from fastreader.ops.causal_conv import causal_conv
from fastreader.ops.recurrent.chains import nearest_ancestors

pytestmark = pytest.mark.interpreter


def drawn(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=generator).to(dtype)


def case(seed: int, dtype: torch.dtype = torch.float32) -> tuple[list[Tensor], dict[str, Tensor | None]]:
    """Return input, weight and ancestors, and the bias and initial inputs, of a random tree."""
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    size, taps, outside = int(rng.integers(1, 61)), int(rng.integers(1, 6)), int(rng.integers(0, 3))
    channels = int(rng.choice([1, 5, 130]))
    near = nearest_ancestors(random_tree(rng, size, float(rng.choice([0.05, 0.2, 0.6])), outside), taps - 1)
    before = drawn(generator, outside, taps - 1, channels, dtype=dtype) if outside else None
    bias = drawn(generator, channels, dtype=dtype) if seed % 2 else None
    given = [drawn(generator, size, channels, dtype=dtype), drawn(generator, channels, taps, dtype=dtype)]
    return [*given, torch.from_numpy(near)], {"bias": bias, "initial": before}


def golden(given: list[Tensor], others: dict[str, Tensor | None]) -> Tensor:
    wide = {name: None if x is None else x.double() for name, x in others.items()}
    return causal_conv(given[0].double(), given[1].double(), given[2], **wide, impl="reference")


def test_random_trees() -> None:
    worst = 0.0
    for seed in range(TREES):
        given, others = case(seed)
        worst = max(worst, relative_error(causal_conv(*given, **others, impl="triton"), golden(given, others)))
    print(f"causal_conv: largest relative error {worst:.2g} over {TREES} trees")
    assert worst < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types(dtype: torch.dtype) -> None:
    given, others = case(1, dtype)
    got = causal_conv(*given, **others, impl="triton")
    assert got.dtype == dtype
    assert_as_exact_as_eager("output", got, causal_conv(*given, **others, impl="torch"), golden(given, others))


def test_any_layout_and_no_tokens() -> None:
    (rows, weight, near), others = case(3)
    want = causal_conv(rows, weight, near, **others, impl="triton")
    assert torch.equal(causal_conv(rows.T.contiguous().T, weight, near, **others, impl="triton"), want)
    inside = torch.cat([rows, rows], dim=1)[:, : rows.shape[1]]
    assert torch.equal(causal_conv(inside, weight.T.contiguous().T, near, **others, impl="triton"), want)
    assert len(causal_conv(rows[:0], weight, near[:0], impl="triton")) == 0


def test_the_activation() -> None:
    given, others = case(7)
    got = causal_conv(*given, **others, activation="silu", impl="triton")
    assert relative_error(got, torch.nn.functional.silu(golden(given, others))) < 1e-5


def test_a_wrong_ancestor_is_noticed() -> None:
    given, others = case(5)
    assert given[2].numel()
    want = golden(given, others)
    given[2] = torch.full_like(given[2], -1)
    assert relative_error(causal_conv(*given, **others, impl="triton"), want) > 1e-2


def test_float64_raises() -> None:
    (rows, weight, near), others = case(0)
    with pytest.raises(UnsupportedImplementationError, match="got float64"):
        causal_conv(rows, weight.double(), near, **others, impl="triton")
