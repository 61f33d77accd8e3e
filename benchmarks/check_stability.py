"""How far a score moves with what should not matter: the split, the batch's other content, the order, the threads.

    python benchmarks/check_stability.py

Scores of workload W1 in one pass are compared with the same sequences split to smaller passes, one ordering at a
time, in reverse order, and on one thread. Fails above 0.02 nats in "fast", 1e-4 in "high" and "exact".
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import machine
import numpy as np
import torch
import workloads

from fastreader import Reader

RESULTS = Path(__file__).parent / "results" / "stability.jsonl"
ALLOWED = {"fast": 0.02, "high": 1e-4, "exact": 1e-4}
Scores = np.ndarray
Pair = tuple[list[int], list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=Path, help="W1 as token ids; the bundled text by default")
    parser.add_argument("--precision", nargs="+", default=["fast", "high", "exact"])
    parser.add_argument("--output", type=Path, default=RESULTS, help="results are appended here")
    arguments = parser.parse_args()
    over = []
    for precision in arguments.precision:
        reader = Reader.load(arguments.model, precision=precision)
        pairs = workloads.make("w1", reader.encoder, arguments.tokens).sequences()
        whole = scores(reader, pairs)
        for name, run in ways(reader, pairs).items():
            moved = float(np.abs(run() - whole).max())
            row = {"precision": precision, "change": name, "nats": moved, "sequences": len(pairs)} | machine.describe()
            with arguments.output.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{precision:6s} {name:28s} {moved:.2e} nats", flush=True)
            if moved > ALLOWED[precision]:
                over.append(f"{precision}, {name}")
    if over:
        sys.exit(f"over what is allowed: {'; '.join(over)}")


def scores(reader: Reader, pairs: list[Pair], **options: int) -> Scores:
    return np.array([result.logprob for result in reader.loglikelihood(pairs, **options)])


def ways(reader: Reader, pairs: list[Pair]) -> dict[str, Callable[[], Scores]]:
    contexts = sorted({tuple(context) for context, _ in pairs})

    def one_by_one() -> Scores:
        out = np.zeros(len(pairs))
        for context in contexts:
            rows = [i for i, (own, _) in enumerate(pairs) if tuple(own) == context]
            out[rows] = scores(reader, [pairs[i] for i in rows])
        return out

    def on_one_thread() -> Scores:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return scores(reader, pairs)
        finally:
            torch.set_num_threads(threads)

    return {
        "passes of 3,000 tokens": lambda: scores(reader, pairs, max_batch_tokens=3_000),
        "one ordering at a time": one_by_one,
        "one sequence at a time": lambda: np.concatenate([scores(reader, [pair]) for pair in pairs]),
        "in reverse order": lambda: scores(reader, pairs[::-1])[::-1],
        "one thread": on_one_thread,
    }


if __name__ == "__main__":
    main()
