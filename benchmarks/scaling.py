"""How the cost of W1's kind grows: N passages in N cyclic orders and K candidates, seconds a computed token.

Linear growth means that the seconds a token stay level but for attention, whose share grows with the length; the plot
shows both. Each size runs `--rounds` times and the median counts.

    python benchmarks/scaling.py                       all sizes; the run is appended to --output
    python benchmarks/scaling.py --plot scaling.svg    a picture of the last run
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import machine
import torch
import work
import workloads

from fastreader import Reader

SIZES = [(n, k) for n in (5, 10, 20, 40) for k in (1, 4, 16, 64)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most-passages", type=int, default=40, help="leave out larger sizes")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "scaling.jsonl")
    parser.add_argument("--plot", type=Path, help="draw the last run in --output, and run nothing")
    arguments = parser.parse_args()
    if arguments.plot:
        if not arguments.output.exists():
            parser.error(f"--plot: {arguments.output} has no run to draw")
        plot(json.loads(arguments.output.read_text().splitlines()[-1])["rows"], arguments.plot)
        return
    reader = Reader.load(arguments.model, device="cpu", precision=arguments.precision)
    rate = machine.gemm_rate(torch.bfloat16)
    rows = [measure(reader, n, k, arguments.rounds) for n, k in SIZES if n <= arguments.most_passages]
    record = {
        "time": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "machine": machine.describe(),
        "model": arguments.model,
        "precision": arguments.precision,
        "gemm_flops": {"before": rate, "after": machine.gemm_rate(torch.bfloat16)},
        "rows": rows,
    }
    arguments.output.parent.mkdir(exist_ok=True)
    with arguments.output.open("a") as stream:
        stream.write(json.dumps(record) + "\n")
    print(table(rows))


def measure(reader: Reader, passages: int, candidates: int, rounds: int) -> dict[str, Any]:
    workload = workloads.orders(reader.encoder, passages, candidates)
    sequences = workload.sequences()
    trees = reader.plan(sequences)
    reader.score(sequences[:candidates])
    seconds = [reader.score(sequences).seconds for _ in range(rounds)]
    computed = sum(map(len, trees))
    return {
        "passages": passages,
        "candidates": candidates,
        "given": workload.given,
        "computed": computed,
        "passes": len(trees),
        "seconds": statistics.median(seconds),
        "seconds_all": seconds,
        "flops": work.flops(trees, reader.local_model.model.config),
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| N | K | tokens given | computed | seconds | microseconds a token | attention's share of the work |"]
    lines.append("|-|-|-|-|-|-|-|")
    for row in rows:
        share = row["flops"]["attention"] / sum(row["flops"].values())
        each = 1e6 * row["seconds"] / row["computed"]
        lines.append(
            f"| {row['passages']} | {row['candidates']} | {row['given']:,} | {row['computed']:,} "
            f"| {row['seconds']:.2f} | {each:.0f} | {share:.0%} |"
        )
    return "\n".join(lines)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    whole, each = figure.subplots(1, 2)
    for candidates, marker in zip(sorted({r["candidates"] for r in rows}), "osd^v", strict=False):
        chosen = sorted((r for r in rows if r["candidates"] == candidates), key=lambda r: r["computed"])
        computed = [r["computed"] for r in chosen]
        label = f"K = {candidates}"
        whole.plot(computed, [r["seconds"] for r in chosen], marker=marker, label=label)
        each.plot(computed, [1e6 * r["seconds"] / r["computed"] for r in chosen], marker=marker, label=label)
    whole.set(xlabel="tokens computed", ylabel="seconds", xscale="log", yscale="log")
    each.set(xlabel="tokens computed", ylabel="microseconds a computed token", xscale="log")
    each.set_ylim(bottom=0)
    whole.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
