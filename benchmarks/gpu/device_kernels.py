"""Time kernels on a device and compare them with float32: device_kernels.py [--tune | --recurrent] --seconds N

Rows go to $OUT/rows.jsonl. Nothing stops at an error or at a wrong result: a row says so, and the next call is timed.
`graph` is the time of a call in a CUDA graph of ten, without the host's.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import bench_ops
import gpu_device
import torch
import triton
from device_rows import DeviceRows
from gpu_workloads import SHAPES, WORKLOADS
from torch import Tensor

from fastreader.ops import linear_logprob_stats
from fastreader.ops.linear_logprob.triton import LinearLogprobConfig, linear_logprob_triton
from fastreader.ops.tree_attention import flash
from fastreader.ops.tree_attention.triton_config import TreeAttentionConfig

SMALL, LARGE = "smollm2-135m", "llama-3.1-8b"
HOST_BOUND = 0.5  # milliseconds below which the host's time may be the larger one
NARROW = (  # configurations around the pinned ones, for heads of 64 and of 128
    TreeAttentionConfig(128, 64, 8, 3, 128, True),
    TreeAttentionConfig(128, 128, 8, 2, 0, True),
    TreeAttentionConfig(128, 64, 8, 2, 128, True),
    TreeAttentionConfig(64, 64, 4, 3, 168, True),
    TreeAttentionConfig(128, 64, 4, 3, 0, True),
    TreeAttentionConfig(128, 64, 8, 3),
)
WIDE = (
    TreeAttentionConfig(128, 128, 8, 2, 0, True),
    TreeAttentionConfig(128, 64, 8, 3, 0, True),
    TreeAttentionConfig(128, 64, 8, 2, 0, True),
    TreeAttentionConfig(64, 64, 4, 3, 0, True),
    TreeAttentionConfig(64, 128, 4, 2, 0, True),
    TreeAttentionConfig(128, 64, 8, 2),
)
HEADS = (
    (LinearLogprobConfig(128, 256, 64, 8, 4), (4, 16, 33)),
    (LinearLogprobConfig(128, 128, 64, 8, 3), (6, 33)),
)


class Kernels:
    """Timed calls of one run."""

    def __init__(self, rows: DeviceRows) -> None:
        self.rows, self.rates = rows, gpu_device.rates()
        rows.write(suite="device", **gpu_device.about(), flops=self.rates.flops, bandwidth=self.rates.bandwidth)

    def time(
        self,
        timed: bench_ops.Timed,
        check: Callable[[Tensor], float | None] | None = None,
        model: str = "",
    ) -> None:
        """Time a call with cold and warm caches, after comparing its result."""

        def go() -> None:
            wrong = None if check is None else check(timed.call())
            spent = 60 if timed.flops < 2e12 else 150
            median, low, high = triton.testing.do_bench(timed.call, warmup=15, rep=spent, quantiles=[0.5, 0.1, 0.9])
            graph = None
            if median < HOST_BOUND:
                graph = triton.testing.do_bench_cudagraph(timed.call, rep=10, return_mode="median")
            floor = self.rates.floor(timed.flops, timed.bytes)
            self.rows.write(
                suite="kernels", case=", ".join(filter(None, (timed.case, model))), way=timed.way, milliseconds=median,
                low=low, high=high, warm=bench_ops.warm(timed.call, median), graph=graph, floor=floor,
                tflops=timed.flops / median / 1e9, wrong=wrong,
            )  # fmt: skip

        self.rows.attempt(f"{timed.case}, {model}: {timed.way}", go)

    def generated(self, what: str, items: Callable[[], Iterator[bench_ops.Timed]], model: str = "") -> None:
        """Time calls that compare their own results."""

        def go() -> None:
            for timed in items():
                self.time(timed, model=model)
                if not self.rows.left():
                    return

        self.rows.attempt(what, go)

    def attention(self, name: str, model: str, configs: tuple[TreeAttentionConfig, ...] = ()) -> None:
        """Time attention over a workload's tree, with operands that are views of one tensor as in a pass."""
        case = bench_ops.Attention.make(WORKLOADS[name](), SHAPES[model])
        sampled, golden = case.sample()

        def check(out: Tensor) -> float | None:
            return beyond(out[sampled].float() - golden.float(), 0.02)

        together = torch.cat([case.query, case.key, case.value], dim=1)
        heads, keys = case.shape.heads, case.shape.key_heads
        query, key, value = together.split_with_sizes([heads, keys, keys], dim=1)
        strided = replace(case, query=query, key=key, value=value)

        def timed(way: str, call: Callable[[], Tensor]) -> None:
            self.time(bench_ops.Timed(f"{name} attention", way, call, case.flops, case.bytes), check, model)

        if not configs:
            timed("triton", strided.ours)
            if flash.why_not(case.query, case.value, case.plan) is None:
                timed(f"{flash.engine()[0]} over chains", lambda: strided.ours("flash"))
        for config in configs:
            timed(str(tuple(config)), lambda config=config: strided.configured(config))  # type: ignore[misc]

    def logprob(self, rows: int, model: str, tune: bool = False) -> None:
        """Time log-probabilities of one target a row, and with them full logits and the product alone."""
        shape = SHAPES[model]
        torch.manual_seed(0)
        hidden = torch.randn(rows, shape.width, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(shape.vocabulary, shape.width, device="cuda", dtype=torch.bfloat16) * 0.05
        target = torch.randint(0, shape.vocabulary, (rows,), device="cuda")
        some = torch.randperm(rows, device="cuda")[:32]
        want = (hidden[some].float() @ weight.float().T).log_softmax(1).gather(1, target[some, None])[:, 0]
        flops, size = 2.0 * rows * shape.width * shape.vocabulary, 2.0 * (hidden.numel() + weight.numel())

        def ours() -> Tensor:
            options = {"entropy": False, "check_ids": False, "impl": "triton"}
            return linear_logprob_stats(hidden, weight, target, **options).logprob

        def full() -> Tensor:
            return torch.log_softmax((hidden @ weight.T).float(), -1).gather(1, target[:, None])[:, 0]

        def timed(way: str, call: Callable[[], Tensor], compared: bool = True) -> None:
            check = (lambda out: beyond(out[some] - want, 2e-3)) if compared else None
            self.time(bench_ops.Timed(f"LM head of {rows} rows", way, call, flops, size), check, model)

        if not tune:
            timed("triton", ours)
            timed("full logits", full, compared=False)  # in bfloat16
            timed("product alone", lambda: hidden @ weight.T, compared=False)
            return
        for config, all_splits in HEADS:
            for splits in all_splits:
                options = {"entropy": False, "argmax": False, "config": config, "num_splits": splits}
                call = lambda options=options: linear_logprob_triton(hidden, weight, target, **options).logprob  # noqa: E731
                timed(f"{tuple(config)}, {splits} splits", call)


def beyond(difference: Tensor, limit: float) -> float | None:
    """Return the largest difference if it is not within the limit."""
    error = float(difference.abs().max())
    return None if error <= limit else error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="configurations around the pinned ones")
    parser.add_argument("--recurrent", action="store_true", help="recurrences and PyTorch's")
    parser.add_argument("--seconds", type=float, default=100.0, help="begin nothing after these")
    a = parser.parse_args()
    rows = DeviceRows(a.seconds)
    kernels = Kernels(rows)
    if a.recurrent:
        kernels.generated("W1 recurrent", lambda: bench_ops.bench_recurrent("W1"))
        return
    if a.tune:
        for name, (model, configs) in itertools.product(("W1", "W4"), ((SMALL, NARROW), (LARGE, WIDE))):
            rows.attempt(f"{name}, {model}", lambda n=name, m=model, c=configs: kernels.attention(n, m, c))  # type: ignore[misc]
        rows.attempt("LM head", lambda: kernels.logprob(2048, LARGE, tune=True))
        return
    models = (SMALL, LARGE)
    for model in models:
        rows.attempt(f"W1, {model}", lambda m=model: kernels.attention("W1", m))  # type: ignore[misc]
    for count, model in itertools.product((64, 2048, 12_701), models):
        rows.attempt(f"LM head of {count}, {model}", lambda n=count, m=model: kernels.logprob(n, m))  # type: ignore[misc]
    for model in models:
        rows.attempt(f"W4, {model}", lambda m=model: kernels.attention("W4", m))  # type: ignore[misc]
    for count, model in itertools.product((1, 24), models):
        decode = lambda n=count, m=model: bench_ops.bench_decode(SHAPES[m], n)  # noqa: E731
        kernels.generated(f"decode attention of {count} rows, {model}", decode, model)
    for model in models:
        pointwise = lambda m=model: (t for t in bench_ops.bench_pointwise(SHAPES[m]) if t.way == "triton")  # noqa: E731
        kernels.generated(f"pointwise, {model}", pointwise, model)
    for name in ("W2", "W3"):
        rows.attempt(name, lambda n=name: kernels.attention(n, SMALL))  # type: ignore[misc]


if __name__ == "__main__":
    main()
