"""Time ops on a CUDA device against their alternatives, on the shapes of real requests.

    python benchmarks/gpu/bench_ops.py [--workload W1] [--model smollm2-135m] [--alone] [--tune] [--recurrent]
        [--seconds 120] [--results FILE]

Times are medians with the 10th and 90th percentile in milliseconds, with cold caches (triton.testing.do_bench clears
L2 between runs) and once with warm ones. The floor of each is the least time of its useful operations and bytes, at
the rates of a bf16 product and of a copy, measured first. An op with a wrong result is not timed. Rows are written as
they are measured, since compiling FlexAttention can take minutes.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import gpu_device
import numpy as np
import torch
import triton
from gpu_rows import Rates, Row, Rows
from gpu_workloads import SHAPES, WORKLOADS, Shape
from recurrent_calls import recurrent_calls
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from fastreader.core.tree import PrefixTree
from fastreader.ops import linear_logprob, tree_attention
from fastreader.ops.decode_attention import Ranges, decode_attention
from fastreader.ops.pointwise import gate, rms_norm, rotary
from fastreader.ops.tree_attention import flash
from fastreader.ops.tree_attention.plan import AttentionContext, AttentionPlan
from fastreader.ops.tree_attention.triton import tree_attention_triton
from fastreader.ops.tree_attention.triton_config import TreeAttentionConfig, default_config
from fastreader.ops.triton_support import target_of

DTYPE = torch.bfloat16
SEED = 0


@dataclass(frozen=True)
class Timed:
    """A call to time, with its useful operations and bytes."""

    case: str
    way: str
    call: Callable[[], object]
    flops: float
    bytes: float


@dataclass(frozen=True)
class Attention:
    """Inputs of one layer over a workload's tree."""

    tree: PrefixTree
    shape: Shape
    query: Tensor
    key: Tensor
    value: Tensor
    subtree_end: Tensor
    plan: AttentionPlan
    flops: float

    @classmethod
    def make(cls, tree: PrefixTree, shape: Shape) -> Attention:
        torch.manual_seed(SEED)
        tokens = len(tree)
        query = torch.randn(tokens, shape.heads, shape.size, device="cuda", dtype=DTYPE)
        key, value = (torch.randn(tokens, shape.key_heads, shape.size, device="cuda", dtype=DTYPE) for _ in range(2))
        plan = AttentionPlan(tree.subtree_end)
        useful = int((tree.positions + 1).sum())  # a query sees its path
        subtree_end = torch.from_numpy(tree.subtree_end).cuda()
        return cls(tree, shape, query, key, value, subtree_end, plan, 4.0 * useful * shape.heads * shape.size)

    @property
    def scale(self) -> float:
        return self.shape.size**-0.5

    @property
    def bytes(self) -> float:
        return float(sum(t.nbytes for t in (self.query, self.key, self.value, self.query)))

    def ours(self, impl: str = "triton") -> Tensor:
        out = tree_attention(
            self.query, self.key, self.value, self.subtree_end, scale=self.scale, plan=self.plan, impl=impl
        )
        assert isinstance(out, Tensor)
        return out

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return some rows, and their dense attention in float32."""
        rows = torch.randperm(len(self.tree), device="cuda")[:64]
        places = torch.arange(len(self.tree), device="cuda")
        visible = (places <= rows[:, None]) & (rows[:, None] < self.subtree_end)  # [rows, T]
        groups = self.shape.heads // self.shape.key_heads
        key, value = (t.float().repeat_interleave(groups, dim=1).transpose(0, 1) for t in (self.key, self.value))
        scores = (self.query[rows].float().transpose(0, 1) @ key.transpose(1, 2)) * self.scale  # [H, rows, T]
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        return rows, (weights @ value).transpose(0, 1)

    def configured(self, config: TreeAttentionConfig) -> Tensor:
        places = torch.arange(len(self.tree), device="cuda")
        operands = (self.query, self.key, self.value, self.subtree_end, places, None, None)
        return tree_attention_triton(
            AttentionContext(*operands, self.plan, self.scale, return_lse=False), config=config
        )[0]

    def flex(self) -> Callable[[], Tensor]:
        """Return compiled FlexAttention with the same mask."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        subtree_end = self.subtree_end

        def visible(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return (j <= i) & (i < subtree_end[j])

        tokens = len(self.tree)
        mask = torch.compile(create_block_mask)(visible, None, None, tokens, tokens, device="cuda")
        compiled = torch.compile(flex_attention, dynamic=False)
        query, key, value = (t.transpose(0, 1)[None].contiguous() for t in (self.query, self.key, self.value))

        def call() -> Tensor:
            out = compiled(query, key, value, block_mask=mask, scale=self.scale, enable_gqa=True)
            return out[0].transpose(0, 1)

        return call

    def segments(self) -> Callable[[], Tensor]:
        """Return PyTorch's attention of each segment between two branches over the keys of its path."""
        starts = chain_starts(self.tree)
        stops = [*starts[1:], len(self.tree)]
        paths = [torch.tensor(self.tree.path(stop - 1), device="cuda") for stop in stops]

        def call() -> Tensor:
            out = torch.empty_like(self.query)
            for start, stop, path in zip(starts, stops, paths, strict=True):
                query, key, value = (t.transpose(0, 1)[None] for t in (self.query[start:stop], *self._taken(path)))
                bias = causal_lower_right(stop - start, len(path))
                got = scaled_dot_product_attention(query, key, value, bias, scale=self.scale, enable_gqa=True)
                out[start:stop] = got[0].transpose(0, 1)
            return out

        return call

    def _taken(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.key[rows], self.value[rows]

    def unshared(self) -> tuple[Callable[[], Tensor], Tensor]:
        """Return flash-attn varlen over every sequence separately, the cost of packing without sharing.

        It comes from the flash-attn package, or from PyTorch's FlashAttention-2 without it. The second result is the
        packed index of each of its rows.
        """
        paths = [self.tree.path(int(leaf)) for leaf in self.tree.leaves]
        index = torch.tensor(list(itertools.chain.from_iterable(paths)), device="cuda")
        lengths = torch.tensor([0, *map(len, paths)], device="cuda", dtype=torch.int32)
        offsets = lengths.cumsum(0, dtype=torch.int32)
        longest = int(lengths.max())
        query, key, value = (t[index] for t in (self.query, self.key, self.value))

        if flash.engine()[0] == "flash-attn":
            from flash_attn.flash_attn_interface import flash_attn_varlen_func

            def call() -> Tensor:
                return flash_attn_varlen_func(
                    query, key, value, offsets, offsets, longest, longest, softmax_scale=self.scale, causal=True
                )

            return call, index
        forward = torch.ops.aten._flash_attention_forward

        def own() -> Tensor:
            arguments = (query, key, value, offsets, offsets, longest, longest, 0.0, True, False)
            return forward(*arguments, scale=self.scale)[0]

        return own, index


def chain_starts(tree: PrefixTree) -> list[int]:
    """Return the first token of every segment, of which each token but the first follows the one before."""
    follows = tree.parent[1:] == np.arange(len(tree) - 1)
    return [0, *(np.flatnonzero(~follows) + 1).tolist()]


def measure(timed: Timed, model: str, rates: Rates) -> Row:
    median, low, high = triton.testing.do_bench(timed.call, warmup=25, rep=150, quantiles=[0.5, 0.1, 0.9])
    floor = rates.floor(timed.flops, timed.bytes)
    return Row("kernels", model, timed.case, timed.way, median, low, high, floor, warm(timed.call, median))


def warm(call: Callable[[], object], estimate: float) -> float:
    """Return the median milliseconds of calls one after another, whose operands may stay in L2."""
    count = max(5, min(50, int(100 / max(estimate, 1e-3))))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in itertools.pairwise(events))


def assert_right(what: str, got: Tensor, golden: Tensor, limit: float) -> None:
    error = (got.float() - golden.float()).abs().max().item()
    if not error <= limit:
        raise SystemExit(f"{what} is wrong by {error:.3g} (allowed {limit}); not timed")


def bench_attention(name: str, shape: Shape, tune: bool, alone: bool) -> Iterator[Timed]:
    attention = Attention.make(WORKLOADS[name](), shape)
    rows, golden = attention.sample()

    def timed(way: str, call: Callable[[], Tensor], places: Tensor | None = None) -> Timed:
        assert_right(way, call()[rows if places is None else places[rows]], golden, 0.02)
        return Timed(f"{name} attention", way, call, attention.flops, attention.bytes)

    yield timed("triton", attention.ours)
    if flash.why_not(attention.query, attention.value, attention.plan) is None:
        yield timed(f"{flash.engine()[0]} over chains", lambda: attention.ours("flash"))
    if name in ("W1", "W2"):
        yield timed("SDPA of each segment", attention.segments())
    if tune:
        yield from tune_attention(name, attention, rows, golden)
    if alone:
        return
    if name != "W4":  # its separate sequences have 340,000 tokens
        unshared, index = attention.unshared()
        places = torch.full((len(attention.tree),), -1, device="cuda")
        places[index] = torch.arange(len(index), device="cuda")
        yield timed("flash-attn varlen, nothing shared", unshared, places)
    yield timed("FlexAttention compiled", attention.flex())  # compiling it can take minutes


def tune_attention(name: str, attention: Attention, rows: Tensor, golden: Tensor) -> Iterator[Timed]:
    """Yield every configuration around the pinned one."""
    print(f"pinned: {default_config(target_of(attention.query.device), attention.shape.size, DTYPE, 4096)}")
    for m, n, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)):
        config = TreeAttentionConfig(m, n, warps, stages)
        try:
            assert_right(str(config), attention.configured(config)[rows], golden, 0.02)
            call = lambda c=config: attention.configured(c)  # noqa: E731
            yield Timed(f"{name} attention", str(config), call, attention.flops, attention.bytes)
        except triton.runtime.errors.OutOfResources as error:
            print(f"{config}: {error}")


def bench_logprob(rows: int, shape: Shape) -> Iterator[Timed]:
    torch.manual_seed(SEED)
    hidden = torch.randn(rows, shape.width, device="cuda", dtype=DTYPE)
    weight = torch.randn(shape.vocabulary, shape.width, device="cuda", dtype=DTYPE) * 0.05
    target = torch.randint(0, shape.vocabulary, (rows,), device="cuda")
    flops = 2.0 * rows * shape.width * shape.vocabulary

    def full() -> Tensor:
        return torch.log_softmax((hidden @ weight.T).float(), -1).gather(1, target[:, None])[:, 0]

    def ours(impl: str) -> Tensor:
        return linear_logprob(hidden, weight, target, check_ids=False, impl=impl)

    assert_right("linear_logprob", ours("triton"), ours("torch"), 1e-3)
    ways = {"triton": lambda: ours("triton"), "torch, chunked": lambda: ours("torch"), "full logits": full}
    size = 2.0 * (hidden.numel() + weight.numel())
    for way, call in ways.items():
        yield Timed(f"LM head of {rows:,} rows", way, call, flops, size)


def bench_pointwise(shape: Shape, tokens: int = 12_701) -> Iterator[Timed]:
    """Yield norm, rotary embedding and gate. Each value is read and written once."""
    torch.manual_seed(SEED)
    stream = torch.randn(tokens, shape.width, device="cuda")
    weight = torch.randn(shape.width, device="cuda")
    query = torch.randn(tokens, shape.heads, shape.size, device="cuda")
    cosine, sine = (torch.randn(tokens, shape.size, device="cuda") for _ in range(2))
    left, right = (torch.randn(tokens, shape.inner, device="cuda") for _ in range(2))
    assert_right("rms_norm", rms_norm(stream, weight, 1e-5), rms_norm(stream, weight, 1e-5, impl="torch"), 1e-4)
    assert_right("rotary", rotary(query, cosine, sine), rotary(query, cosine, sine, impl="torch"), 1e-4)
    assert_right("gate", gate(left, right, "silu"), gate(left, right, "silu", impl="torch"), 1e-4)
    for impl in ("triton", "torch"):
        ways: dict[str, tuple[Callable[[], object], int]] = {
            "rms_norm": (lambda i=impl: rms_norm(stream, weight, 1e-5, bf16=True, impl=i), 6 * stream.numel()),
            "rotary": (
                lambda i=impl: rotary(query, cosine, sine, bf16=True, impl=i),
                6 * query.numel() + 8 * cosine.numel(),
            ),
            "gate": (lambda i=impl: gate(left, right, "silu", bf16=True, impl=i), 10 * left.numel()),
        }
        for name, (call, size) in ways.items():
            yield Timed(f"{name} of {tokens:,} tokens", impl, call, 0.0, size)


def bench_decode(shape: Shape, rows: int, prompt: int = 700, new: int = 64) -> Iterator[Timed]:
    """Yield attention of rows that each generate a token after a separate prompt."""
    torch.manual_seed(SEED)
    query = torch.randn(rows, shape.heads, shape.size, device="cuda", dtype=DTYPE)
    parts = [torch.randn(rows * n, shape.key_heads, shape.size, device="cuda", dtype=DTYPE) for n in (prompt, new)]
    first = np.arange(rows, dtype=np.int32)
    start = np.stack([first * prompt, first * new], axis=1).reshape(-1)
    stop = start + np.tile(np.array([prompt, new], dtype=np.int32), rows)
    offset = np.tile(np.array([0, prompt], dtype=np.int32), rows)
    part = np.tile(np.array([0, 1], dtype=np.int32), rows)
    ranges = Ranges(2 * np.arange(rows + 1, dtype=np.int32), part, start, stop, offset)
    positions = torch.full((rows,), prompt + new - 1, dtype=torch.int32, device="cuda")

    def ours(impl: str = "triton") -> Tensor:
        options = {"scale": shape.size**-0.5, "positions": positions, "impl": impl}
        return decode_attention(query, parts, parts, ranges, **options)[0]

    assert_right("decode_attention", ours(), ours("reference"), 1e-3)
    keys = rows * (prompt + new) * shape.heads * shape.size
    size = 2.0 * sum(part.nbytes for part in parts)
    yield Timed(f"decode attention of {rows} rows", "triton", ours, 4.0 * keys, size)


def bench_recurrent(name: str) -> Iterator[Timed]:
    """Yield the recurrent ops over a workload's tree, by Triton and by PyTorch."""
    torch.manual_seed(SEED)
    for call in recurrent_calls(WORKLOADS[name]()):
        wanted = call.run("torch")
        assert_right(call.op, call.run("triton"), wanted, 1e-4 * wanted.abs().max().item())
        for impl in ("triton", "torch"):
            yield Timed(f"{name} {call.op}", impl, partial(call.run, impl), call.flops, call.bytes)


def bench(arguments: argparse.Namespace, model: str) -> Iterator[Timed]:
    shape = SHAPES[model]
    if arguments.recurrent:
        for name in arguments.workload or WORKLOADS:
            yield from bench_recurrent(name)
        return
    for name in arguments.workload or WORKLOADS:
        yield from bench_attention(name, shape, arguments.tune, arguments.alone)
    for rows in (64, 2048, 12_701):
        yield from bench_logprob(rows, shape)
    for rows in (1, 24):
        yield from bench_decode(shape, rows)
    yield from bench_pointwise(shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    parser.add_argument("--model", choices=SHAPES, action="append", help="smollm2-135m and llama-3.1-8b by default")
    parser.add_argument("--alone", action="store_true", help="skip the peers, whose compilation takes long")
    parser.add_argument("--tune", action="store_true", help="time other configurations too")
    parser.add_argument("--recurrent", action="store_true", help="time the recurrent ops only, in float32")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin nothing after these")
    parser.add_argument("--results", type=Path, help="append rows there")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_ops: needs a CUDA device, found none")
    rates, about = gpu_device.rates(), gpu_device.about()
    print(f"{about['device']}: {rates.flops / 1e12:.0f} TFLOP/s, {rates.bandwidth / 1e12:.2f} TB/s", flush=True)
    rows = Rows(arguments.results, arguments.seconds, about | {"seed": SEED, "rates": asdict(rates)})
    for model in arguments.model or ("smollm2-135m", "llama-3.1-8b"):
        for timed in bench(arguments, model):
            rows.add(measure(timed, model, rates))
            if not rows.left():
                return


if __name__ == "__main__":
    main()
