"""merge_state: PyTorch against the reference, and the reference against attention over all keys at once."""

from __future__ import annotations

import itertools

import pytest
import torch
from merge_cases import states
from tolerance import assert_as_exact_as_eager

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import merge_state, tree_attention
from fastreader.ops.merge_state.reference import merge_reference


@pytest.mark.parametrize("parts", [2, 3])
def test_the_reference_gives_attention_over_all_keys(parts: int) -> None:
    generator = torch.Generator().manual_seed(parts)
    query, key, value = (torch.randn(n, 4, 16, generator=generator).double() for n in (5, 30, 30))

    def attend(keys: slice) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(key[keys])
        subtree_end, last = torch.full((count,), count, dtype=torch.int32), torch.full((5,), count - 1)
        options = {"query_node": last, "scale": 0.25, "return_lse": True, "impl": "reference"}
        return tree_attention(query, key[keys], value[keys], subtree_end, **options)

    cuts = [0, 7, 19, 30] if parts == 3 else [0, 11, 30]
    outs, lses = zip(*(attend(slice(a, b)) for a, b in itertools.pairwise(cuts)), strict=True)
    want = attend(slice(None))
    for got, expected in zip(merge_reference(torch.stack(outs), torch.stack(lses)), want, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("impl", ["torch", "reference", "auto"])
def test_two_states(dtype: torch.dtype, impl: str) -> None:
    out, lse = states(2, 17, 3, 24, dtype)
    lse = lse.to(torch.promote_types(dtype, torch.float32))
    got, got_lse = merge_state(out[0], lse[0], out[1], lse[1], impl=impl)
    assert (got.dtype, got_lse.dtype) == (dtype, lse.dtype)
    golden, golden_lse = merge_reference(out.double(), lse.double())
    eager, eager_lse = merge_reference(out, lse)
    assert_as_exact_as_eager("output", got, eager.to(dtype), golden)
    assert_as_exact_as_eager("lse", got_lse, eager_lse, golden_lse)


def test_errors() -> None:
    out, lse = states(2, 5, 2, 8, torch.float32)
    with pytest.raises(InputError, match=r"of one shape, got \[5, 2, 8\], \[5, 2\], \[4, 2, 8\]"):
        merge_state(out[0], lse[0], out[1][:4], lse[1])
    with pytest.raises(UnsupportedImplementationError, match="impl 'cpu' cannot run here: the op has no such"):
        merge_state(out[0], lse[0], out[1], lse[1], impl="cpu")
