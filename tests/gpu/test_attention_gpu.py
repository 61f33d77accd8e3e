"""Attention as passes call it: strided operands that descriptors load, terms of scores, and latents."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from forests import Inputs, attention_inputs, random_forest
from tolerance import assert_as_exact_as_eager

from fastreader.ops.tree_attention import tree_attention

pytestmark = pytest.mark.gpu


def check(inputs: Inputs, dtype: torch.dtype) -> None:
    out, lse = tree_attention(
        inputs.query,
        inputs.key,
        inputs.value,
        inputs.subtree_end,
        scale=inputs.scale,
        plan=inputs.plan(),
        return_lse=True,
        impl="triton",
    )
    golden, golden_lse = inputs.golden()
    assert_as_exact_as_eager("output", out, inputs.eager(dtype)[0], golden)
    assert_as_exact_as_eager("lse", lse, inputs.eager(torch.float32)[1], golden_lse)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "size"), [((9, 3), 64), ((8, 2), 128), ((4, 4), 64), ((12, 1), 128)])
def test_views_of_queries_keys_and_values_side_by_side(
    heads: tuple[int, int], size: int, dtype: torch.dtype, seed: int
) -> None:
    forest = random_forest(seed, 37 + 211 * seed, (0.01, 0.1, 0.5)[seed % 3])
    inputs = attention_inputs(*forest, dtype=dtype, heads=heads, size=size).to("cuda")
    together = torch.cat([inputs.query, inputs.key, inputs.value], dim=1)
    query, key, value = together.split_with_sizes([heads[0], heads[1], heads[1]], dim=1)
    check(replace(inputs, query=query, key=key, value=value), dtype)


@pytest.mark.parametrize("size", [512, 576])
def test_latents(size: int) -> None:
    forest = random_forest(size, 400)
    inputs = attention_inputs(*forest, dtype=torch.bfloat16, heads=(16, 1), size=size, value_size=512)
    check(inputs.to("cuda"), torch.bfloat16)


@pytest.mark.parametrize("term", ["sinks", "slopes", "chunk"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_terms(term: str, dtype: torch.dtype) -> None:
    inputs = attention_inputs(*random_forest(3, 500), dtype=dtype, heads=(6, 2)).to("cuda")
    given = {"sinks": torch.randn(6, device="cuda"), "slopes": torch.rand(6, device="cuda") * 0.1, "chunk": 40}[term]
    positions = {"query_positions": inputs.query_positions, "key_positions": inputs.key_positions}
    options = {**positions, "scale": inputs.scale, "return_lse": True, term: given}
    operands = inputs.query, inputs.key, inputs.value
    wide = {k: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for k, v in options.items()}
    got = tree_attention(*operands, inputs.subtree_end, impl="triton", **options)
    want = tree_attention(*(x.double() for x in operands), inputs.subtree_end, impl="reference", **wide)
    assert float((got[0].double() - want[0]).abs().max()) < (0.02 if dtype == torch.bfloat16 else 1e-5)
    assert float((got[1].double() - want[1]).abs().max()) < 1e-3
