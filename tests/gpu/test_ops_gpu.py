"""The Triton kernels on the device, against float64, at the shapes of real models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from decode_cases import close, golden, operands, options_of
from forests import Inputs, attention_inputs, forest, random_forest
from gpu_workloads import SHAPES, WORKLOADS
from pointwise_cases import GATES, NORMS, ROTARIES, gated, halves_of, heads_of, normed, random, turned
from tolerance import assert_as_exact_as_eager

from fastreader.ops import linear_logprob, linear_logprob_stats, merge_state, tree_attention
from fastreader.ops.decode_attention import decode_attention
from fastreader.ops.linear import linear_add
from fastreader.ops.linear_logprob.reference import linear_logprob_reference
from fastreader.ops.pointwise import gate, rms_norm, rotary
from fastreader.ops.tree_attention.plan import AttentionPlan

pytestmark = pytest.mark.gpu
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
DEVICE = "cuda"


def run(inputs: Inputs, impl: str = "triton", plan: AttentionPlan | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = tree_attention(
        *(inputs.query, inputs.key, inputs.value, inputs.subtree_end),
        query_node=inputs.query_node,
        query_positions=inputs.query_positions,
        key_positions=inputs.key_positions,
        scale=inputs.scale,
        window=inputs.window,
        softcap=inputs.softcap,
        return_lse=True,
        plan=plan or inputs.plan(),
        impl=impl,
    )
    return out, lse


def check(inputs: Inputs) -> None:
    inputs = inputs.to(DEVICE)
    out, lse = run(inputs)
    golden, golden_lse = inputs.golden()
    assert_as_exact_as_eager("output", out, inputs.eager(inputs.query.dtype)[0], golden)
    assert_as_exact_as_eager("lse", lse, inputs.eager(torch.float32)[1], golden_lse)


@pytest.fixture(autouse=True)
def exact_matmul() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [0, 1, 63, 127, 129, 1000])
def test_lengths(length: int, dtype: torch.dtype) -> None:
    check(attention_inputs(*forest([0] * length), dtype=dtype, heads=(3, 1)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [8, 24, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("features", ["plain", "window", "softcap"])
def test_head_sizes(size: int, features: str, dtype: torch.dtype) -> None:
    options = {"plain": {}, "window": {"window": 100}, "softcap": {"softcap": 20.0}}[features]
    check(attention_inputs(*random_forest(size, 700), dtype=dtype, size=size, value_size=max(size - 8, 8), **options))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHAPES)
def test_model_shapes(name: str, dtype: torch.dtype) -> None:
    shape = SHAPES[name]
    heads = (shape.heads, shape.key_heads)
    check(attention_inputs(*random_forest(5, 1500, 0.02), dtype=dtype, heads=heads, size=shape.size))


@pytest.mark.parametrize("seed", range(40))
def test_random_forests(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = random_forest(seed, int(rng.integers(1, 800)), float(rng.choice([0.01, 0.1, 0.6])))
    dtype = DTYPES[seed % 3]
    window = int(rng.integers(1, 300)) if seed % 4 == 0 else None
    check(attention_inputs(*tree, dtype=dtype, heads=((4, 4), (6, 2), (9, 3))[seed % 3], window=window, seed=seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 4, 33])
def test_decoding(queries: int, dtype: torch.dtype) -> None:
    subtree_end, positions = random_forest(1, 3000, 0.01)
    query_node = np.random.default_rng(queries).integers(0, 3000, queries)
    check(attention_inputs(subtree_end, positions, dtype=dtype, heads=(9, 3), query_node=query_node))


def test_rows_that_see_nothing() -> None:
    subtree_end, positions = forest([0] * 200 + [999] + [0] * 99)
    subtree_end[:200] = np.arange(200)
    check(attention_inputs(subtree_end, positions, dtype=torch.bfloat16))


def test_w1_in_bfloat16_and_again_bit_for_bit() -> None:
    tree = WORKLOADS["W1"]()
    inputs = attention_inputs(tree.subtree_end, tree.positions, dtype=torch.bfloat16, heads=(9, 3)).to(DEVICE)
    plan = inputs.plan()
    first, again = run(inputs, plan=plan), run(inputs, plan=plan)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    automatic = run(inputs, impl="auto", plan=plan)
    assert torch.equal(first[0], automatic[0])
    wide = replace(inputs, query=inputs.query.float(), key=inputs.key.float(), value=inputs.value.float())
    golden, golden_lse = run(wide, impl="torch", plan=plan)
    assert (first[0].float() - golden).abs().max() < 0.01
    assert (first[1] - golden_lse).abs().max() < 1e-4


def test_another_tree_compiles_nothing() -> None:
    from fastreader.ops.tree_attention.triton_kernel import tree_attention_kernel

    if not hasattr(tree_attention_kernel, "device_caches"):
        pytest.skip("Triton's interpreter compiles nothing")

    def compiled() -> int:
        return sum(len(caches[0]) for caches in tree_attention_kernel.device_caches.values())

    lengths = (300, 1, 17, 256, 777)
    run(attention_inputs(*random_forest(0, lengths[0]), dtype=torch.bfloat16, heads=(9, 3)).to(DEVICE))
    run(attention_inputs(*random_forest(0, 1), dtype=torch.bfloat16, heads=(9, 3)).to(DEVICE))  # the decoding tile
    before = compiled()
    for length in lengths:
        run(attention_inputs(*random_forest(length, length), dtype=torch.bfloat16, heads=(9, 3)).to(DEVICE))
    assert compiled() == before


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "name"), [(1, "smollm2-135m"), (777, "smollm2-135m"), (130, "gemma-2-2b")])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_logprob(rows: int, name: str, softcap: float | None, dtype: torch.dtype) -> None:
    shape = SHAPES[name]
    generator = torch.Generator(DEVICE).manual_seed(rows)
    hidden = torch.randn((rows, shape.width), generator=generator, device=DEVICE).to(dtype)
    weight = (torch.randn((shape.vocabulary, shape.width), generator=generator, device=DEVICE) * 0.1).to(dtype)
    target = torch.randint(0, shape.vocabulary, (rows,), generator=generator, device=DEVICE)
    got = linear_logprob_stats(hidden, weight, target, softcap=softcap, impl="triton")
    golden = linear_logprob_reference(hidden.double(), weight.double(), target, None, softcap, 1.0)
    # Matrix units truncate products of half types to fit their sums; eager is PyTorch's product on the same units.
    logits = hidden @ weight.T if dtype == torch.float32 else torch.mm(hidden, weight.T, out_dtype=torch.float32)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    logs = logits.log_softmax(1)
    eager = (logs.gather(1, target[:, None])[:, 0], logits.logsumexp(1), -(logs.exp() * logs).sum(1))
    for field, mine, near, exact in zip(("logprob", "logsumexp", "entropy"), got[:3], eager, golden, strict=False):
        assert_as_exact_as_eager(field, mine, near, exact)
    logits = hidden.double() @ weight.double().T
    assert (logits.gather(1, got.argmax[:, None])[:, 0] >= logits.amax(1) - 1e-4).all()


@pytest.mark.parametrize("rows", [1, 40, 64, 300, 5000])
@pytest.mark.parametrize(("width", "vocabulary"), [(576, 49_152), (2048, 33_333), (4096, 128_256)])
def test_logprob_of_a_pass(rows: int, width: int, vocabulary: int) -> None:
    """Without entropy, as a pass calls it: wide, swapped and described tiles, and states of two terms."""
    generator = torch.Generator(DEVICE).manual_seed(rows)
    hidden = torch.randn((rows, width), generator=generator, device=DEVICE)
    weight = (torch.randn((vocabulary, width), generator=generator, device=DEVICE) * 0.1).bfloat16()
    target = torch.randint(0, vocabulary, (rows,), generator=generator, device=DEVICE)
    for states, precision, bound in ((hidden.bfloat16(), None, 1e-3), (hidden, "bf16x3", 2e-3)):
        got = linear_logprob_stats(states, weight, target, entropy=False, input_precision=precision, impl="triton")
        exact = linear_logprob_stats(states.float(), weight.float(), target, impl="torch")
        assert len(got.entropy) == 0
        assert (got.logprob - exact.logprob).abs().max() <= bound
        assert (got.logsumexp - exact.logsumexp).abs().max() <= bound


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("heads", "size"), [((9, 3), 64), ((32, 8), 128)])
def test_flash_gives_what_triton_does(heads: tuple[int, int], size: int, dtype: torch.dtype) -> None:
    tree = WORKLOADS["W1"]()
    inputs = attention_inputs(tree.subtree_end, tree.positions, dtype=dtype, heads=heads, size=size).to(DEVICE)
    out, lse = tree_attention(
        inputs.query, inputs.key, inputs.value, inputs.subtree_end, scale=inputs.scale, return_lse=True, impl="flash"
    )
    want, want_lse = run(inputs)
    assert (out.float() - want.float()).abs().max() < 0.02
    assert (lse - want_lse).abs().max() < 1e-3


@pytest.mark.parametrize("size", [64, 128])
def test_float32_as_two_terms(size: int) -> None:
    inputs = attention_inputs(*random_forest(size, 700), dtype=torch.float32, heads=(6, 2), size=size).to(DEVICE)
    out = tree_attention(
        *(inputs.query, inputs.key, inputs.value, inputs.subtree_end),
        scale=inputs.scale,
        input_precision="bf16x3",
        impl="triton",
    )
    assert isinstance(out, torch.Tensor)
    assert (out - inputs.golden()[0]).abs().max() <= 2e-4


def test_rotary_passes_later_heads() -> None:
    x, cosine, sine = heads_of(300, 15, 64), random(300, 64, seed=1), random(300, 64, seed=2)
    got = rotary(x.cuda(), cosine.cuda(), sine.cuda(), heads=12, bf16=True, impl="triton")
    assert_close(got[:, :12], turned(x[:, :12], cosine, sine))
    assert torch.equal(got[:, 12:].cpu(), x[:, 12:].bfloat16())


@pytest.mark.parametrize("seed", range(30))
def test_decode_attention(seed: int) -> None:
    rng = np.random.default_rng(seed)
    query, keys, values, ranges = operands(rng, DTYPES[seed % 3])
    options = options_of(rng, query)
    there = {name: each.cuda() if isinstance(each, torch.Tensor) else each for name, each in options.items()}
    parts = [part.cuda() for part in keys], [part.cuda() for part in values]
    out, lse = decode_attention(query.cuda(), *parts, ranges, **there, impl="triton")
    close((out.cpu(), lse.cpu()), golden(query, keys, values, ranges, options), 1e-5)


def test_logprob_makes_no_logits() -> None:
    rows, shape = 8192, SHAPES["smollm2-135m"]
    hidden = torch.randn(rows, shape.width, device=DEVICE, dtype=torch.bfloat16)
    weight = torch.randn(shape.vocabulary, shape.width, device=DEVICE, dtype=torch.bfloat16)
    target = torch.zeros(rows, device=DEVICE, dtype=torch.int64)
    linear_logprob(hidden, weight, target)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    linear_logprob(hidden, weight, target)
    assert torch.cuda.max_memory_allocated() - before < 64 * 2**20  # the logits alone would be 1.6 GB


@pytest.mark.parametrize("dtype", DTYPES)
def test_merge_state(dtype: torch.dtype) -> None:
    out = torch.randn(2, 500, 9, 64, device=DEVICE).to(dtype)
    lse = torch.randn(2, 500, 9, device=DEVICE) * 20
    lse[0, :100] = lse[1, 50:150] = float("-inf")
    out[lse.isneginf()] = 0
    got, got_lse = merge_state(out[0], lse[0], out[1], lse[1], impl="triton")
    golden, golden_lse = merge_state(*(t.double() for t in (out[0], lse[0], out[1], lse[1])), impl="torch")
    eager, eager_lse = merge_state(out[0], lse[0], out[1], lse[1], impl="torch")
    assert_as_exact_as_eager("output", got, eager, golden)
    assert_as_exact_as_eager("lse", got_lse, eager_lse, golden_lse)


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Assert float64's result up to rounding, to nearest if the result is bfloat16."""
    close = {"rtol": 2**-8, "atol": 1e-5} if got.dtype == torch.bfloat16 else {"rtol": 4e-6, "atol": 4e-6}
    torch.testing.assert_close(got.cpu().double(), want, **close)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(("rows", "size"), [*NORMS, (12_701, 576), (7, 16_384)])
def test_rms_norm(rows: int, size: int, bf16: bool) -> None:
    x, weight = random(rows, size) * 3, random(size, seed=1)
    assert_close(rms_norm(x.cuda(), weight.cuda(), 1e-5, bf16=bf16, impl="triton"), normed(x, weight, 1e-5))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(("tokens", "heads", "size", "width"), [*ROTARIES, (12_701, 9, 64, 64), (50, 32, 128, 128)])
def test_rotary(tokens: int, heads: int, size: int, width: int, bf16: bool) -> None:
    x, cosine, sine = heads_of(tokens, heads, size), random(tokens, width, seed=1), random(tokens, width, seed=2)
    got = rotary(x.cuda(), cosine.cuda(), sine.cuda(), bf16=bf16, impl="triton")
    assert_close(got, turned(x, cosine, sine))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("rows", "size"), [*GATES, (8192, 1536)])
def test_gate(rows: int, size: int, activation: str, bf16: bool) -> None:
    x, up = halves_of(rows, size)
    assert_close(gate(x.cuda(), up.cuda(), activation, bf16=bf16, impl="triton"), gated(x, up, activation))


@pytest.mark.parametrize("rows", [1, 7, 3000])
def test_linear_add(rows: int) -> None:
    """Add to a stretch of rows of a longer tensor, as the forward pass does."""
    whole = random(rows + 5, 576).cuda()
    x, weight = random(rows, 1536, seed=1).cuda(), (random(576, 1536, seed=2) * 0.02).cuda().bfloat16()
    before, part = whole.clone(), whole[3 : 3 + rows]
    golden = part.double() + x.bfloat16().double() @ weight.double().T
    eager = part + torch.mm(x.bfloat16(), weight.T, out_dtype=torch.float32)
    linear_add(part, x, weight)
    assert_as_exact_as_eager("sum", whole[3 : 3 + rows], eager, golden)
    assert torch.equal(whole[:3], before[:3])
    assert torch.equal(whole[3 + rows :], before[3 + rows :])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_device_that_is_not_the_current_one() -> None:
    x, weight = random(70, 576), random(576, seed=1)
    assert torch.cuda.current_device() == 0
    assert_close(rms_norm(x.to("cuda:1"), weight.to("cuda:1"), 1e-5, impl="triton"), normed(x, weight, 1e-5))
    inputs = attention_inputs(*random_forest(5, 300), dtype=torch.float16, heads=(6, 2)).to("cuda:1")
    assert_as_exact_as_eager("output", run(inputs)[0], inputs.eager(torch.float16)[0], inputs.golden()[0])
