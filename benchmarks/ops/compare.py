"""Time our kernels side by side with other implementations of the same op, interleaved, in one process.

    python benchmarks/ops/compare.py attention --workload w1 --tokens w1-tokens.json
    python benchmarks/ops/compare.py logprob
    python benchmarks/ops/compare.py linear --rows 512

Inputs and masks are built beforehand; a 64 MB buffer is written before each run so that none starts with warm
caches. The GEMM rate is measured before and after: if the two differ by more than a fifth, the machine was loaded and
the run fails, except with --allow-loaded, which marks the row. The op's tests run first, and neither an op with failing
tests nor a way with a wrong result is timed. Memory is the increase during a way's first run. Rows are appended to
benchmarks/results/ops.jsonl.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from op_cases import LAYERS, ROWS, SEED
from torch import Tensor
from ways import Contest, Way, attention, layers, logprob

from fastreader.ops import extension

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from machine import describe  # noqa: E402
from peak import Peak  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "ops.jsonl"
TESTS = {"attention": "test_tree_attention_cpu.py", "logprob": "test_linear_logprob_cpu.py", "linear": "test_linear.py"}
DRIFT = 0.2  # largest change of the GEMM rate during the run
LOAD = 0.5  # runnable processes per core besides this one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("op", choices=list(TESTS))
    parser.add_argument("--workload", choices=["w1", "w2"], default="w1", help="workload of attention")
    parser.add_argument("--tokens", type=Path, help="token file of W1; default: random tokens of its shape")
    parser.add_argument("--rows", type=int, help=f"rows: default {ROWS} for the LM head, 512 for linear layers")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--allow-loaded", action="store_true")
    parser.add_argument("--only", nargs="*", help="names of the ways to run")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()

    require_green_tests(options.op)
    if options.op == "attention":
        contests = [attention(options.workload, options.tokens)]
    elif options.op == "logprob":
        contests = [logprob(options.rows or ROWS)]
    else:
        contests = [layers(options.rows or 512, shape) for shape in LAYERS]
    for contest in contests:
        run(contest, options)


def require_green_tests(op: str) -> None:
    """Stop unless the op's tests pass on this machine with this build."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", f"tests/ops/{TESTS[op]}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{done.stdout[-3000:]}\nthe tests of {op} fail; it is not timed")
    print(f"tests of {op}: {done.stdout.splitlines()[-1]}")


def run(contest: Contest, options: argparse.Namespace) -> None:
    ways = {key: way for key, way in contest.ways.items() if not options.only or key in options.only}
    with torch.inference_mode():
        extra = {}
        for key in reversed(list(ways)):  # memory freed by others would hide what ours takes
            with Peak() as peak:
                got = ways[key]()
            extra[key] = peak.bytes
            if not agrees(got, contest.expected, contest.tolerance):
                print(f"{key}: the error of its result exceeds {contest.tolerance}; not timed", file=sys.stderr)
                del ways[key]
        loaded = os.getloadavg()[0] / (os.cpu_count() or 1) > 1 + LOAD
        before = gemm_rate()
        seconds = interleave(ways, options.rounds)
        after = gemm_rate()
    loaded |= abs(after - before) > DRIFT * max(before, after)
    if loaded and not options.allow_loaded:
        sys.exit(f"the machine is loaded (GEMM {before:.0f} then {after:.0f} GFLOP/s); --allow-loaded runs anyway")
    report(contest, seconds, extra, before, after, loaded, options.output)


def agrees(got: Tensor, expected: Tensor, tolerance: float) -> bool:
    return bool((got[: len(expected)].float() - expected).abs().max() <= tolerance)


def interleave(ways: dict[str, Way], rounds: int) -> dict[str, list[float]]:
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
    """Return GFLOP/s of torch's bf16 product of 2048 x 2048 matrices, the best of 10."""
    left, right = (torch.randn(2048, 2048).bfloat16() for _ in range(2))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / min(times) / 1e9


def report(
    contest: Contest,
    seconds: dict[str, list[float]],
    extra: dict[str, int],
    before: float,
    after: float,
    loaded: bool,
    output: Path,
) -> None:
    rate = max(before, after)
    print(f"{contest.name}: GEMM {before:.0f} GFLOP/s before, {after:.0f} after{', LOADED' if loaded else ''}")
    rows = []
    for way, times in seconds.items():
        low, median, high = np.quantile(times, [0.25, 0.5, 0.75])
        done = contest.flops / median / 1e9
        spread = f"{median * 1e3:9.2f} ms [{low * 1e3:.2f}, {high * 1e3:.2f}]"
        print(f"  {way:38s} {spread}  {done:7.0f} GFLOP/s  {done / rate:.2f}  {extra[way] / 1e6:5.0f} MB")
        rows.append(
            {
                "benchmark": contest.name,
                "way": way,
                "median_s": median,
                "quartile_1_s": low,
                "quartile_3_s": high,
                "minimum_s": min(times),
                "rounds": len(times),
                "extra_bytes": extra[way],
                "useful_gflops": done,
                "gemm_gflops_before": before,
                "gemm_gflops_after": after,
                "loaded": loaded,
                **environment(),
            }
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def environment() -> dict[str, object]:
    changed = subprocess.run(
        ["git", "-C", str(ROOT), "status", "--porcelain", "-uno"], capture_output=True, text=True, check=False
    )
    about = describe()
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "instruction_set": None if extension.why_missing() else extension.best_instruction_set(),
        **about,
        "commit": f"{about['commit']}{'+' if changed.stdout.strip() else ''}",
        "seed": SEED,
    }


if __name__ == "__main__":
    main()
