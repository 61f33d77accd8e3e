"""Small calls of every kernel against float64: small_calls.py [CASE...], for smoke.py and compute-sanitizer."""

import os
import sys
from dataclasses import replace

import numpy as np
import torch

DEVICE = os.environ.get("FR_DEVICE", "cuda")
TOKENS = int(os.environ.get("FR_TOKENS", "300"))


def near(what, got, want, limit):
    got, want = got.double().cpu(), want.double().cpu()
    finite = want.isfinite()
    assert torch.equal(got[~finite], want[~finite]), f"{what}: infinite values differ"
    error = float((got - want)[finite].abs().max()) if finite.any() else 0.0
    assert error <= limit, f"{what}: error {error:.3g}, allowed {limit}"
    print(f"{what}: error {error:.2g}", flush=True)


def attention(what, dtype, size, limit, heads=(9, 3), strided=True, tokens=None, **named):
    from forests import attention_inputs, random_forest

    from fastreader.ops.tree_attention import tree_attention

    inputs = attention_inputs(*random_forest(7, tokens or TOKENS), dtype=dtype, heads=heads, size=size, **named).to(
        DEVICE
    )
    if strided:  # as a pass has them: views of queries, keys and values side by side
        both = torch.cat([inputs.query, inputs.key, inputs.value], dim=1)
        parts = both.split_with_sizes([heads[0], heads[1], heads[1]], dim=1)
        inputs = replace(inputs, query=parts[0], key=parts[1], value=parts[2])
    option = {"input_precision": "bf16x3"} if dtype == torch.float32 and limit > 1e-5 else {}
    out, lse = tree_attention(
        inputs.query, inputs.key, inputs.value, inputs.subtree_end, query_node=inputs.query_node, scale=inputs.scale,
        query_positions=inputs.query_positions, key_positions=inputs.key_positions, window=inputs.window,
        softcap=inputs.softcap, plan=inputs.plan(), return_lse=True, impl="triton", **option,
    )  # fmt: skip
    golden, golden_lse = inputs.golden()
    near(what, out, golden, limit)
    near(f"{what}, lse", lse, golden_lse, 1e-3)


def attention64():
    attention("attention 64 bf16", torch.bfloat16, 64, 0.02)
    attention("attention 64 fp16, contiguous", torch.float16, 64, 0.004, strided=False)
    attention("attention 64, fewer keys than a block", torch.bfloat16, 64, 0.02, tokens=5)


def attention128():
    attention("attention 128 bf16", torch.bfloat16, 128, 0.02, heads=(8, 2))
    attention("attention 128, one head a key head", torch.bfloat16, 128, 0.02, heads=(2, 2), strided=False)


def attention_pointers():
    attention("attention 64, window", torch.bfloat16, 64, 0.02, window=50)
    attention("attention 64, cap", torch.bfloat16, 64, 0.02, softcap=5.0)
    attention("attention 96", torch.bfloat16, 96, 0.02, heads=(4, 2))
    attention("attention 64 fp32", torch.float32, 64, 1e-5)


def attention_high():
    attention("attention 64, two terms", torch.float32, 64, 2e-4)
    attention("attention 128, two terms", torch.float32, 128, 2e-4, heads=(8, 2))


def attention_split():
    nodes = np.random.default_rng(1).integers(0, TOKENS, 5)
    attention("attention, 5 queries", torch.bfloat16, 64, 0.02, query_node=nodes, strided=False)
    attention("attention 576 over 512", torch.bfloat16, 576, 0.05, heads=(16, 1), value_size=512, strided=False)


def _logprob(what, rows, width, vocabulary, limit, high=False, **named):
    from fastreader.ops import linear_logprob_stats

    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn((rows, width), generator=generator).to(DEVICE)
    weight = (torch.randn((vocabulary, width), generator=generator) * 0.1).to(DEVICE).bfloat16()
    target = torch.randint(0, vocabulary, (rows,), generator=generator).to(DEVICE)
    hidden = hidden if high else hidden.bfloat16()
    got = linear_logprob_stats(
        hidden, weight, target, input_precision="bf16x3" if high else None, impl="triton", **named
    )
    logits = hidden.double() @ weight.double().T
    want = logits.log_softmax(1)
    near(what, got.logprob, want.gather(1, target[:, None])[:, 0], limit)
    best = logits.gather(1, got.argmax[:, None])[:, 0]
    assert (best >= logits.amax(1) - 1e-4).all(), f"{what}: arg-max"
    if len(got.entropy):
        near(f"{what}, entropy", got.entropy, -(want.exp() * want).sum(1), limit)


def logprob():
    _logprob("LM head, 300 rows", 300, 576, 5000, 1e-3)
    _logprob("LM head, without entropy", 300, 576, 5001, 1e-3, entropy=False)
    _logprob("LM head, width 72", 130, 72, 1000, 1e-3)


def logprob_wide():
    _logprob("LM head, width 2048", 300, 2048, 5001, 1e-3, entropy=False)


def logprob_few():
    _logprob("LM head, 5 rows", 5, 576, 5001, 1e-3, entropy=False)
    _logprob("LM head, 50 rows", 50, 576, 5001, 1e-3, entropy=False)


def logprob_high():
    _logprob("LM head, two terms", 300, 2048, 5001, 2e-3, high=True, entropy=False)
    _logprob("LM head, two terms, 50 rows", 50, 576, 5001, 2e-3, high=True, entropy=False)


def decode():
    from decode_cases import close, golden, operands, options_of

    from fastreader.ops.decode_attention import decode_attention

    for seed in range(6):
        rng = np.random.default_rng(seed)
        query, keys, values, ranges = operands(rng, (torch.bfloat16, torch.float16, torch.float32)[seed % 3])
        options = options_of(rng, query)
        there = {k: v.to(DEVICE) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        parts = [k.to(DEVICE) for k in keys], [v.to(DEVICE) for v in values]
        out, lse = decode_attention(query.to(DEVICE), *parts, ranges, **there, impl="triton")
        close((out.cpu(), lse.cpu()), golden(query, keys, values, ranges, options), 2e-5)
    print("decode attention: 6 cases", flush=True)


def pointwise():
    from pointwise_cases import gated, halves_of, heads_of, normed, random, turned

    from fastreader.ops.pointwise import gate, rms_norm, rotary

    x, weight = random(70, 576) * 3, random(576, seed=1)
    near("rms_norm", rms_norm(x.to(DEVICE), weight.to(DEVICE), 1e-5, impl="triton"), normed(x, weight, 1e-5), 1e-4)
    x, cosine, sine = heads_of(100, 15, 64), random(100, 64, seed=1), random(100, 64, seed=2)
    got = rotary(x.to(DEVICE), cosine.to(DEVICE), sine.to(DEVICE), heads=12, impl="triton")
    near("rotary", got[:, :12], turned(x[:, :12], cosine, sine), 1e-4)
    x, up = halves_of(37, 1536)
    near("gate", gate(x.to(DEVICE), up.to(DEVICE), "silu", impl="triton")[1:], gated(x, up, "silu")[1:], 1e-3)
    half, half_up = x[1:].bfloat16(), up[1:].bfloat16()
    got = gate(half.to(DEVICE), half_up.to(DEVICE), "silu", impl="triton")
    near("gate of bfloat16", got, gated(half.double(), half_up.double(), "silu"), 1e-3)


def recurrent():
    import recurrent_cases as cases

    from fastreader.ops.recurrent import ScanPlan

    parent = cases.random_tree(np.random.default_rng(0), 150, 0.05)
    for op, function in cases.OPS.items():
        given = [x.to(DEVICE) for x in cases.operands(op, 150, 0)]
        plan = ScanPlan(parent, np.array([149, 0]), torch.device(DEVICE))
        want = function(*given, plan, impl="torch")
        got = function(*(x.float() for x in given), plan, impl="triton")
        error = max(map(cases.relative_error, got, want))
        assert error < 2e-5, f"{op}: {error:.3g}"
        print(f"{op}: {error:.2g}", flush=True)


def flash():
    from gpu_workloads import WORKLOADS

    from fastreader.ops.tree_attention import AttentionPlan, tree_attention
    from fastreader.ops.tree_attention.flash import engine

    tree = WORKLOADS["W1"]()
    plan = AttentionPlan(tree.subtree_end)
    query, key, value = (torch.randn(len(tree), n, 64, device=DEVICE, dtype=torch.bfloat16) for n in (9, 3, 3))
    subtree_end = torch.from_numpy(tree.subtree_end).to(DEVICE)
    got = [
        tree_attention(query, key, value, subtree_end, scale=0.125, plan=plan, return_lse=True, impl=i)
        for i in ("flash", "triton")
    ]
    near(f"{engine()[0]} and ours", got[0][0], got[1][0], 0.02)
    near("lse", got[0][1], got[1][1], 1e-3)


def product():
    from fastreader.ops.linear import linear, linear_add

    x, weight = torch.randn(100, 96).to(DEVICE), torch.randn(64, 96).to(DEVICE).bfloat16()
    want = x.double() @ weight.double().T
    near("product, high", linear(x, weight, precision="bf16x3"), want, 2e-3)
    near("product, fast", linear(x, weight), x.bfloat16().double() @ weight.double().T, 1e-4)
    whole = torch.randn(105, 64).to(DEVICE)
    before, part = whole.clone(), whole[3:103]
    linear_add(part, x, weight)
    near("sum in place", part, before[3:103].double() + x.bfloat16().double() @ weight.double().T, 1e-4)
    assert torch.equal(whole[:3], before[:3]) and torch.equal(whole[103:], before[103:])


def graph():
    """A recorder whose only graph was dropped must record again (torch asserts use_count > 0 for a kept pool)."""
    from fastreader.models.passes.cuda_graphs import recorder

    x, weight = torch.randn(64, 64, device=DEVICE).bfloat16(), torch.randn(64, 64, device=DEVICE).bfloat16()
    function = lambda: torch.mm(x, weight, out_dtype=torch.float32)  # noqa: E731
    want = function()
    record = recorder(torch.device("cuda", 0))
    recorded = record(function)
    recorded.replay()
    near("replayed", recorded.result, want, 0.0)
    recorded = None
    recorded = record(function)
    recorded.replay()
    near("recorded again after the first was dropped", recorded.result, want, 0.0)


CASES = {
    case.__name__: case
    for case in (
        attention64, attention128, attention_pointers, attention_high, attention_split, logprob, logprob_wide,
        logprob_few, logprob_high, decode, pointwise, recurrent, product, flash, graph,
    )
}  # fmt: skip
NO_KERNEL_OF_OURS = ("flash", "graph")  # compute-sanitizer takes long over these


if __name__ == "__main__":
    for name in sys.argv[1:] or [name for name in CASES if name not in NO_KERNEL_OF_OURS]:
        CASES[name]()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
