"""decode_attention against the definition in float64, for every instruction set."""

import numpy as np
import pytest
import torch
from cpu_cases import available
from hypothesis import given, settings
from hypothesis import strategies as st

from fastreader.errors import InputError, UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.decode_attention import Ranges, decode_attention
from fastreader.ops.serving import serving
from fastreader.ops.tree_attention import tree_attention

needs_extension = pytest.mark.skipif(extension.why_missing() is not None, reason=str(extension.why_missing()))
LENGTHS = (0, 1, 15, 16, 63, 64, 65, 129)


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def ranges_of(*rows) -> Ranges:
    """Make ranges. Each row is a list of (part, start, stop)."""
    flat = [r for row in rows for r in row]
    pointer = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    columns = np.array(flat, dtype=np.int32).reshape(-1, 3).T.copy()
    return Ranges(pointer, *columns)


def dense(query, keys, values, rows, scale, softcap):
    """Attend row by row with tree_attention's reference over gathered keys, in float64."""
    outs, lses = [], []
    for b, row in enumerate(rows):
        key = torch.cat([keys[p][i:j] for p, i, j in row] or [keys[0][:0]]).double()
        value = torch.cat([values[p][i:j] for p, i, j in row] or [values[0][:0]]).double()
        subtree_end = torch.full((len(key),), max(len(key), 1), dtype=torch.int32)
        node = torch.tensor([max(len(key), 1) - 1])
        options = {"scale": scale, "softcap": softcap, "return_lse": True, "impl": "reference"}
        out, lse = tree_attention(query[b : b + 1].double(), key, value, subtree_end, query_node=node, **options)
        outs.append(out[0])
        lses.append(lse[0])
    return torch.stack(outs), torch.stack(lses)


def operands(dtype, rows, heads, key_heads, size, value_size, lengths, seed):
    query = random(rows, heads, size, seed=seed).to(dtype)
    keys = [random(n, key_heads, size, seed=seed + 1 + i).to(dtype) for i, n in enumerate(lengths)]
    values = [random(n, key_heads, value_size, seed=seed + 50 + i).to(dtype) for i, n in enumerate(lengths)]
    return query, keys, values


def check(got, want):
    out, lse = got
    assert out.dtype == lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), want[0], atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(lse.double(), want[1], atol=3e-6, rtol=2e-6)


ROWS = [
    [(0, 0, 200), (1, 3, 5)],
    [(1, 0, 1)],
    [],
    [(0, 7, 7), (0, 9, 73), (0, 100, 164), (1, 0, 40)],
    [(0, 5, 3)],  # an empty range may have its stop before its start
    [(1, 0, 15), (0, 0, 16), (0, 30, 93)],
]


@needs_extension
@pytest.mark.parametrize("isa", available())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "key_heads", "size", "value_size"),
    [(9, 3, 64, 64), (4, 4, 8, 8), (4, 2, 24, 40), (5, 1, 128, 128), (16, 2, 40, 24), (2, 1, 256, 256), (14, 2, 96, 1)],
)
def test_equals_the_definition(monkeypatch, isa, dtype, heads, key_heads, size, value_size):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    for softcap in (None, 2.5):
        query, keys, values = operands(dtype, len(ROWS), heads, key_heads, size, value_size, (200, 40), seed=size)
        got = decode_attention(query, keys, values, ranges_of(*ROWS), scale=size**-0.5, softcap=softcap, impl="cpu")
        check(got, dense(query, keys, values, ROWS, size**-0.5, softcap))


@needs_extension
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(length):
    query, keys, values = operands(torch.bfloat16, 2, 3, 1, 64, 64, (length,), seed=3)
    rows = [[(0, 0, length)], [(0, length // 2, length)]]
    check(
        decode_attention(query, keys, values, ranges_of(*rows), scale=0.125, impl="cpu"),
        dense(query, keys, values, rows, 0.125, None),
    )


@needs_extension
@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**31), st.sampled_from(available()), st.booleans())
def test_random_ranges(seed, isa, half):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 150, rng.integers(1, 4)).tolist()
    key_heads, groups, size = int(rng.integers(1, 4)), int(rng.integers(1, 10)), 8 * int(rng.integers(1, 12))
    dtype = torch.bfloat16 if half else torch.float32
    count = int(rng.integers(1, 6))
    query, keys, values = operands(dtype, count, key_heads * groups, key_heads, size, size, lengths, seed % 1000)
    rows = []
    for _ in range(count):
        row = []
        for part, length in enumerate(lengths):
            cuts = np.sort(rng.integers(0, length + 1, 4)).tolist()
            row += [(part, cuts[0], cuts[1]), (part, cuts[2], cuts[3])]
        rows.append(row)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTREADER_CPU_ISA", isa)
        got = decode_attention(query, keys, values, ranges_of(*rows), scale=size**-0.5, impl="cpu")
    check(got, dense(query, keys, values, rows, size**-0.5, None))


@needs_extension
def test_large_scores_and_strided_inputs():
    """The maximum rises block by block, and the inputs have strided rows."""
    query, keys, values = operands(torch.float32, 3, 6, 2, 32, 32, (300,), seed=9)
    keys = [keys[0] * torch.linspace(0, 40, 300)[:, None, None]]
    rows = [[(0, 0, 300)]] * 3
    want = dense(query, keys, values, rows, 1.0, None)
    wide = (
        [torch.randn(300, 2, 96)[..., 32:64].copy_(keys[0])],
        [torch.randn(2, 300, 32).transpose(0, 1).copy_(values[0])],
    )
    out, lse = decode_attention(query, *wide, ranges_of(*rows), scale=1.0, impl="cpu")
    torch.testing.assert_close(out.double(), want[0], atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(lse.double(), want[1], atol=1e-4, rtol=1e-6)


@needs_extension
@pytest.mark.parametrize("isa", available())
def test_a_nan_is_not_hidden(monkeypatch, isa):
    monkeypatch.setenv("FASTREADER_CPU_ISA", isa)
    query, keys, values = operands(torch.float32, 1, 1, 1, 8, 8, (5,), seed=1)
    keys[0][2] = float("nan")
    out, _ = decode_attention(query, keys, values, ranges_of([(0, 0, 5)]), scale=1.0, impl="cpu")
    assert out.isnan().all()


@needs_extension
def test_neighbours_and_threads_change_no_bit():
    query, keys, values = operands(torch.bfloat16, len(ROWS), 9, 3, 64, 64, (200, 40), seed=2)
    out, lse = decode_attention(query, keys, values, ranges_of(*ROWS), scale=0.125, impl="cpu")
    for b, row in enumerate(ROWS):
        alone = decode_attention(query[b : b + 1], keys, values, ranges_of(row), scale=0.125, impl="cpu")
        assert torch.equal(alone[0][0], out[b]) and torch.equal(alone[1][0], lse[b])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    again = decode_attention(query, keys, values, ranges_of(*ROWS), scale=0.125, impl="cpu")
    torch.set_num_threads(threads)
    assert torch.equal(again[0], out) and torch.equal(again[1], lse)


def test_the_reference_in_float64():
    query, keys, values = operands(torch.float64, len(ROWS), 4, 2, 8, 8, (200, 40), seed=5)
    out, lse = decode_attention(query, keys, values, ranges_of(*ROWS), scale=0.3, softcap=2.0)
    want = dense(query, keys, values, ROWS, 0.3, 2.0)
    torch.testing.assert_close(out, want[0], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(lse, want[1], atol=1e-12, rtol=1e-12)


@needs_extension
def test_opcheck():
    query, keys, values = operands(torch.float32, len(ROWS), 4, 2, 16, 8, (200, 40), seed=5)
    ranges = ranges_of(*ROWS)
    arrays = [torch.from_numpy(a) for a in (ranges.row_ptr, ranges.part, ranges.start, ranges.stop)]
    offset = torch.from_numpy(ranges.start - np.int32(200))
    for more, heads in ((None, (None, None)), (offset, (torch.ones(4), torch.rand(4)))):
        torch.library.opcheck(
            torch.ops.fastreader.decode_attention.default,
            (query, keys, values, *arrays, more, 0.25, None, *heads, "auto"),
        )


def bad(**changes):
    query, keys, values = operands(torch.float32, 1, 4, 2, 16, 16, (10,), seed=0)
    given_ = {"query": query, "keys": keys, "values": values, "ranges": ranges_of([(0, 0, 10)]), "scale": 1.0}
    return {**given_, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": []}, "as many keys as values"),
        ({"query": torch.zeros(1, 4, 12)}, "multiple of 8"),
        ({"query": torch.zeros(1, 3, 16)}, "multiple of key heads"),
        ({"query": torch.zeros(1, 4, 16, dtype=torch.bfloat16)}, "like query"),
        ({"query": torch.zeros(1, 4, 16, dtype=torch.int64)}, "must be floating"),
        ({"query": torch.zeros(1, 4, 16, requires_grad=True)}, "requires a gradient"),
        ({"keys": [torch.zeros(10, 2, 24)]}, r"expected keys\[0\] \[Tk, 2, 16\]"),
        ({"values": [torch.zeros(9, 2, 16)]}, r"and values\[0\]"),
        ({"softcap": 0.0}, "softcap"),
        ({"ranges": ranges_of([(0, 0, 11)])}, "inside parts"),
        ({"ranges": ranges_of([(0, -1, 5)])}, "inside parts"),
        ({"ranges": ranges_of([(1, 0, 5)])}, r"part: expected in \[0, 1\), got int32"),
        ({"ranges": ranges_of([(0, 0, 5)], [(0, 0, 5)])}, r"row_ptr: expected int32 \[2\], got"),
        ({"ranges": Ranges(np.array([0, 2], np.int32), *np.zeros((3, 1), np.int32))}, "ascend from 0"),
    ],
)
def test_bad_inputs_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        decode_attention(**bad(**changes))


def test_ranges_that_fitted_once_are_checked_against_other_keys():
    ranges = ranges_of([(0, 0, 10)])
    decode_attention(**bad(ranges=ranges))
    with pytest.raises(InputError, match="inside parts"):
        decode_attention(**bad(ranges=ranges, keys=[torch.zeros(9, 2, 16)], values=[torch.zeros(9, 2, 16)]))
    with pytest.raises(InputError, match=r"row_ptr: expected int32 \[3\], got"):
        decode_attention(**bad(ranges=ranges, query=torch.zeros(2, 4, 16)))


def test_named_implementations_run_or_raise():
    with pytest.raises(UnsupportedImplementationError, match="impl must be one of"):
        decode_attention(**bad(impl="fastest"))
    double = operands(torch.float64, 1, 4, 2, 16, 16, (10,), seed=0)
    with pytest.raises(UnsupportedImplementationError, match="cannot run"):
        decode_attention(*double, ranges_of([(0, 0, 10)]), scale=1.0, impl="cpu")
    assert {s.implementation for s in serving()["decode_attention"]} <= {"cpu", "reference", "triton", "torch"}
