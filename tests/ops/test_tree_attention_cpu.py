"""tree_attention's C++ kernels against float64, on every instruction set of this machine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cpu_cases import MODES, PRECISION, available, forest, inputs, measure, quantised, random_case
from hypothesis import given, settings
from hypothesis import strategies as st

from fastreader.core.tree import PrefixTree
from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.serving import serving
from fastreader.ops.tree_attention import AttentionPlan, tree_attention

pytestmark = pytest.mark.skipif(not available(), reason=f"no C++ extension: {extension.why_missing()}")


@pytest.fixture(params=available())
def isa(request, monkeypatch):
    monkeypatch.setenv("FASTREADER_CPU_ISA", request.param)
    return request.param


def check(mode, query, key, value, subtree_end, query_node=None, **options):
    got = measure(mode, query, key, value, subtree_end, query_node, **options)
    assert got.out.dtype == (torch.bfloat16 if mode == "bfloat16" else torch.float32)
    assert got.lse.dtype == torch.float32
    assert got.error <= got.allowed
    assert got.lse_error <= got.lse_allowed
    options.setdefault("scale", query.shape[-1] ** -0.5)
    inputs = quantised(mode, query, key, value)
    again = tree_attention(
        *inputs, subtree_end, query_node=query_node, impl="cpu", input_precision=PRECISION[mode], **options
    )
    assert torch.equal(got.out, again)
    return got.out, got.lse


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [0, 1, 63, 127, 129])
def test_lengths(isa, mode, length):
    subtree_end = torch.full((length,), length, dtype=torch.int32)
    check(mode, *inputs(length, length, length), subtree_end)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("size", "value_size"), [(8, 8), (24, 40), (64, 7), (96, 96), (128, 64), (200, 256), (256, 8)])
def test_head_sizes(isa, mode, size, value_size):
    tree = forest(np.random.default_rng(size), 6, 60)
    check(
        mode,
        *inputs(size, len(tree), len(tree), 3, 1, size, value_size),
        torch.from_numpy(tree.subtree_end),
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("heads", "key_heads"), [(1, 1), (4, 4), (9, 3), (14, 2), (40, 1)])
@pytest.mark.long(keep=20)
def test_grouped_heads(isa, mode, heads, key_heads):
    tree = forest(np.random.default_rng(heads), 8, 80)
    check(mode, *inputs(heads, len(tree), len(tree), heads, key_heads), torch.from_numpy(tree.subtree_end))


@pytest.mark.parametrize("mode", MODES)
def test_strided_inputs(isa, mode):
    tree = forest(np.random.default_rng(0), 8, 80)
    count = len(tree)
    query, key, value = quantised(mode, *inputs(0, count, count, 4, 2))
    subtree_end = torch.from_numpy(tree.subtree_end)
    plain = tree_attention(query, key, value, subtree_end, scale=0.125, impl="cpu")
    fused = torch.cat([query, key, value], dim=1)
    parts = fused[:, :4], fused[:, 4:6], fused[:, 6:]
    assert torch.equal(tree_attention(*parts, subtree_end, scale=0.125, impl="cpu"), plain)
    by_head = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (query, key, value)]
    assert torch.equal(tree_attention(*by_head, subtree_end, scale=0.125, impl="cpu"), plain)
    columns = [t.transpose(0, 2).contiguous().transpose(0, 2) for t in (query, key, value)]
    assert torch.equal(tree_attention(*columns, subtree_end, scale=0.125, impl="cpu"), plain)


@pytest.mark.parametrize("mode", MODES)
def test_rows_that_see_nothing(isa, mode):
    subtree_end = torch.tensor([1, 1, 4, 3, 0, 6, 6], dtype=torch.int32)
    got, lse = check(mode, *inputs(3, 7, 7), subtree_end)
    for row in (1, 4, 6):
        assert bool((got[row] == 0).all()) and bool(lse[row].isneginf().all())
    nothing = torch.zeros(150, dtype=torch.int32)
    got, lse = check(mode, *inputs(3, 150, 150), nothing)
    assert bool((got == 0).all()) and bool(lse.isneginf().all())


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from(MODES), st.sampled_from(available() or ["none"]))
def test_random_forests(seed, mode, isa):
    drawn, subtree_end, query_node, options = random_case(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTREADER_CPU_ISA", isa)
        check(mode, *drawn, subtree_end, query_node, **options)


@pytest.mark.parametrize("mode", MODES)
def test_scores_that_rise_along_the_keys(isa, mode):
    """The running maximum rises again and again, by less and by more than the remaining slack."""
    count = 700
    query, key, value = inputs(5, count, count, 1, 1)
    query[:] = 1.0
    key = key * 0.01 + torch.linspace(-4, 4, count)[:, None, None]
    subtree_end = torch.full((count,), count, dtype=torch.int32)
    for scale in (0.05, 0.5):
        check(mode, query, key, value, subtree_end, scale=scale)


def test_results_do_not_depend_on_threads_or_company(isa):
    rng = np.random.default_rng(1)
    sequences = [(rng.integers(0, 50, 200).tolist(), rng.integers(0, 50, 6).tolist()) for _ in range(6)]
    tree = PrefixTree.build(sequences)
    query, key, value = (t.bfloat16() for t in inputs(1, len(tree), len(tree), 6, 2))
    subtree_end = torch.from_numpy(tree.subtree_end)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = tree_attention(query, key, value, subtree_end, scale=0.125, impl="cpu")
        torch.set_num_threads(max(before, 2))
        together = tree_attention(query, key, value, subtree_end, scale=0.125, impl="cpu")
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, together)
    # Keys of another root change nothing here.
    first = int(tree.subtree_end[0])
    key[first:] = 7.0
    value[first:] = -3.0
    assert torch.equal(tree_attention(query, key, value, subtree_end, scale=0.125, impl="cpu")[:first], alone[:first])


def test_plan_is_shared(isa):
    tree = forest(np.random.default_rng(2), 8, 80)
    query, key, value = inputs(2, len(tree), len(tree))
    subtree_end = torch.from_numpy(tree.subtree_end)
    plan = AttentionPlan(tree.subtree_end)
    with_plan = tree_attention(query, key, value, subtree_end, scale=0.125, plan=plan, impl="cpu")
    assert torch.equal(with_plan, tree_attention(query, key, value, subtree_end, scale=0.125, impl="cpu"))


def test_auto_picks_the_kernel_and_reports_it():
    subtree_end = torch.tensor([2, 2], dtype=torch.int32)
    query, key, value = inputs(0, 2, 2)
    by_kernel = tree_attention(query, key, value, subtree_end, scale=1.0, impl="cpu")
    assert torch.equal(tree_attention(query, key, value, subtree_end, scale=1.0), by_kernel)
    assert serving()["tree_attention"][0].implementation == "cpu"


def test_errors(monkeypatch):
    subtree_end = torch.tensor([2, 2], dtype=torch.int32)
    query, key, value = inputs(0, 2, 2)
    doubles = [t.double() for t in (query, key, value)]
    with pytest.raises(UnsupportedImplementationError, match=r"take float32 and bfloat16, got torch\.float64"):
        tree_attention(*doubles, subtree_end, scale=1.0, impl="cpu")
    assert tree_attention(*doubles, subtree_end, scale=1.0).dtype == torch.float64
    with pytest.raises(UnsupportedImplementationError, match="impl must be one of"):
        tree_attention(query, key, value, subtree_end, scale=1.0, impl="fastest")
    with pytest.raises(InputError, match="requires a gradient"):
        tree_attention(query.requires_grad_(), key, value, subtree_end, scale=1.0, impl="cpu")
    with pytest.raises(InputError, match="input_precision 'bf16x3' takes float32"):
        tree_attention(*doubles, subtree_end, scale=1.0, input_precision="bf16x3")
    monkeypatch.setenv("FASTREADER_CPU_ISA", "sse9")
    with pytest.raises(InputError, match=r"FASTREADER_CPU_ISA: expected one of this machine's .*, got 'sse9'"):
        tree_attention(query.detach(), key, value, subtree_end, scale=1.0, impl="cpu")


@pytest.mark.usefixtures("nothing_served")
def test_without_the_extension(monkeypatch):
    monkeypatch.setattr(extension, "why_missing", lambda: "the C++ extension is not there; to get it, build it")
    subtree_end = torch.tensor([2, 2], dtype=torch.int32)
    query, key, value = inputs(0, 2, 2)
    with pytest.raises(UnsupportedImplementationError, match="to get it, build it"):
        tree_attention(query, key, value, subtree_end, scale=1.0, impl="cpu")
    by_torch = tree_attention(query, key, value, subtree_end, scale=1.0, impl="torch")
    assert torch.equal(tree_attention(query, key, value, subtree_end, scale=1.0), by_torch)
    assert serving()["tree_attention"][0].implementation == "torch"


def arguments(tree, mode="float32", window=None, heads=(None, None)):
    """Return the arguments of the op. `heads` are sinks and slopes."""
    count = len(tree)
    positions = torch.from_numpy(tree.positions)
    plan = AttentionPlan(tree.subtree_end, None, tree.positions, tree.positions)
    tables = [*plan.slots.tensors, *plan.schedule(window, 42, 64, None).tensors]
    drawn = quantised(mode, *inputs(0, count, count, 3, 1))
    return (
        *drawn,
        *tables[:4],
        torch.arange(count),
        positions,
        positions,
        *tables[4:],
        0.125,
        window,
        None,
        *heads,
        None,
        True,
        "auto",
    )


@pytest.mark.parametrize("mode", ["float32", "bfloat16"])
@pytest.mark.parametrize("window", [None, 5])
def test_opcheck(mode, window):
    tree = forest(np.random.default_rng(0), 4, 30)
    for heads in ((None, None), (torch.ones(3), torch.rand(3))):
        torch.library.opcheck(torch.ops.fastreader.tree_attention.default, arguments(tree, mode, window, heads))


def test_opcheck_slots():
    torch.library.opcheck(torch.ops.fastreader.tree_slots.default, (torch.tensor([4, 4, 3, 4], dtype=torch.int32),))


def test_a_schedule_out_of_range_raises():
    tree = forest(np.random.default_rng(0), 4, 30)
    good = list(arguments(tree))
    # slot_key, tile_start, tile_stop, block_stop
    for index, place, change in ((3, 0, len(tree)), (10, 0, 1), (11, -1, 1), (14, -1, 32 * len(tree))):
        bad = list(good)
        bad[index] = good[index].clone()
        bad[index][place] += change
        with pytest.raises(RuntimeError, match=r"schedule|out of range"):
            torch.ops.fastreader.tree_attention(*bad)


def test_subtree_end_of_no_tree_raises():
    with pytest.raises(InputError, match="not of a tree in depth-first order: key 1 ends at 3"):
        tree_attention(*inputs(0, 3, 3), torch.tensor([2, 3, 3], dtype=torch.int32), scale=1.0, impl="cpu")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("window", [None, 40])
def test_a_path_gives_the_same_bits_in_any_tree(isa, mode, window):
    """A path alone, among siblings that branch off everywhere, and in tiles of other rows has the same bits."""
    rng = np.random.default_rng(3)
    body = rng.integers(0, 50, 1100).tolist()
    cuts = [31, 64, 511, 512, 700, 701, *[1100] * 9]
    tails = [rng.integers(0, 50, n).tolist() for n in (600, 9, 70, 33, 2, 5, *range(2, 11))]
    tree = PrefixTree.build([(body[:cut] + tail, []) for cut, tail in zip(cuts, tails, strict=True)])
    count, scale = len(tree), 0.125
    drawn = inputs(4, count, count, 3, 1)
    # A few keys far above the others, and a rising trend: references and maxima change on the way.
    drawn[0] *= 3
    drawn[1] *= torch.linspace(0.2, 2.0, count)[:, None, None]
    query, key, value = quantised(mode, *drawn)
    positions = torch.from_numpy(tree.positions)

    def run(rows):
        size = torch.full((len(rows),), len(rows), dtype=torch.int32)
        subtree_end = torch.from_numpy(tree.subtree_end) if len(rows) == count else size
        place = {"query_positions": positions[rows], "key_positions": positions[rows], "window": window}
        return tree_attention(
            query[rows],
            key[rows],
            value[rows],
            subtree_end,
            scale=scale,
            impl="cpu",
            input_precision=PRECISION[mode],
            return_lse=True,
            **place,
        )

    packed, packed_lse = run(torch.arange(count))
    for leaf in tree.leaves:
        path = torch.tensor(tree.path(int(leaf)))
        alone, lse = run(path)
        assert torch.equal(alone, packed[path]) and torch.equal(lse, packed_lse[path])


@pytest.mark.parametrize("mode", MODES)
def test_few_queries_split_over_the_keys_give_the_same_bits(isa, mode):
    """Compare decoding of a few tokens, one of which sees nothing, with the whole pass over the same tree."""
    tree = forest(np.random.default_rng(7), 4, 1900, 50)
    count = len(tree)
    assert tree.positions.max() > 1024  # three segments at least
    query, key, value = quantised(mode, *inputs(6, count, count, 2, 1))
    subtree_end = torch.from_numpy(tree.subtree_end)
    options = {"scale": 0.125, "impl": "cpu", "input_precision": PRECISION[mode], "return_lse": True}
    whole, whole_lse = tree_attention(query, key, value, subtree_end, **options)
    query_node = torch.tensor([count - 1, int(tree.positions.argmax()), 5])
    few, lse = tree_attention(query[query_node], key, value, subtree_end, query_node=query_node, **options)
    assert torch.equal(few, whole[query_node]) and torch.equal(lse, whole_lse[query_node])
    nowhere = torch.tensor([-1, 5])
    got, lse = tree_attention(query[nowhere], key, value, subtree_end, query_node=nowhere, **options)
    assert bool((got[0] == 0).all()) and bool(lse[0].isneginf().all()) and torch.equal(got[1], few[2])


@pytest.mark.parametrize("impl", ["cpu", "torch"])
def test_query_nodes_beyond_all_that_is_seen(impl):
    query, key, value = quantised("float32", *inputs(8, 2, 3))
    for subtree_end in ([3, 3, 3], [10, 10, 10], [1, 2, 3]):
        for query_node in ([-1, -1], [7, 7], [2, 5], [-1, 2]):
            given = (query, key, value, torch.tensor(subtree_end, dtype=torch.int32))
            options = {"query_node": torch.tensor(query_node), "scale": 0.3, "return_lse": True}
            got, want = (tree_attention(*given, **options, impl=name) for name in (impl, "reference"))
            torch.testing.assert_close(got[0], want[0].float(), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(got[1], want[1].float(), rtol=1e-4, atol=1e-5)
    nothing = (query, key[:0], value[:0], torch.zeros(0, dtype=torch.int32))
    out, lse = tree_attention(*nothing, query_node=torch.tensor([0, 0]), scale=1.0, return_lse=True, impl=impl)
    assert bool((out == 0).all()) and bool(lse.isneginf().all())


def test_a_nan_is_not_hidden(isa):
    """Neither one task nor parts of the keys hide it, although a part of NaN raises no maximum."""
    count = 1100
    subtree_end = torch.full((count,), count, dtype=torch.int32)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn((n, h, 64), generator=generator) for n, h in ((1, 32), (count, 1), (count, 1)))
    query[0] = float("nan")
    query_node = torch.tensor([count - 1])
    out, lse = tree_attention(
        query, key, value, subtree_end, query_node=query_node, scale=0.125, return_lse=True, impl="cpu"
    )
    assert bool(out.isnan().all()) and bool(lse.isnan().all())
    out, lse = tree_attention(
        query,
        key[:9],
        value[:9],
        subtree_end[:9] * 0 + 9,
        query_node=torch.tensor([8]),
        scale=0.125,
        return_lse=True,
        impl="cpu",
    )
    assert bool(out.isnan().all()) and bool(lse.isnan().all())


def test_a_tile_larger_than_the_kernels_hold_raises(monkeypatch):
    """The op itself checks, since its schedules may come from elsewhere."""
    from fastreader.ops.tree_attention import cpu

    monkeypatch.setattr(cpu, "query_block", lambda groups, size: 4096)
    query, key, value = quantised("float32", *inputs(9, 2100, 2100, 1, 1, 8))
    subtree_end = torch.full((2100,), 2100, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="a tile of the schedule has 2112 rows, at most 2048 are possible"):
        tree_attention(query, key, value, subtree_end, scale=1.0, impl="cpu")
