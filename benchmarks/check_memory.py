"""Compare the memory estimate of a pass with the peak that it reaches, each in a separate process.

    python benchmarks/check_memory.py

The estimate is what `Reader.budget` and the splitting of passes go by: bytes a token times tokens, and what a pass
takes in addition. Fails where it is off by more than a fifth of the peak.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

import machine
import numpy as np
from peak import Peak

from fastreader import Reader
from fastreader.core.tree import PrefixTree

RESULTS = Path(__file__).parent / "results" / "memory.jsonl"
ALLOWED = 0.2
BODIES, TAIL = 10, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", nargs="+", default=["fast", "high", "exact"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[6_000, 12_000, 24_000])
    parser.add_argument("--output", type=Path, default=RESULTS, help="results are appended here")
    parser.add_argument("--alone", action="store_true", help="measure one pass in this process")
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(measure(arguments.model, arguments.precision[0], arguments.tokens[0])))
        return
    worst, about = 0.0, machine.describe()
    for precision in arguments.precision:
        for tokens in arguments.tokens:
            command = [sys.executable, __file__, "--alone", "--model", arguments.model]
            command += ["--precision", precision, "--tokens", str(tokens)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            row = json.loads(done.stdout.splitlines()[-1]) | about
            with arguments.output.open("a") as file:
                file.write(json.dumps(row) + "\n")
            off = row["estimate"] / row["peak"] - 1
            worst = max(worst, abs(off))
            print(
                f"{precision:6s} {row['tokens']:6d} tokens: estimated {row['estimate'] / 2**20:6.1f} MB, "
                f"peak {row['peak'] / 2**20:6.1f} MB, {off:+.0%}"
            )
    if worst > ALLOWED:
        sys.exit(f"an estimate is off by {worst:.0%}; {ALLOWED:.0%} is allowed")


def measure(model: str, precision: str, tokens: int) -> dict[str, str | int]:
    """One pass over bodies that share nothing."""
    reader = Reader.load(model, precision=precision)
    score(reader, 600)  # what is made once
    rng = np.random.default_rng(0)
    tree = make_tree(rng, tokens)
    gc.collect()
    if sys.platform == "linux":  # memory freed earlier must not be counted as there already
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with Peak() as peak:
        reader.local_model.model.score(tree)
    estimate = reader.local_model.model.bytes_per_token * len(tree) + reader.local_model.model.overhead.bytes(len(tree))
    return {"precision": precision, "tokens": len(tree), "estimate": estimate, "peak": peak.bytes}


def score(reader: Reader, tokens: int) -> None:
    reader.local_model.model.score(make_tree(np.random.default_rng(1), tokens))


def make_tree(rng: np.random.Generator, tokens: int) -> PrefixTree:
    bodies = rng.integers(0, 30_000, (BODIES, tokens // BODIES)).tolist()
    return PrefixTree.build([(body[:-TAIL], body[-TAIL:]) for body in bodies])


if __name__ == "__main__":
    main()
