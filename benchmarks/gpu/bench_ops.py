"""Time ops on a CUDA device against their alternatives, on the shapes of real requests.

    python benchmarks/gpu/bench_ops.py [--workload W1] [--model smollm2-135m] [--alone] [--tune] [--results FILE]

Times are medians with the 10th and 90th percentile in milliseconds, cold caches (triton.testing.do_bench clears L2
between runs). The device's bf16 matmul rate is measured before and after. TFLOP/s count only useful multiply-adds; TB/s
count the useful bytes of ops that only move values. An op with a wrong result is not timed. Lines are printed as soon
as they are measured, since compiling FlexAttention can take minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import triton
from gpu_workloads import SHAPES, WORKLOADS, Shape
from torch import Tensor

from fastreader.core.tree import PrefixTree
from fastreader.ops import linear_logprob, tree_attention
from fastreader.ops.pointwise import gate, rms_norm, rotary
from fastreader.ops.tree_attention import flash
from fastreader.ops.tree_attention.plan import AttentionContext, AttentionPlan
from fastreader.ops.tree_attention.triton import tree_attention_triton
from fastreader.ops.tree_attention.triton_config import Config, default_config
from fastreader.ops.triton_support import target_of

DTYPE = torch.bfloat16
SEED = 0


@dataclass(frozen=True)
class Timing:
    """One measured line."""

    what: str
    milliseconds: float
    low: float
    high: float
    rate: float  # useful units per second
    unit: str = "TFLOP/s"


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

    def configured(self, config: Config) -> Tensor:
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

        if importlib.util.find_spec("flash_attn") is not None:
            from flash_attn import flash_attn_varlen_func

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


def measure(what: str, call: Callable[[], object], work: float, unit: str = "TFLOP/s") -> Timing:
    median, low, high = triton.testing.do_bench(call, warmup=50, rep=300, quantiles=[0.5, 0.1, 0.9])
    return Timing(what, median, low, high, work / median / 1e9, unit)


def matmul_rate() -> float:
    """Return the bf16 TFLOP/s of a large torch matmul."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=DTYPE) for _ in range(2))
    return measure("matmul", lambda: a @ b, 2 * 8192**3).rate


def assert_right(what: str, got: Tensor, golden: Tensor, limit: float) -> None:
    error = (got.float() - golden.float()).abs().max().item()
    if not error <= limit:
        raise SystemExit(f"{what} is wrong by {error:.3g} (allowed {limit}); not timed")


def bench_attention(name: str, shape: Shape, tune: bool, alone: bool) -> Iterator[Timing]:
    attention = Attention.make(WORKLOADS[name](), shape)
    rows, golden = attention.sample()
    assert_right("tree_attention", attention.ours()[rows], golden, 0.02)
    yield measure(f"{name} tree_attention triton", attention.ours, attention.flops)
    if flash.why_not(attention.query, attention.value, attention.plan) is None:
        assert_right("flash", attention.ours("flash")[rows], golden, 0.02)
        yield measure(f"{name} {flash.engine()[0]} over chains", lambda: attention.ours("flash"), attention.flops)
    if tune:
        yield from tune_attention(name, attention, rows, golden)
    if alone:
        return
    if name != "W4":  # its separate sequences have 340,000 tokens
        unshared, index = attention.unshared()
        places = torch.full((len(attention.tree),), -1, device="cuda")
        places[index] = torch.arange(len(index), device="cuda")
        assert_right("flash-attn varlen", unshared()[places[rows]], golden, 0.02)
        yield measure(f"{name} flash-attn varlen, nothing shared", unshared, attention.flops)
    flex = attention.flex()  # compiling it can take minutes
    assert_right("FlexAttention", flex()[rows], golden, 0.02)
    yield measure(f"{name} FlexAttention compiled", flex, attention.flops)


def tune_attention(name: str, attention: Attention, rows: Tensor, golden: Tensor) -> Iterator[Timing]:
    """Time every configuration around the pinned one."""
    print(f"pinned: {default_config(target_of(attention.query.device), attention.shape.size, DTYPE, 4096)}")
    for m, n, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4)):
        config = Config(m, n, warps, stages)
        try:
            assert_right(str(config), attention.configured(config)[rows], golden, 0.02)
            yield measure(f"{name} {config}", lambda c=config: attention.configured(c), attention.flops)
        except triton.runtime.errors.OutOfResources as error:
            print(f"{config}: {error}")


def bench_logprob(rows: int, shape: Shape) -> Iterator[Timing]:
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
    for way, call in ways.items():
        yield measure(f"linear_logprob {rows} rows, {way}", call, flops)


def bench_pointwise(shape: Shape, tokens: int = 12_701) -> Iterator[Timing]:
    """Time norm, rotary embedding and gate, in TB/s of useful bytes: each value read and written once."""
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
            yield measure(f"{name} {tokens:,} tokens, {impl}", call, size, "TB/s")


def bench(arguments: argparse.Namespace) -> Iterator[Timing]:
    shape = SHAPES[arguments.model]
    for name in arguments.workload or WORKLOADS:
        yield from bench_attention(name, shape, arguments.tune, arguments.alone)
    for rows in (64, 2048, 12_701):
        yield from bench_logprob(rows, shape)
    yield from bench_pointwise(shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    parser.add_argument("--model", choices=SHAPES, default="smollm2-135m")
    parser.add_argument("--alone", action="store_true", help="skip the peers, whose compilation takes long")
    parser.add_argument("--tune", action="store_true", help="time other configurations too")
    parser.add_argument("--results", type=Path, help="append a JSON line there")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench_ops: needs a CUDA device, found none")
    rate = matmul_rate()
    print(f"{torch.cuda.get_device_name()}, bf16 matmul {rate:.0f} TFLOP/s", flush=True)
    for line in bench(arguments):
        share = f"{line.rate / rate:5.2f} of matmul" if line.unit == "TFLOP/s" else " " * 15
        spread = f"({line.low:.3f}..{line.high:.3f})"
        print(f"{line.milliseconds:9.3f} ms {spread} {line.rate:7.1f} {line.unit:7} {share}  {line.what}", flush=True)
        if arguments.results:
            write(arguments, [rate], line)
    print(f"bf16 matmul {matmul_rate():.0f} TFLOP/s afterwards")


def write(arguments: argparse.Namespace, rates: list[float], line: Timing) -> None:
    """Append a measurement at once, so that a stopped run keeps what it had."""
    head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    record = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": head.stdout.strip(),
        "model": arguments.model,
        "seed": SEED,
        "time": time.time(),
        "matmul_tflops": rates,
        "lines": [asdict(line)],
    }
    with arguments.results.open("a") as file:
        file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
