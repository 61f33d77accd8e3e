"""Peak memory of a corpus that does not fit in memory: a sample, a BM25 index, and its queries.

    python benchmarks/eor/corpus_memory.py --passages 5000000 --folder build/corpus

Makes a table of short passages of Zipf-distributed words. Each step runs in its own process, whose peak resident memory
(pages of mapped files included) is printed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

BATCH = 50_000
STEPS = ("sample", "index", "query")
MOST = 2 * 2**30


def make(path: Path, passages: int, words: int, seed: int = 0) -> None:
    generator = np.random.default_rng(seed)
    names = [f"w{i}" for i in range(words)]
    with path.open("w", encoding="utf-8") as stream:
        stream.write("id\ttext\ttitle\n")
        for start in range(0, passages, BATCH):
            ends = np.cumsum(generator.integers(8, 25, min(BATCH, passages - start))).tolist()
            drawn = (words ** generator.random(ends[-1])).astype(int) - 1  # the n-th word in proportion to 1 / n
            texts = [names[n] for n in drawn.tolist()]
            lines = zip(itertools.count(start), [0, *ends], ends, strict=False)
            stream.writelines(f"{i}\t{' '.join(texts[a:b])}\tTitle {i % 99_991}\n" for i, a, b in lines)


def step(name: str, corpus: Path, folder: Path) -> None:
    from fastreader.data import sample_passages
    from fastreader.eor import BM25, build_index

    begun = time.perf_counter()
    if name == "sample":
        found = len(sample_passages(corpus, 1000, seed=1))
    elif name == "index":
        found = len(BM25.load(build_index(corpus, folder)).passages)
    else:
        source = BM25.load(folder)
        generator = np.random.default_rng(2)
        texts = [" ".join(f"w{n}" for n in generator.integers(1, 100_000, 6)) for _ in range(100)]
        found = sum(len(source(text)) for text in texts)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # bytes on Linux: kilobytes are returned
    print(json.dumps({"step": name, "found": found, "peak": peak, "seconds": time.perf_counter() - begun}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=5_000_000)
    parser.add_argument("--words", type=int, default=500_000, help="Number of distinct words.")
    parser.add_argument("--folder", type=Path, default=Path("build/corpus"))
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    corpus, index = arguments.folder / "corpus.tsv", arguments.folder / "index"
    if arguments.step:
        step(arguments.step, corpus, index)
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if not corpus.exists():
        make(corpus, arguments.passages, arguments.words)
    over = False
    for name in STEPS:
        command = [sys.executable, __file__, "--folder", str(arguments.folder), "--step", name]
        row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        over |= row["peak"] > MOST
        print(
            f"{name:8} peak {row['peak'] / 2**30:.2f} GiB, {row['seconds']:.0f} s, {row['found']:,} found", flush=True
        )
    sys.exit(over)


if __name__ == "__main__":
    main()
