"""Seconds, peak memory and error of one packed pass beside transformers' ways to the same log-likelihoods.

Every way runs in a process of its own, in turn, several rounds, so that all see the same machine and each has
its own peak. The rate of a plain matrix product is measured before and after: when it fell by more than a
quarter, something else was running and the run is marked as loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import peers
import torch
import workloads

RESULTS = Path(__file__).parent / "results"
WAYS = {
    "fastreader, fast": ("tree", "fast"),
    "fastreader, exact": ("tree", "exact"),
    "transformers, prefix cache, bf16": ("prefix_cached", "bf16"),
    "transformers, prefix cache, fp32": ("prefix_cached", "fp32"),
    "transformers, padded by 8, bf16": ("padded", "bf16"),
    "transformers, padded by 8, fp32": ("padded", "fp32"),
}
TRUTH = ("one_at_a_time", "fp32")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=Path, help="a workload as token ids; the bundled question by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS), metavar="WAY")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments.model, arguments.tokens, *arguments.child)))
        return
    before = {str(d): machine.gemm_rate(d) for d in (torch.bfloat16, torch.float32)}
    truth = spawn(arguments, TRUTH)["logprobs"]
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in arguments.ways}
    for round_ in range(arguments.rounds):
        for way in arguments.ways:
            runs[way].append(spawn(arguments, WAYS[way]))
            print(f"round {round_ + 1}, {way}: {runs[way][-1]['seconds']:.2f} s", file=sys.stderr)
    after = {str(d): machine.gemm_rate(d) for d in (torch.bfloat16, torch.float32)}
    rows = {way: summary(runs[way], truth) for way in runs}
    record = {
        "workload": runs[arguments.ways[0]][0]["workload"],
        "time": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "machine": machine.describe(),
        "gemm_flops": {"before": before, "after": after},
        "loaded": any(after[d] < 0.75 * before[d] for d in before),
        "rows": rows,
    }
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "side_by_side.jsonl").open("a") as stream:
        stream.write(json.dumps(record) + "\n")
    print(table(record))


def spawn(arguments: argparse.Namespace, way: tuple[str, str]) -> dict[str, Any]:
    command = [sys.executable, __file__, "--model", arguments.model, "--child", *way]
    if arguments.tokens:
        command += ["--tokens", str(arguments.tokens)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def child(model: str, tokens: Path | None, way: str, precision: str) -> dict[str, Any]:
    """Load, then time one way once; the peak is what memory rose to above the loaded model."""
    from fastreader import Reader
    from fastreader.models.text import TextEncoder

    if way == "tree":
        reader = Reader.load(model, device="cpu", precision=precision)
        workload = workloads.from_tokens(tokens) if tokens else workloads.bundled(reader.encoder)

        def run() -> tuple[list[float], int]:
            scores = reader.score(workload.sequences())
            return scores.logprob.tolist(), scores.stats.computed
    else:
        import transformers

        from fastreader.models.packaged import PACKAGED, folder_of

        folder = folder_of(model) if model in PACKAGED else model
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[precision]
        own = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        encoder = TextEncoder(transformers.AutoTokenizer.from_pretrained(folder))
        workload = workloads.from_tokens(tokens) if tokens else workloads.bundled(encoder)
        score: Callable[..., list[float]] = getattr(peers, way)

        def run() -> tuple[list[float], int]:
            computed = sum(map(len, workload.contexts)) + len(workload.contexts) * sum(map(len, workload.continuations))
            if way != "prefix_cached":
                computed = sum(len(c) + len(k) for c, k in workload.sequences())
            return score(own, workload.contexts, workload.continuations), computed

    with Peak() as peak:
        started = time.perf_counter()
        logprobs, computed = run()
        seconds = time.perf_counter() - started
    given = sum(len(c) + len(k) for c, k in workload.sequences())
    return {
        "workload": workload.name,
        "seconds": seconds,
        "peak_bytes": peak.bytes,
        "logprobs": logprobs,
        "given": given,
        "computed": computed,
    }


class Peak:
    """Resident memory above what was resident on entry, sampled every 5 ms."""

    def __enter__(self) -> Peak:
        self.base = self.highest = _resident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def bytes(self) -> int:
        return self.highest - self.base

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.highest = max(self.highest, _resident())


def _resident() -> int:
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def summary(runs: list[dict[str, Any]], truth: list[float]) -> dict[str, Any]:
    errors = [abs(a - b) for a, b in zip(runs[0]["logprobs"], truth, strict=True)]
    seconds = [r["seconds"] for r in runs]
    return {
        "seconds": statistics.median(seconds),
        "seconds_all": seconds,
        "peak_bytes": max(r["peak_bytes"] for r in runs),
        "given": runs[0]["given"],
        "computed": runs[0]["computed"],
        "error_mean": statistics.mean(errors),
        "error_max": max(errors),
    }


def table(record: dict[str, Any]) -> str:
    best = min(row["seconds"] for row in record["rows"].values())
    lines = [
        "| way | seconds (min .. max) | times the fastest | peak above weights | tokens | error mean / max (nats) |"
    ]
    lines.append("|-|-|-|-|-|-|")
    for way, row in record["rows"].items():
        spread = f"{min(row['seconds_all']):.2f} .. {max(row['seconds_all']):.2f}"
        lines.append(
            f"| {way} | {row['seconds']:.2f} ({spread}) | {row['seconds'] / best:.1f} "
            f"| {row['peak_bytes'] / 1e6:,.0f} MB | {row['computed']:,} "
            f"| {row['error_mean']:.4f} / {row['error_max']:.4f} |"
        )
    note = " **The machine was loaded: do not quote these times.**" if record["loaded"] else ""
    return "\n".join(lines) + f"\n\n{record['workload']}, {record['machine']['processor']}.{note}"


if __name__ == "__main__":
    main()
