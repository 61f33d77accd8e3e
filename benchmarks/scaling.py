"""How the cost of W1's kind grows: N passages in N cyclic orders and K candidates, seconds a computed token.

Linear growth means that the seconds a token stay level but for attention, whose share grows with the length; the plot
shows both. Each size runs `--rounds` times and the median counts.

    python benchmarks/scaling.py --output scaling.jsonl --plot scaling.svg
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

SIZES = [(n, 4) for n in (5, 10, 20, 40)] + [(10, k) for k in (1, 16, 64)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most-passages", type=int, default=40, help="leave out larger sizes")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "scaling.jsonl")
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
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
    if arguments.plot:
        plot(rows, arguments.plot)


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
        "flops": work.flops(trees, reader._model.config),
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

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    by_n = sorted((r for r in rows if r["candidates"] == 4), key=lambda r: r["computed"])
    by_k = sorted((r for r in rows if r["passages"] == 10), key=lambda r: r["candidates"])
    for chosen, label, marker in ((by_n, "N = 5 to 40, K = 4", "o"), (by_k, "N = 10, K = 1 to 64", "s")):
        axes.plot([r["computed"] for r in chosen], [r["seconds"] for r in chosen], marker=marker, label=label)
    axes.set(xlabel="tokens computed", ylabel="seconds", xscale="log", yscale="log")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
