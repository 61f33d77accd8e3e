"""Side by side: our kernels and the other ways to do the same, interleaved, in one process.

    python benchmarks/ops/compare.py attention --workload w1 --tokens w1-tokens.json
    python benchmarks/ops/compare.py logprob

Inputs and masks are built beforehand; a 64 MB buffer is written before each run so that none starts with warm
caches. The GEMM rate is measured before and after: where the two differ by more than a fifth, the machine had other
things to do, and the run is refused unless --allow-loaded, which marks the row. An implementation whose result is
wrong is not timed. Rows are appended to benchmarks/results/ops.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from workloads import SEED, SIZE, AttentionCase, attention_case, head_case

from fastreader.ops import extension, linear_logprob, tree_attention

RESULTS = Path(__file__).parent.parent / "results" / "ops.jsonl"
DRIFT = 0.2  # of the GEMM rate, from before to after
LOAD = 0.5  # runnable processes a core besides this one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", choices=["attention", "logprob"])
    parser.add_argument("--workload", choices=["w1", "w2"], default="w1")
    parser.add_argument("--tokens", type=Path, help="token file of W1; random tokens of its shape without")
    parser.add_argument("--rows", type=int, default=12_701, help="rows of the LM head")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--allow-loaded", action="store_true")
    parser.add_argument("--only", nargs="*", help="names of the ways to run")
    options = parser.parse_args()

    if options.op == "attention":
        case = attention_case(options.workload, torch.bfloat16, options.tokens)
        name, flops, ways = f"tree_attention {case.name}", case.flops, attention_ways(case)
        expected, tolerance = tree_attention(*floats(case), case.until, scale=SIZE**-0.5, impl="torch"), 0.05
    else:
        hidden, weight, target, flops = head_case(torch.bfloat16, options.rows)
        name, ways = f"linear_logprob {options.rows}", logprob_ways(hidden, weight, target)
        few = slice(0, 256)
        expected = linear_logprob(hidden[few].float(), weight.float(), target[few], impl="torch")
        tolerance = 0.1
    ways = {key: way for key, way in ways.items() if not options.only or key in options.only}

    refused = {key for key, way in ways.items() if not agrees(way(), expected, tolerance)}
    for key in refused:
        print(f"{key}: its result is off by more than {tolerance}; not timed", file=sys.stderr)
    loaded = os.getloadavg()[0] / (os.cpu_count() or 1) > 1 + LOAD
    before = gemm_rate()
    seconds = interleave({key: way for key, way in ways.items() if key not in refused}, options.rounds)
    after = gemm_rate()
    loaded |= abs(after - before) > DRIFT * max(before, after)
    if loaded and not options.allow_loaded:
        sys.exit(
            f"the machine is loaded (GEMM {before:.0f} then {after:.0f} GFLOP/s); --allow-loaded runs all the same"
        )
    report(name, flops, seconds, before, after, loaded)


def floats(case: AttentionCase) -> tuple[Tensor, Tensor, Tensor]:
    return case.query.float(), case.key.float(), case.value.float()


def attention_ways(case: AttentionCase) -> dict[str, Callable[[], Tensor]]:
    scale = SIZE**-0.5
    wide = floats(case)

    def ours(impl: str, inputs: tuple[Tensor, ...], split: bool = False) -> Callable[[], Tensor]:
        def run() -> Tensor:
            out = tree_attention(*inputs, case.until, scale=scale, plan=case.plan, impl=impl, split=split)
            assert isinstance(out, Tensor)
            return out

        return run

    narrow = (case.query, case.key, case.value)
    ways = {"sdpa per segment": ours("torch", narrow), "flex_attention compiled": flex(case, scale)}
    if extension.why_missing() is None:
        ways |= {"ours": ours("cpu", narrow), "ours split": ours("cpu", wide, True), "ours fp32": ours("cpu", wide)}
    return ways


def flex(case: AttentionCase, scale: float) -> Callable[[], Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    until, count = case.until, len(case.until)

    def visible(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (row < until[column])

    mask = create_block_mask(visible, None, None, count, count, device="cpu")
    query, key, value = (t.transpose(0, 1)[None].contiguous() for t in (case.query, case.key, case.value))
    compiled = torch.compile(flex_attention)

    def run() -> Tensor:
        out = compiled(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)
        return out[0].transpose(0, 1)

    return run


def logprob_ways(hidden: Tensor, weight: Tensor, target: Tensor) -> dict[str, Callable[[], Tensor]]:
    def full() -> Tensor:
        return F.log_softmax((hidden @ weight.T).float(), dim=-1).gather(1, target[:, None])[:, 0]

    def chunked() -> Tensor:
        parts = []
        for low in range(0, len(hidden), 512):
            rows = slice(low, low + 512)
            logits = (hidden[rows] @ weight.T).float()
            parts.append(logits.gather(1, target[rows, None])[:, 0] - torch.logsumexp(logits, -1))
        return torch.cat(parts)

    ways: dict[str, Callable[[], Tensor]] = {"full logits": full, "chunked logits": chunked}
    if extension.why_missing() is None:
        wide = hidden.float()
        ways["ours"] = lambda: linear_logprob(hidden, weight, target, impl="cpu")
        ways["ours split"] = lambda: linear_logprob(wide, weight, target, split=True, impl="cpu")
    return ways


def agrees(got: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((got[: len(expected)].float() - expected).abs().max() <= tolerance)


def interleave(ways: dict[str, Callable[[], Tensor]], rounds: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {key: [] for key in ways}
    caches = torch.empty(64 << 20, dtype=torch.uint8)
    for turn in range(rounds):
        caches.fill_(turn)
        for key, way in ways.items():
            caches.add_(1)
            start = time.perf_counter()
            way()
            seconds[key].append(time.perf_counter() - start)
    return seconds


def gemm_rate() -> float:
    """GFLOP/s of torch's bf16 product of 2048 x 2048 matrices, the best of 10."""
    left, right = (torch.randn(2048, 2048).bfloat16() for _ in range(2))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / min(times) / 1e9


def report(name: str, flops: float, seconds: dict[str, list[float]], before: float, after: float, loaded: bool) -> None:
    rate = max(before, after)
    print(f"{name}: GEMM {before:.0f} GFLOP/s before, {after:.0f} after{', LOADED' if loaded else ''}")
    rows = []
    for way, times in seconds.items():
        low, median, high = np.quantile(times, [0.25, 0.5, 0.75])
        done = flops / median / 1e9
        spread = f"{median * 1e3:9.2f} ms [{low * 1e3:.2f}, {high * 1e3:.2f}]"
        print(f"  {way:24s} {spread}  {done:7.0f} GFLOP/s  {done / rate:.2f}")
        rows.append(
            {
                "benchmark": name,
                "way": way,
                "median_s": median,
                "quartile_1_s": low,
                "quartile_3_s": high,
                "minimum_s": min(times),
                "rounds": len(times),
                "useful_gflops": done,
                "gemm_gflops_before": before,
                "gemm_gflops_after": after,
                "loaded": loaded,
                **environment(),
            }
        )
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def environment() -> dict[str, object]:
    git = ["git", "-C", str(Path(__file__).parent)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    dirty = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout.strip()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": cpu_name(),
        "instruction_set": None if extension.why_missing() else extension.best_instruction_set(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit + ("+" if dirty else ""),
        "seed": SEED,
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return platform.processor()


if __name__ == "__main__":
    main()
