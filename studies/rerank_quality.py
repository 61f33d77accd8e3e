"""How well each way of re-ranking finds the gold passage: MRR and nDCG with intervals, for a reader.

Development questions with a gold passage among 20 of BM25: the order of BM25, query likelihood, yes or no (with and
without the empty passage subtracted), and the first token in one order and over four. A run that was stopped
resumes with the same command; rows of another reader, other data or other ways raise.

    python studies/rerank_quality.py questions.dev.jsonl.gz --model smollm2-135m --questions 300 --output rows.jsonl
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from lib.shared import fingerprint, make_parser, rows_of

import fastreader as fr
from fastreader.core.progress import track
from fastreader.data.fingerprints import reader_identity
from fastreader.data.result_log import ResultLog
from fastreader.statistics import bootstrap

WAYS: dict[str, dict[str, Any] | None] = {
    "bm25": None,
    "query likelihood": {"method": "query_likelihood"},
    "yes_no": {"method": "yes_no"},
    "yes_no, calibrated": {"method": "yes_no", "calibrate": True},
    "first-token": {"method": "first-token"},
    "first-token, 4 orders": {"method": "first-token", "orders": 4},
}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, help="questions whose passages say which is gold")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--passages", type=int, default=20)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    examples = []
    for number, example in enumerate(fr.load_examples(arguments.data)):
        scored = sorted(example.passages, key=lambda passage: -(passage.score or 0.0))
        passages = scored[: arguments.passages]
        if any(passage.is_gold for passage in passages):
            examples.append((example.id or str(number), example.question, passages))
        if len(examples) == arguments.questions:
            break
    reader = fr.Reader.load(arguments.model)
    settings = {
        "reader": reader_identity(reader.describe()),
        "data": fingerprint(arguments.data),
        "passages": arguments.passages,
        "ways": WAYS,
    }
    with (
        ResultLog(arguments.output, settings=settings, resume=True) as log,
        track("questions", len(examples), "questions", None) as advance,
    ):
        for name, question, passages in examples:
            if name not in log.done:
                log.append(name, {"places": places(reader, question, passages)})
            advance(1)
    asked = {name for name, _, _ in examples}
    rows = [row for row in rows_of(arguments.output) if row["id"] in asked]
    for way in WAYS:
        ranks = [np.array(row["places"][way]) for row in rows]
        reciprocal = np.array([1 / rank.min() for rank in ranks])
        gains = np.array([(1 / np.log2(1 + rank[rank <= 10])).sum() / ideal(len(rank)) for rank in ranks])
        shown = [f"{name} {shown_mean(values)}" for name, values in (("MRR", reciprocal), ("nDCG@10", gains))]
        print(f"{way:24} {'  '.join(shown)}  n={len(ranks)}")


def shown_mean(values: np.ndarray) -> str:
    interval = bootstrap(values, seed=0)
    return f"{interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def ideal(count: int) -> float:
    return float((1 / np.log2(np.arange(2, 2 + min(count, 10)))).sum())


def places(reader: fr.Reader, question: str, passages: list[fr.Passage]) -> dict[str, list[int]]:
    """The ranks, from 1, of the gold passages, by each way."""
    right = {i for i, passage in enumerate(passages) if passage.is_gold}
    found = {}
    for way, options in WAYS.items():
        order = range(len(passages)) if options is None else fr.rerank(reader, question, passages, **options).indices
        found[way] = [rank for rank, i in enumerate(order, 1) if i in right]
    return found


if __name__ == "__main__":
    main()
