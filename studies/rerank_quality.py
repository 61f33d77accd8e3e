"""How well each way of re-ranking finds the gold passage: MRR and nDCG with intervals, for a reader.

Development questions with a gold passage among 20 of BM25: the order of BM25, query likelihood, yes or no, and the
first token in one order and over four. An empty passage subtracted from yes or no (`calibrate`) leaves its order as it
is. The four orders cost more than all else and come last. A run that was stopped resumes with the same command; rows of
another reader or other data raise. `--report` prints what the rows give so far.

    python studies/rerank_quality.py questions.dev.jsonl.gz --model smollm2-135m --questions 300 --output rows.jsonl
"""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lib.resuming import Job, Row, append_missing, best_passages, settings_of
from lib.shared import make_parser, rows_of

import fastreader as fr
from fastreader.data.fingerprints import digest
from fastreader.statistics import bootstrap

SINGLE: dict[str, dict[str, Any] | None] = {
    "BM25": None,
    "query likelihood": {"method": "query_likelihood"},
    "yes_no": {"method": "yes_no"},
    "first-token": {"method": "first-token"},
}
REPEATED: dict[str, dict[str, Any] | None] = {"first-token, 4 orders": {"method": "first-token", "orders": 4}}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, help="questions whose passages say which is gold")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--passages", type=int, default=20)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--report", action="store_true", help="only print what the existing rows give")
    arguments = parser.parse_args()
    examples = []
    for number, example in enumerate(fr.load_examples(arguments.data)):
        passages = best_passages(example)[: arguments.passages]
        if any(passage.is_gold for passage in passages):
            examples.append((example.id or str(number), example.question, passages))
        if len(examples) == arguments.questions:
            break
    if not arguments.report:
        run(arguments, examples)
    report(arguments.output, [name for name, _, _ in examples])


def run(arguments: Namespace, examples: Sequence[tuple[str, str, list[fr.Passage]]]) -> None:
    """Rank the passages of each question by each way, and append the ranks of its gold passages."""
    reader = fr.Reader.load(arguments.model)
    jobs = [
        Job(f"{name} {way}", partial(row_of, reader, question, passages, options), digest(options))
        for ways in (SINGLE, REPEATED)
        for (name, question, passages), (way, options) in itertools.product(examples, ways.items())
    ]
    settings = settings_of(reader, arguments.data, arguments.passages)
    append_missing(arguments.output, settings, jobs, label="rankings", unit="rankings")


def report(output: Path, names: list[str]) -> None:
    """Print what each way gives, and its difference from BM25 on the same questions."""
    ranks = {row["id"]: np.array(row["places"]) for row in rows_of(output)}
    base = {name: ranks[f"{name} BM25"] for name in names if f"{name} BM25" in ranks}
    for way in SINGLE | REPEATED:
        done = [name for name in names if f"{name} {way}" in ranks]
        if not done:
            continue
        found = [ranks[f"{name} {way}"] for name in done]
        print(way, f"n={len(done)}", *(f"{name} {shown_mean(values)}" for name, values in measures(found)), sep="  ")
        for (name, values), (_, before) in zip(measures(found), measures([base[name] for name in done]), strict=True):
            print(f"  {name} less BM25 {shown_mean(values - before)}")


def measures(ranks: list[np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """Return the reciprocal rank and the nDCG@10 of each question, from the ranks of its gold passages."""
    reciprocal = np.array([1 / rank.min() for rank in ranks])
    gains = np.array([(1 / np.log2(1 + rank[rank <= 10])).sum() / ideal(len(rank)) for rank in ranks])
    return [("MRR", reciprocal), ("nDCG@10", gains)]


def shown_mean(values: np.ndarray) -> str:
    interval = bootstrap(values, seed=0)
    return f"{interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def ideal(count: int) -> float:
    return float((1 / np.log2(np.arange(2, 2 + min(count, 10)))).sum())


def row_of(reader: fr.Reader, question: str, passages: list[fr.Passage], options: dict[str, Any] | None) -> Row:
    """Return the ranks, from 1, of the gold passages by one way."""
    order = range(len(passages)) if options is None else fr.rerank(reader, question, passages, **options).indices
    return {"places": [rank for rank, i in enumerate(order, 1) if passages[i].is_gold]}


if __name__ == "__main__":
    main()
