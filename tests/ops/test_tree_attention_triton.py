"""The Triton kernel of tree_attention in the interpreter, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from forests import Inputs, attention_inputs, forest, random_forest
from helpers.support import LONG_FORMS, chequered
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_as_exact_as_eager

from fastreader.errors import UnsupportedImplementationError
from fastreader.ops import tree_attention

pytestmark = pytest.mark.interpreter
SINGLE_AND_HALF = (torch.float32, torch.float16)
SMALL = (32, 16, 4, 2)  # blocks small enough that a hundred tokens take many


def check(inputs: Inputs, block: tuple[int, int, int, int] | None = SMALL, num_splits: int | None = None) -> None:
    from fastreader.ops.tree_attention.triton import tree_attention_triton
    from fastreader.ops.tree_attention.triton_config import TreeAttentionConfig

    config = None if block is None else TreeAttentionConfig(*block)
    out, lse = tree_attention_triton(inputs.context(), config=config, num_splits=num_splits)
    golden, golden_lse = inputs.golden()
    eager, _ = inputs.eager(inputs.query.dtype)
    _, eager_lse = inputs.eager(torch.float32)
    assert out.dtype == inputs.query.dtype
    assert lse.dtype == torch.float32
    assert_as_exact_as_eager("output", out, eager, golden)
    assert_as_exact_as_eager("lse", lse, eager_lse, golden_lse)


@pytest.mark.parametrize(("length", "dtype"), chequered([0, 1, 63, 127, 129], SINGLE_AND_HALF))
def test_lengths(length: int, dtype: torch.dtype) -> None:
    check(attention_inputs(*forest([0] * length), dtype=dtype, heads=(3, 1), size=16))


HEADS = [(8, 8, (2, 2)), (24, 40, (3, 1)), (64, 64, (9, 3)), (80, 80, (4, 2)), (96, 32, (2, 1)), (256, 256, (2, 1))]


@pytest.mark.parametrize(("size", "value_size", "heads", "dtype"), chequered(HEADS, SINGLE_AND_HALF))
def test_head_sizes(size: int, value_size: int, heads: tuple[int, int], dtype: torch.dtype) -> None:
    tree = random_forest(size, 50)
    check(attention_inputs(*tree, dtype=dtype, heads=heads, size=size, value_size=value_size))


@pytest.mark.parametrize(("size", "dtype"), chequered([64, 128, 192], SINGLE_AND_HALF))
def test_pinned_configurations(size: int, dtype: torch.dtype) -> None:
    check(attention_inputs(*random_forest(size, 100), dtype=dtype, heads=(3, 1), size=size), block=None)


def test_bfloat16_by_way_of_float32() -> None:
    check(attention_inputs(*random_forest(3, 100), dtype=torch.bfloat16))


@pytest.mark.parametrize(("window", "dtype"), chequered([1, 7, 40], SINGLE_AND_HALF))
def test_window(window: int, dtype: torch.dtype) -> None:
    check(attention_inputs(*random_forest(window, 70), dtype=dtype, size=32, window=window))


@pytest.mark.parametrize("dtype", SINGLE_AND_HALF)
def test_softcap(dtype: torch.dtype) -> None:
    inputs = attention_inputs(*random_forest(5, 70), dtype=dtype, size=32, softcap=2.0)
    check(inputs)
    check(replace(inputs, softcap=50.0, scale=3.0, window=20))


SINKS = torch.tensor([0.5, -3.0, 7.0, float("-inf"), 2.0, 60.0])
SLOPES = torch.tensor([0.5, 0.25, 0.01, 0.0, -0.1, 0.125])


@pytest.mark.parametrize(("num_splits", "dtype"), [(1, torch.float32), (3, torch.float16)])
@pytest.mark.long(keep=2)
def test_sinks(num_splits: int, dtype: torch.dtype) -> None:
    inputs = attention_inputs(*random_forest(7, 70), dtype=dtype, size=32, window=30)
    check(replace(inputs, sinks=SINKS), num_splits=num_splits)
    check(replace(inputs, sinks=SINKS, window=None, softcap=3.0), num_splits=num_splits)


@pytest.mark.parametrize(("num_splits", "dtype"), [(1, torch.float16), (3, torch.float32)])
@pytest.mark.long(keep=2)
def test_slopes(num_splits: int, dtype: torch.dtype) -> None:
    inputs = attention_inputs(*random_forest(8, 70), dtype=dtype, size=32, window=30)
    check(replace(inputs, slopes=SLOPES), num_splits=num_splits)
    check(replace(inputs, slopes=SLOPES, sinks=SINKS, window=None, softcap=3.0), num_splits=num_splits)


@pytest.mark.parametrize(
    ("size", "value_size", "dtype"),
    [(512, 512, torch.float32), (512, 512, torch.float16), (576, 512, torch.float16), (192, 128, torch.float16)],
)
@pytest.mark.long(keep=2)
def test_wide_heads(size: int, value_size: int, dtype: torch.dtype) -> None:
    inputs = attention_inputs(*random_forest(size, 60), dtype=dtype, heads=(2, 1), size=size, value_size=value_size)
    check(replace(inputs, slopes=SLOPES[:2], sinks=SINKS[:2]), block=None)
    check(inputs, num_splits=2)


@pytest.mark.parametrize("chunk", [1, 7, 40, 500])
def test_chunks(chunk: int) -> None:
    inputs = attention_inputs(*random_forest(chunk, 70), dtype=torch.float32, size=32)
    positions = {"query_positions": inputs.query_positions, "key_positions": inputs.key_positions}
    given = (inputs.query, inputs.key, inputs.value, inputs.subtree_end)
    options = {"scale": inputs.scale, "chunk": chunk, "sinks": SINKS, **positions}
    by_triton, by_reference = (tree_attention(*given, impl=impl, **options) for impl in ("triton", "reference"))
    torch.testing.assert_close(by_triton, by_reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, -0.3])
@pytest.mark.parametrize("softcap", [None, 3.0])
def test_scale_that_is_not_positive(scale: float, softcap: float | None) -> None:
    inputs = attention_inputs(*random_forest(6, 60), dtype=torch.float32, size=16, softcap=softcap)
    check(replace(inputs, scale=scale))


@pytest.mark.parametrize(("num_splits", "dtype"), chequered([1, 3, None], SINGLE_AND_HALF))
def test_decoding_splits_the_keys(num_splits: int | None, dtype: torch.dtype) -> None:
    subtree_end, positions = random_forest(8, 300, branching=0.02)
    leaves = np.array([17, 299, 120, 121, 250])
    inputs = attention_inputs(subtree_end, positions, dtype=dtype, heads=(3, 1), size=32, query_node=leaves)
    check(inputs, block=None, num_splits=num_splits)
    check(replace(inputs, window=50), block=SMALL, num_splits=num_splits)


def test_more_grouped_heads_than_rows() -> None:
    check(attention_inputs(*random_forest(9, 12), dtype=torch.float32, heads=(41, 1), size=16))


@pytest.mark.parametrize("num_splits", [1, 2])
def test_rows_that_see_nothing(num_splits: int) -> None:
    subtree_end, positions = forest([0] * 40 + [99] + [0] * 39)
    subtree_end[:40] = np.arange(40)  # the first tree is expired from the start
    inputs = attention_inputs(subtree_end, positions, dtype=torch.float32, heads=(2, 1), size=16)
    check(inputs, num_splits=num_splits)
    _, lse = inputs.golden()
    assert lse[:40].isneginf().all()
    assert lse[40:].isfinite().all()
    check(replace(inputs, sinks=SINKS[2:4]), num_splits=num_splits)


def test_strided_inputs() -> None:
    subtree_end, positions = random_forest(10, 70)
    inputs = attention_inputs(subtree_end, positions, dtype=torch.float16, heads=(4, 2), size=32)
    packed = torch.cat([inputs.query, inputs.key, inputs.value], dim=1)  # [T, 4 + 2 + 2, D]
    columns = inputs.key.permute(2, 1, 0).contiguous().permute(2, 1, 0)  # head size outermost
    check(replace(inputs, query=packed[:, :4], key=packed[:, 4:6], value=packed[:, 6:]))
    check(replace(inputs, key=columns, query=inputs.query.transpose(0, 1).contiguous().transpose(0, 1)))


def test_strided_indices() -> None:
    subtree_end, positions = random_forest(10, 70)
    inputs = attention_inputs(subtree_end, positions, dtype=torch.float32, heads=(2, 1), size=16)
    plain = [torch.from_numpy(a.astype(np.int32)) for a in (subtree_end, np.arange(len(subtree_end)), positions)]
    apart = [torch.stack([t, t + 9], 1)[:, 0] for t in plain]
    got = [
        tree_attention(
            inputs.query, inputs.key, inputs.value, u, query_node=a, query_positions=p, key_positions=p, window=7,
            scale=0.25, impl="triton",
        )
        for u, a, p in (plain, apart)
    ]  # fmt: skip
    assert torch.equal(*got)


@pytest.mark.parametrize(("size", "heads"), [(16, (6, 2)), (64, (2, 1))])
def test_tiles_loaded_by_descriptors(size: int, heads: tuple[int, int]) -> None:
    from fastreader.ops.tree_attention.triton import tree_attention_triton
    from fastreader.ops.tree_attention.triton_config import TreeAttentionConfig

    for length in (5, 70):
        inputs = attention_inputs(*random_forest(length, length), dtype=torch.float16, heads=heads, size=size)
        both = torch.cat([inputs.key, inputs.value], dim=1)  # rows of keys and values with others between them
        inputs = replace(inputs, key=both[:, : heads[1]], value=both[:, heads[1] :])
        for num_splits in (1, 3):
            (out, lse), (plain, plain_lse) = (
                tree_attention_triton(
                    inputs.context(), config=TreeAttentionConfig(*SMALL, described=by), num_splits=num_splits
                )
                for by in (True, False)
            )
            assert torch.equal(out, plain)
            assert torch.equal(lse, plain_lse)


def test_float32_as_two_terms() -> None:
    from fastreader.ops.tree_attention.triton import tree_attention_triton
    from fastreader.ops.tree_attention.triton_config import TreeAttentionConfig

    worst = 0.0
    for seed in range(4):
        inputs = attention_inputs(*random_forest(seed, 70), dtype=torch.float32, heads=(3, 1), size=16, seed=seed)
        config = TreeAttentionConfig(*SMALL, split=True)
        out, lse = tree_attention_triton(inputs.context(), config=config, num_splits=1 + seed % 2)
        golden, golden_lse = inputs.golden()
        worst = max(worst, float((out - golden).abs().max()), float((lse - golden_lse).abs().max()))
    assert 1e-6 < worst <= 2e-4  # the interpreter cuts the terms off, a device rounds them


def test_another_tree_changes_nothing() -> None:
    """The keys that a query cannot see do not change a bit of its result."""
    from fastreader.ops.tree_attention.triton import tree_attention_triton
    from fastreader.ops.tree_attention.triton_config import TreeAttentionConfig

    inputs = attention_inputs(*forest([0] * 50 + [99] + [0] * 49), dtype=torch.float32, size=32)
    other = replace(inputs, key=inputs.key.clone(), value=inputs.value.clone())
    other.key[50:] *= -3
    other.value[50:] += 7
    results = [
        tree_attention_triton(i.context(return_lse=False), config=TreeAttentionConfig(*SMALL))[0]
        for i in (inputs, other)
    ]
    assert torch.equal(results[0][:50], results[1][:50])


@settings(max_examples=15 if LONG_FORMS else 6, deadline=None)
@given(
    climbs=st.lists(st.one_of(st.just(0), st.integers(0, 12)), min_size=1, max_size=60),
    window=st.one_of(st.none(), st.integers(1, 20)),
    softcap=st.sampled_from([None, 4.0]),
    heads=st.sampled_from([(1, 1), (3, 1), (4, 2)]),
    query_nodes=st.one_of(st.none(), st.lists(st.integers(0, 1000), max_size=20)),
    num_splits=st.sampled_from([1, 2, 5]),
    dtype=st.sampled_from(SINGLE_AND_HALF),
)
def test_random_forests(
    climbs: list[int],
    window: int | None,
    softcap: float | None,
    heads: tuple[int, int],
    query_nodes: list[int] | None,
    num_splits: int,
    dtype: torch.dtype,
) -> None:
    subtree_end, positions = forest(climbs)
    query_node = None if query_nodes is None else np.array(query_nodes, dtype=np.int64) % len(subtree_end)
    options: dict[str, Any] = {
        "window": window,
        "softcap": softcap,
        "query_node": query_node,
        "heads": heads,
        "dtype": dtype,
        "size": 16,
    }
    check(attention_inputs(subtree_end, positions, **options), block=(16, 16, 4, 2), num_splits=num_splits)


def test_dispatch_by_name() -> None:
    inputs = attention_inputs(*random_forest(11, 80), dtype=torch.float16, size=32, window=30)
    out = tree_attention(
        *(inputs.query, inputs.key, inputs.value, inputs.subtree_end),
        query_positions=inputs.query_positions,
        key_positions=inputs.key_positions,
        scale=inputs.scale,
        window=30,
        impl="triton",
    )
    assert isinstance(out, torch.Tensor)
    assert_as_exact_as_eager("output", out, inputs.eager(torch.float16)[0], inputs.golden()[0])


def test_unsupported_inputs_raise() -> None:
    inputs = attention_inputs(*random_forest(12, 10), dtype=torch.float32, size=16, value_size=520)
    with pytest.raises(UnsupportedImplementationError, match="value sizes up to 512, got 520"):
        tree_attention(inputs.query, inputs.key, inputs.value, inputs.subtree_end, scale=1.0, impl="triton")
    inputs = attention_inputs(*random_forest(12, 10), dtype=torch.float32, size=576, value_size=16)
    with pytest.raises(UnsupportedImplementationError, match="float32 head sizes up to 512, got 576"):
        tree_attention(inputs.query, inputs.key, inputs.value, inputs.subtree_end, scale=1.0, impl="triton")
    inputs = attention_inputs(*random_forest(12, 10), dtype=torch.float64, size=16)
    with pytest.raises(UnsupportedImplementationError, match="float16, bfloat16 or float32, got float64"):
        tree_attention(inputs.query, inputs.key, inputs.value, inputs.subtree_end, scale=1.0, impl="triton")


@pytest.mark.parametrize(("window", "return_lse", "num_splits"), [(None, True, 1), (9, False, 2)])
@pytest.mark.long(keep=2)
def test_opcheck(window: int | None, return_lse: bool, num_splits: int) -> None:
    from fastreader.ops.tree_attention.triton import device_schedule
    from fastreader.ops.tree_attention.triton_config import TreeAttentionConfig

    inputs = attention_inputs(*random_forest(1, 40), dtype=torch.float32, heads=(3, 1), size=16)
    tables = device_schedule(inputs.plan().schedule(window, 8, 16), torch.device("cpu"))
    positions = (inputs.query_positions, inputs.key_positions) if window else (None, None)
    tensors = (inputs.query, inputs.key, inputs.value, inputs.subtree_end, inputs.query_node, *positions, *tables[:3])
    config = (return_lse, num_splits, list(TreeAttentionConfig(32, 16, 4, 2)))
    options = (inputs.scale, window, None, torch.ones(3), torch.rand(3) if window else None)
    torch.library.opcheck(torch.ops.fastreader.tree_attention_triton.default, (*tensors, *options, *config))
