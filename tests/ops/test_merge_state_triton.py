"""The Triton kernels of merge_state in the interpreter, against float64."""

from __future__ import annotations

import pytest
import torch
from helpers.support import chequered
from merge_cases import states
from tolerance import assert_as_exact_as_eager

from fastreader.ops import merge_state
from fastreader.ops.merge_state.reference import merge_reference

pytestmark = pytest.mark.interpreter


SIZES = [(0, 1, 8), (1, 1, 8), (17, 3, 24), (5, 2, 256)]


@pytest.mark.parametrize(
    ("tokens", "heads", "size", "dtype"), chequered(SIZES, [torch.float32, torch.float16, torch.bfloat16])
)
def test_two_states(tokens: int, heads: int, size: int, dtype: torch.dtype) -> None:
    out, lse = states(2, tokens, heads, size, dtype)
    strided = out.transpose(1, 3).contiguous().transpose(1, 3)
    got, got_lse = merge_state(strided[0], lse[0], out[1], lse[1], impl="triton")
    golden, golden_lse = merge_reference(out.double(), lse.double())
    eager, eager_lse = merge_reference(out, lse)
    assert got.dtype == dtype
    assert_as_exact_as_eager("output", got, eager.to(dtype), golden)
    assert_as_exact_as_eager("lse", got_lse, eager_lse, golden_lse)


@pytest.mark.parametrize(("count", "dtype"), chequered([1, 2, 7], [torch.float32, torch.float16]))
def test_a_stack(count: int, dtype: torch.dtype) -> None:
    from fastreader.ops.merge_state.triton import merge_stack_triton

    part, part_lse = states(count, 11, 3, 40, torch.float32)
    out, lse = torch.empty((11, 3, 40), dtype=dtype), torch.empty((11, 3))
    merge_stack_triton(part, part_lse, out, lse)
    golden, golden_lse = merge_reference(part.double(), part_lse.double())
    eager, eager_lse = merge_reference(part, part_lse)
    assert_as_exact_as_eager("output", out, eager.to(dtype), golden)
    assert_as_exact_as_eager("lse", lse, eager_lse, golden_lse)
    merge_stack_triton(part, part_lse, out, None)
    assert_as_exact_as_eager("output", out, eager.to(dtype), golden)


def test_opcheck() -> None:
    import fastreader.ops.merge_state.triton  # noqa: F401  (registers the op)

    out, lse = states(2, 5, 2, 24, torch.float32)
    torch.library.opcheck(torch.ops.fastreader.merge_state_triton.default, (out[0], lse[0], out[1], lse[1]))
