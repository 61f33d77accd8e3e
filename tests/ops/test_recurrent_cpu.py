"""The C++ kernels of recurrences and convolutions against the definitions in float64, for every instruction set."""

import numpy as np
import pytest
import torch
from cpu_cases import available
from recurrent_cases import random_tree

from fastreader.errors import UnsupportedImplementationError
from fastreader.ops import extension
from fastreader.ops.causal_conv import causal_conv
from fastreader.ops.recurrent import ScanPlan, gated_delta_rule, linear_attention
from fastreader.ops.recurrent.chains import nearest_ancestors

pytestmark = pytest.mark.skipif(not available(), reason=f"no C++ extension: {extension.why_missing()}")

CPU = torch.device("cpu")
RULES = ["gate a head", "gate a channel", "linear attention"]
# Key heads, heads, sizes of keys and values: whole vectors, and those that fill none.
SHAPES = [(2, 4, 64, 64), (1, 3, 20, 33), (2, 2, 1, 1), (1, 1, 128, 70)]


@pytest.fixture(params=available())
def isa(request, monkeypatch):
    monkeypatch.setenv("FASTREADER_CPU_ISA", request.param)
    return request.param


def drawn(rule, tokens, shape, seed=0):
    key_heads, heads, size, value_size = shape
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    query, key, value = draw(tokens, key_heads, size), draw(tokens, key_heads, size), draw(tokens, heads, value_size)
    gates = (heads, size) if rule == "gate a channel" else (heads,)
    gate = -0.1 * draw(tokens, *gates).exp()
    if rule == "linear attention":
        return [query, key / size**0.5, value, gate]
    return [query, key, value, gate, draw(tokens, heads).sigmoid()]


def scanned(rule, given, plan, impl, initial=None):
    if rule == "linear attention":
        return linear_attention(*given, plan, initial=initial, impl=impl)
    scale = given[0].shape[2] ** -0.5
    return gated_delta_rule(*given, plan, initial=initial, scale=scale, norm_epsilon=1e-6, impl=impl)


def compare(rule, given, plan, initial=None):
    want, states = scanned(rule, [x.double() for x in given], plan, "reference", initial)
    got, kept = scanned(rule, given, plan, "cpu", initial)
    assert got.dtype == kept.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(kept.double(), states, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_random_trees_equal_the_definition(isa, rule):
    rng = np.random.default_rng(0)
    for case, shape in enumerate(SHAPES):
        for tokens, branching in ((1, 0.0), (33, 0.0), (70, 0.1), (40, 0.6)):
            outside = (case + tokens) % 3
            parent = random_tree(rng, tokens, branching, outside)
            keep = rng.choice(tokens, min(tokens, 4))  # with repeats
            initial = torch.randn(outside, shape[1], *shape[2:]) if outside else None
            compare(rule, drawn(rule, tokens, shape), ScanPlan(parent, keep, CPU), initial)
        nothing = np.zeros(0, dtype=np.int64)
        out, kept = scanned(rule, drawn(rule, 0, shape), ScanPlan(nothing, nothing, CPU), "cpu")
        assert out.shape == (0, shape[1], shape[3]) and kept.shape == (0, *shape[1:])


@pytest.mark.parametrize("rule", RULES)
def test_strided_operands_and_strong_decay(isa, rule):
    given = drawn(rule, 40, SHAPES[0])
    given[3] = given[3] * 300
    given[3][7] = -torch.inf
    plan = ScanPlan(random_tree(np.random.default_rng(1), 40, 0.1), np.array([39]), CPU)
    compare(rule, given, plan)
    joined = torch.cat([given[0], given[1], given[2][:, :2]], dim=1).flatten(1)  # views of one buffer, as mixers have
    heads = [x.unflatten(1, (-1, 64)) for x in joined.split([128, 128, 128], dim=1)]
    halves = [x[:, ::2] if x.shape[1] == 4 else x for x in given[3:]]
    compare(rule, [*heads, *halves], plan)


@pytest.mark.parametrize("rule", RULES)
def test_bits_depend_on_the_path_alone(isa, rule):
    """Neither neighbours, nor the cut into chains, nor the division among threads."""
    given = drawn(rule, 90, SHAPES[0])
    parent = random_tree(np.random.default_rng(5), 90, 0.08)
    leaf = int(np.setdiff1d(np.arange(90), parent)[-1])
    path = [leaf]
    while parent[path[0]] >= 0:
        path.insert(0, int(parent[path[0]]))
    assert 30 < len(path) < 90
    tree, states = scanned(rule, given, ScanPlan(parent, np.array([leaf]), CPU), "cpu")
    line = ScanPlan(np.arange(-1, len(path) - 1), np.array([len(path) - 1]), CPU)
    threads = torch.get_num_threads()
    try:
        for count in (1, 7):
            torch.set_num_threads(count)
            alone, last = scanned(rule, [x[path] for x in given], line, "cpu")
            assert torch.equal(alone, tree[path]) and torch.equal(last, states)
    finally:
        torch.set_num_threads(threads)


def test_convolutions_equal_the_definition(isa):
    rng = np.random.default_rng(0)
    for taps, size in ((1, 5), (2, 16), (4, 70), (4, 64), (9, 3)):
        for tokens in (0, 1, 40):
            outside = tokens % 3
            near = torch.from_numpy(nearest_ancestors(random_tree(rng, tokens, 0.2, outside), taps - 1))
            initial = torch.randn(outside, taps - 1, size) if outside else None
            rows, weight = torch.randn(tokens, 2 * size)[:, :size], torch.randn(size, taps)
            for bias, activation in ((None, None), (torch.randn(size), "silu")):
                options = {"bias": bias, "initial": initial, "activation": activation}
                want = causal_conv(rows.double(), weight.double(), near, impl="reference", **options)
                got = causal_conv(rows, weight, near, impl="cpu", **options)
                torch.testing.assert_close(got.double(), want, atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(causal_conv(rows, weight, near, impl="torch", **options), got)


def test_convolutions_depend_on_the_path_alone(isa):
    rows, weight = torch.randn(40, 20), torch.randn(20, 4)
    parent = random_tree(np.random.default_rng(2), 40, 0.2)
    together = causal_conv(rows, weight, torch.from_numpy(nearest_ancestors(parent, 3)), impl="cpu")
    for leaf in np.setdiff1d(np.arange(40), parent):
        path = [int(leaf)]
        while parent[path[0]] >= 0:
            path.insert(0, int(parent[path[0]]))
        line = torch.from_numpy(nearest_ancestors(np.arange(-1, len(path) - 1), 3))
        assert torch.equal(causal_conv(rows[path], weight, line, impl="cpu"), together[path])


def test_what_the_kernels_do_not_take():
    given = drawn("gate a head", 3, SHAPES[0])
    plan = ScanPlan(np.arange(-1, 2), np.zeros(0, dtype=np.int64), CPU)
    with pytest.raises(UnsupportedImplementationError, match="float32"):
        gated_delta_rule(*(x.double() for x in given), plan, impl="cpu")
    assert gated_delta_rule(*(x.double() for x in given), plan)[0].dtype == torch.float64
    many = torch.randn(3, 2), torch.randn(2, 20), torch.from_numpy(nearest_ancestors(np.arange(-1, 2), 19))
    with pytest.raises(UnsupportedImplementationError, match="at most 16 taps"):
        causal_conv(*many, impl="cpu")
    torch.testing.assert_close(causal_conv(*many), causal_conv(*many, impl="reference"))


def test_opcheck():
    given = drawn("gate a head", 7, (1, 2, 8, 8))
    walks = ScanPlan(np.array([-1, 0, 1, 1, -1, 4, 4]), np.array([2]), CPU).walks
    levels = [number for level in walks.levels for number in level]
    torch.library.opcheck(torch.ops.fastreader.scan_chains, (*given, None, walks.table, levels, 1, 0.5, 1e-6, "auto"))
    near = torch.from_numpy(nearest_ancestors(np.arange(-1, 2), 3))
    torch.library.opcheck(
        torch.ops.fastreader.causal_conv, (torch.randn(3, 8), torch.randn(8, 4), near, None, None, True, "auto")
    )
