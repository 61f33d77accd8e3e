"""Time kernels: `kernels.py [--tune | --recurrent] --seconds N`; nothing stops at an error, rows go to $OUT/rows.jsonl."""

import argparse
import itertools
import json
import os
import time
import traceback
from pathlib import Path

import torch

OUT = Path(os.environ.get("OUT", "/tmp")) / "rows.jsonl"
END = [0.0]


def write(**row):
    with OUT.open("a") as file:
        file.write(json.dumps(row | {"time": time.time()}) + "\n")
    print({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}, flush=True)


def left():
    return time.monotonic() < END[0]


def attempt(what, function):
    """Run a step; an error is a row. A CUDA error poisons the process, so it ends the script."""
    if not left():
        return None
    try:
        return function()
    except BaseException as error:  # noqa: BLE001 (SystemExit too: the benchmarks raise it)
        write(suite="failed", case=what, why=f"{type(error).__name__}: {error}"[:400])
        if "CUDA error" in str(error) or "illegal memory" in str(error):
            traceback.print_exc()
            raise SystemExit(1) from error
        return None


def timed(case, way, call, flops, size, rates, check=None):
    def go():
        import triton
        from bench_ops import warm

        wrong = None if check is None else check(call())
        reps = 60 if flops < 2e12 else 150
        median, low, high = triton.testing.do_bench(call, warmup=15, rep=reps, quantiles=[0.5, 0.1, 0.9])
        floor = rates.floor(flops, size)
        write(suite="kernels", case=case, way=way, milliseconds=median, low=low, high=high, warm=warm(call, median), floor=floor,
              over=median / floor if floor else None, tflops=flops / median / 1e9, wrong=wrong)  # fmt: skip

    return attempt(f"{case}: {way}", go)


def attention(name, model, rates, configs=()):
    from bench_ops import Attention
    from gpu_workloads import SHAPES, WORKLOADS

    from fastreader.ops.tree_attention import flash

    case = Attention.make(WORKLOADS[name](), SHAPES[model])
    rows, golden = case.sample()

    def check(out):
        error = float((out[rows].float() - golden.float()).abs().max())
        return None if error <= 0.02 else error

    what = f"{name} attention, {model}"
    both = torch.cat([case.query, case.key, case.value], dim=1)  # views of one tensor, as in a pass
    heads, keys = case.shape.heads, case.shape.key_heads
    q, k, v = both.split_with_sizes([heads, keys, keys], dim=1)
    from dataclasses import replace

    strided = replace(case, query=q, key=k, value=v)
    timed(what, "triton", strided.ours, case.flops, case.bytes, rates, check)
    if flash.why_not(case.query, case.value, case.plan) is None:
        timed(
            what,
            f"{flash.engine()[0]} over chains",
            lambda: strided.ours("flash"),
            case.flops,
            case.bytes,
            rates,
            check,
        )
    for config in configs:
        timed(what, str(tuple(config)), lambda c=config: strided.configured(c), case.flops, case.bytes, rates, check)


def logprob(rows, model, rates, configs=()):
    from gpu_workloads import SHAPES

    from fastreader.ops import linear_logprob_stats

    shape = SHAPES[model]
    torch.manual_seed(0)
    hidden = torch.randn(rows, shape.width, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(shape.vocabulary, shape.width, device="cuda", dtype=torch.bfloat16) * 0.05
    target = torch.randint(0, shape.vocabulary, (rows,), device="cuda")
    some = torch.randperm(rows, device="cuda")[:32]
    want = (hidden[some].float() @ weight.float().T).log_softmax(1).gather(1, target[some, None])[:, 0]
    flops, size = 2.0 * rows * shape.width * shape.vocabulary, 2.0 * (hidden.numel() + weight.numel())

    def check(out):
        error = float((out[some] - want).abs().max())
        return None if error <= 2e-3 else error

    ours = lambda: linear_logprob_stats(hidden, weight, target, entropy=False, check_ids=False, impl="triton").logprob  # noqa: E731
    what = f"LM head of {rows} rows, {model}"
    timed(what, "triton", ours, flops, size, rates, check)
    plain = lambda: torch.log_softmax((hidden @ weight.T).float(), -1).gather(1, target[:, None])[:, 0]  # noqa: E731
    timed(what, "full logits", plain, flops, size, rates)
    timed(what, "product alone", lambda: hidden @ weight.T, flops, size, rates)
    for config, splits in configs:
        from fastreader.ops.linear_logprob.triton import linear_logprob_triton

        timed(what, f"{tuple(config)} splits {splits}",
              lambda c=config, s=splits: linear_logprob_triton(hidden, weight, target, entropy=False, argmax=False, config=c, num_splits=s).logprob,
              flops, size, rates, check)  # fmt: skip


def generator(what, items, rates):
    def go():
        for each in items():
            timed(each.case, each.way, each.call, each.flops, each.bytes, rates)
            if not left():
                return

    attempt(what, go)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--recurrent", action="store_true")
    parser.add_argument("--seconds", type=float, default=100)
    a = parser.parse_args()
    END[0] = time.monotonic() + a.seconds
    import bench_ops
    import gpu_device
    from gpu_workloads import SHAPES

    from fastreader.ops.linear_logprob.triton import LinearLogprobConfig as Head
    from fastreader.ops.tree_attention.triton_config import TreeAttentionConfig as Config

    rates = gpu_device.rates()
    write(suite="device", **gpu_device.about(), flops=rates.flops, bandwidth=rates.bandwidth)
    small, large = "smollm2-135m", "llama-3.1-8b"
    if a.recurrent:
        for name in ("W1",):
            generator(f"{name} recurrent", lambda name=name: bench_ops.bench_recurrent(name), rates)
        return
    if a.tune:
        few = [Config(128, 64, 8, 3, 128, True), Config(128, 64, 8, 2, 128, True), Config(64, 64, 4, 3, 168, True), Config(64, 64, 4, 2, 128, True),
               Config(128, 128, 8, 2, 0, True), Config(128, 64, 4, 3, 0, True), Config(128, 64, 8, 3)]  # fmt: skip
        wide = [Config(128, 128, 8, 2, 0, True), Config(128, 64, 8, 3, 0, True), Config(128, 64, 8, 2, 0, True), Config(64, 64, 4, 3, 0, True),
                Config(64, 128, 4, 2, 0, True), Config(128, 64, 8, 2)]  # fmt: skip
        for name in ("W1", "W4"):
            attempt(name, lambda n=name: attention(n, small, rates, few))
            attempt(name, lambda n=name: attention(n, large, rates, wide))
        heads = [(Head(128, 256, 64, 8, 4), s) for s in (4, 16, 33)] + [(Head(128, 128, 64, 8, 3), s) for s in (6, 33)]
        attempt("head", lambda: logprob(2048, large, rates, heads))
        return
    attempt("W1", lambda: attention("W1", small, rates))
    attempt("W1", lambda: attention("W1", large, rates))
    for rows, model in itertools.product((64, 2048, 12_701), (small, large)):
        attempt("head", lambda r=rows, m=model: logprob(r, m, rates))
    attempt("W4", lambda: attention("W4", small, rates))
    attempt("W4", lambda: attention("W4", large, rates))
    for rows in (1, 24):
        for model in (small, large):
            generator(f"decode {rows} {model}", lambda r=rows, m=model: bench_ops.bench_decode(SHAPES[m], r), rates)
    for model in (small, large):
        generator(
            f"pointwise {model}",
            lambda m=model: (t for t in bench_ops.bench_pointwise(SHAPES[m]) if t.way == "triton"),
            rates,
        )
    for name in ("W2", "W3"):
        attempt(name, lambda n=name: attention(n, small, rates))


if __name__ == "__main__":
    main()
