"""Sinks, chunks, slopes and wide heads of tree_attention and decode_attention, against the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attention_variants import VARIANTS, WIDE, definition, random_variant
from cpu_cases import MODES, PRECISION, available, inputs, measure, quantised
from test_decode_attention import operands, ranges_of

from fastreader.core.tree import PrefixTree
from fastreader.errors import InputError
from fastreader.ops import extension, tree_attention
from fastreader.ops.decode_attention import Ranges, decode_attention
from fastreader.ops.tree_attention import AttentionPlan

needs_extension = pytest.mark.skipif(not available(), reason=f"no C++ extension: {extension.why_missing()}")
isas = pytest.mark.parametrize("isa", available())


def run(drawn, subtree_end, query_node, options, **named):
    options = {"scale": drawn[0].shape[-1] ** -0.5, **options, **named}
    return tree_attention(*drawn, subtree_end, query_node=query_node, return_lse=True, **options)


@pytest.mark.parametrize("impl", ["reference", "torch"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.long(keep=4)
def test_the_definition_in_float64(variant, impl):
    for seed in range(12):
        drawn, subtree_end, query_node, options = random_variant(seed, variant, longest=60)
        wide = [t.double() for t in drawn]
        got = run(wide, subtree_end, query_node, options, impl=impl)
        want = definition(*wide, subtree_end, query_node, **{"scale": drawn[0].shape[-1] ** -0.5, **options})
        for mine, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10)


@needs_extension
@isas
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.long(keep=12)
def test_the_kernels_are_as_exact_as_eager(monkeypatch, variant, mode, isa):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    for seed in range(12):
        drawn, subtree_end, query_node, options = random_variant(seed, variant)
        got = measure(mode, *drawn, subtree_end, query_node, **options)
        assert got.error <= got.allowed and got.lse_error <= got.lse_allowed
        again = run(
            quantised(mode, *drawn), subtree_end, query_node, options, impl="cpu", input_precision=PRECISION[mode]
        )
        assert torch.equal(again[0], got.out) and torch.equal(again[1], got.lse)


@needs_extension
@isas
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("variant", ["sinks", "chunk", "slopes"])
def test_a_path_gives_the_same_bits_in_any_tree(monkeypatch, mode, isa, variant):
    """A path alone and among siblings. References and maxima change on the way, which a sink must not show."""
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    rng = np.random.default_rng(3)
    body = rng.integers(0, 50, 600).tolist()
    cuts, lengths = [31, 64, 511, 512, *[600] * 5], (300, 9, 70, 33, *range(2, 7))
    tree = PrefixTree.build(
        [(body[:cut] + rng.integers(0, 50, n).tolist(), []) for cut, n in zip(cuts, lengths, strict=True)]
    )
    count = len(tree)
    drawn = inputs(4, count, count, 3, 1)
    drawn[0] *= 3
    drawn[1] *= torch.linspace(0.2, 2.0, count)[:, None, None]
    drawn = quantised(mode, *drawn)
    positions = torch.from_numpy(tree.positions)
    options = {
        "sinks": {"sinks": torch.tensor([0.3, 11.7, -5.1])},
        "chunk": {"chunk": 100},
        "slopes": {"slopes": torch.tensor([0.5, 0.01, -0.03]), "sinks": torch.tensor([3.0, -2.0, float("-inf")])},
    }[variant]

    def attend(rows):
        size = torch.full((len(rows),), len(rows), dtype=torch.int32)
        ends = torch.from_numpy(tree.subtree_end) if len(rows) == count else size
        place = {"query_positions": positions[rows], "key_positions": positions[rows]}
        parts = [t[rows] for t in drawn]
        return run(parts, ends, None, {**options, **place}, impl="cpu", input_precision=PRECISION[mode])

    packed, packed_lse = attend(torch.arange(count))
    for leaf in tree.leaves:
        path = torch.tensor(tree.path(int(leaf)))
        alone, lse = attend(path)
        assert torch.equal(alone, packed[path]) and torch.equal(lse, packed_lse[path])
    # Few queries: each segment of keys is a separate task, and the sink enters once.
    few = torch.tensor([count - 1, int(tree.positions.argmax()), 5])
    place = {"query_positions": positions[few], "key_positions": positions}
    got, lse = run(
        [drawn[0][few], *drawn[1:]], torch.from_numpy(tree.subtree_end), few, {**options, **place}, impl="cpu",
        input_precision=PRECISION[mode],
    )  # fmt: skip
    assert torch.equal(got, packed[few]) and torch.equal(lse, packed_lse[few])


@needs_extension
@isas
@pytest.mark.parametrize("mode", MODES)
def test_a_sink_of_minus_infinity_changes_no_bit(monkeypatch, mode, isa):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    drawn, subtree_end, query_node, options = random_variant(1, "sinks")
    del options["sinks"]
    named = {"impl": "cpu", "input_precision": PRECISION[mode]}
    drawn = quantised(mode, *drawn)
    want = run(drawn, subtree_end, query_node, options, **named)
    none = torch.full((drawn[0].shape[1],), float("-inf"))
    got = run(drawn, subtree_end, query_node, {**options, "sinks": none}, **named)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


@pytest.mark.parametrize("impl", ["reference", "torch", *(["cpu"] if available() else [])])
def test_sinks_far_above_and_below_and_rows_that_see_nothing(impl):
    subtree_end = torch.tensor([1, 1, 4, 3, 0, 6, 6], dtype=torch.int32)
    query, key, value = inputs(3, 7, 7, 4, 2)
    sinks = torch.tensor([300.0, -300.0, 2.0, float("-inf")])
    out, lse = run((query, key, value), subtree_end, None, {"sinks": sinks}, impl=impl)
    want, want_lse = definition(query, key, value, subtree_end, scale=0.125, sinks=sinks)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse.double(), want_lse, rtol=1e-6, atol=1e-5)
    for row in (1, 4, 6):
        assert bool((out[row] == 0).all()) and torch.equal(lse[row], sinks)
    nothing = torch.zeros(7, dtype=torch.int32)
    out, lse = run((query, key, value), nothing, None, {"sinks": sinks}, impl=impl)
    assert bool((out == 0).all()) and torch.equal(lse, sinks.expand(7, 4))


@needs_extension
def test_a_nan_is_not_hidden_by_a_sink():
    query, key, value = inputs(0, 40, 40, 2, 1)
    key[7] = float("nan")
    subtree_end = torch.full((40,), 40, dtype=torch.int32)
    out, lse = run((query, key, value), subtree_end, None, {"sinks": torch.tensor([1.0, 2.0])}, impl="cpu")
    assert bool(out[7:].isnan().all()) and bool(lse[7:].isnan().all()) and bool(out[:7].isfinite().all())
    ranges = ranges_of([(0, 0, 40)])
    out, lse = decode_attention(query[:1], [key], [value], ranges, scale=0.1, sinks=torch.ones(2), impl="cpu")
    assert bool(out.isnan().all()) and bool(lse.isnan().all())


def test_a_shared_plan_serves_layers_with_and_without_chunks():
    drawn, subtree_end, query_node, options = random_variant(4, "chunk")
    nodes = None if query_node is None else query_node.numpy()
    positions = [options[name].numpy() for name in ("query_positions", "key_positions")]
    plan = AttentionPlan(subtree_end.numpy(), nodes, *positions)
    plain = {name: value for name, value in options.items() if name != "chunk"}
    for given in (options, plain, {**options, "chunk": 3}, {**plain, "window": options["chunk"]}):
        shared, alone = (run(drawn, subtree_end, query_node, given, plan=p) for p in (plan, None))
        assert torch.equal(shared[0], alone[0]) and torch.equal(shared[1], alone[1])


ROWS = [[(0, 0, 200), (1, 3, 5)], [(1, 0, 1)], [], [(0, 7, 7), (0, 9, 73), (1, 0, 40)], [(0, 5, 3)]]


def decode_case(dtype, heads, key_heads, size, value_size, sinks, slopes):
    """Return a call of decode_attention and its result by the definition. Ranges are end to end on a row's path."""
    query, keys, values = operands(dtype, len(ROWS), heads, key_heads, size, value_size, (200, 40), seed=size)
    flat = ranges_of(*ROWS)
    offset, outs, lses = np.zeros(len(flat.part), dtype=np.int32), [], []
    for b, row in enumerate(ROWS):
        lengths = [max(stop - start, 0) for _, start, stop in row]
        total = sum(lengths)
        firsts = np.cumsum([0, *lengths[:-1]]) if row else np.zeros(0)
        offset[flat.row_ptr[b] : flat.row_ptr[b + 1]] = firsts - (total + 2)  # the row stands a few places further on
        key, value = (torch.cat([t[p][i:j] for p, i, j in row if i < j] or [t[0][:0]]) for t in (keys, values))
        out, lse = definition(
            query[b : b + 1], key, value, torch.full((total,), total + 1, dtype=torch.int32),
            torch.tensor([total]), scale=size**-0.5, sinks=sinks, slopes=slopes,
            query_positions=torch.tensor([total + 2]), key_positions=torch.arange(total),
        )  # fmt: skip
        outs.append(out[0])
        lses.append(lse[0])
    ranges = Ranges(flat.row_ptr, flat.part, flat.start, flat.stop, offset)
    return (query, keys, values, ranges), (torch.stack(outs), torch.stack(lses))


DECODE = [(9, 3, 64, 64), (4, 4, 8, 8), (16, 2, 40, 24), (2, 1, 512, 512), (3, 1, 576, 512), (4, 2, 192, 128)]


@needs_extension
@isas
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", DECODE)
def test_decoding(monkeypatch, isa, dtype, shape):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    sinks = torch.linspace(-6, 6, shape[0])
    slopes = 2.0 ** -torch.linspace(0, 8, shape[0])
    for given in ({"sinks": sinks}, {"slopes": slopes}, {"sinks": sinks, "slopes": slopes}, {}):
        call, want = decode_case(dtype, *shape, given.get("sinks"), given.get("slopes"))
        for impl in ("cpu", "reference"):
            out, lse = decode_attention(*call, scale=shape[2] ** -0.5, impl=impl, **given)
            torch.testing.assert_close(out.double(), want[0], atol=4e-6, rtol=4e-6)
            torch.testing.assert_close(lse.double(), want[1], atol=6e-6, rtol=4e-6)


def test_errors():
    query, key, value = inputs(0, 3, 3)
    given = (query, key, value, torch.full((3,), 3, dtype=torch.int32))
    places = {
        "query_positions": torch.arange(3, dtype=torch.int32),
        "key_positions": torch.arange(3, dtype=torch.int32),
    }
    for options, message in (
        ({"chunk": 0, **places}, r"chunk must be from 1 to 1073741824 tokens, got 0"),
        ({"chunk": 2**31, **places}, "chunk must be from 1 to"),
        ({"chunk": 4, "window": 2, **places}, "chunk must be None with window, got 4"),
        ({"chunk": 4, "slopes": torch.ones(2), **places}, "chunk must be None with slopes, got 4"),
        ({"chunk": 4}, "a chunk needs query_positions and key_positions, got None"),
        ({"slopes": torch.ones(2)}, "slopes needs? query_positions and key_positions, got None"),
        ({"sinks": torch.ones(3)}, r"sinks must be floating \[2\], one for each query head, got float32 \[3\]"),
        ({"sinks": torch.ones(2, dtype=torch.int64)}, r"got int64 \[2\]"),
        ({"slopes": torch.ones(1, 2), **places}, r"slopes must be floating \[2\], .* got float32 \[1, 2\]"),
        ({"sinks": torch.ones(2, requires_grad=True)}, "sinks requires a gradient"),
    ):
        with pytest.raises(InputError, match=message):
            tree_attention(*given, scale=1.0, **options)
    with pytest.raises(InputError, match="multiple of 8 up to 576, got 584"):
        tree_attention(*inputs(0, 3, 3, 2, 1, 584), given[3], scale=1.0)
    plan = AttentionPlan(given[3].numpy())
    with pytest.raises(InputError, match="a chunk needs query_positions"):
        tree_attention(*given, scale=1.0, chunk=2, plan=plan, **places)
    with pytest.raises(InputError, match="slopes need ranges with offsets"):
        decode_attention(query, [key], [value], ranges_of(*[[(0, 0, 3)]] * 3), scale=1.0, slopes=torch.ones(2))


@needs_extension
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("size", "value_size"), WIDE)
def test_wide_heads_on_a_long_path(mode, size, value_size):
    count = 300
    subtree_end = torch.full((count,), count, dtype=torch.int32)
    got = measure(mode, *inputs(size, count, count, 3, 1, size, value_size), subtree_end)
    assert got.error <= got.allowed and got.lse_error <= got.lse_allowed
