"""Compare the ensemble of retrievers with single retrievers and a control of equal cost, on real questions.

    python studies/eor_study.py DATA POOL --questions 300 --output eor.jsonl --report eor

Sources overlap: BM25 and a sentence encoder over the same pool, and each over the pool without 20% of it, drawn apart.
Each question is answered once for each retriever. The control reads the best single retriever's passages once for each
retriever too: in other orders, and by sampling. Questions are halved; choices and fits for one half (the best single
retriever by each measure, a voter's weights) come from the other, so all questions are reported and none was fitted on.

Every answer is written as it comes, and the same command resumes a stopped run. Without DATA and POOL only the report
is written: PREFIX.md and PREFIX.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lib.eor_analysis import analyse, best_of_halves, control_file, half, load_rows
from lib.eor_report import markdown
from lib.shared import make_parser, write_both

from fastreader import Reader, load_examples
from fastreader.data import Passage, load_passages
from fastreader.data.fingerprints import file_digest, reader_identity
from fastreader.data.result_log import ResultLog
from fastreader.eor import BM25, Answers, Dense, Document, Retrieval, Retrievers, answer, load_texts
from fastreader.eor.answer import write_lines

RETRIEVERS = ["BM25@5", "Dense@5", "BM25-80@5", "Dense-80@5", "BM25@3&Dense@3", "ReFree"]
MEASURES = ("em", "contained")
DROPPED = 0.2
DEPTH = 20


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="questions with right answers")
    parser.add_argument("pool", type=Path, nargs="?", help="passages, a .jsonl file")
    parser.add_argument("--output", type=Path, required=True, help="a .jsonl file of all answers; resumed if it exists")
    parser.add_argument("--report", type=Path, help="write PREFIX.md and PREFIX.json", metavar="PREFIX")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--retrievers", nargs="+", default=RETRIEVERS, metavar="SPEC")
    parser.add_argument("--encoder", default="all-minilm-l6-v2")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--texts", default="short", help="prompts: default, short, or a .toml or .json file")
    parser.add_argument("--max-new-tokens", type=int, default=24)
    parser.add_argument("--temperature", type=float, default=0.7, help="temperature of the sampling control")
    parser.add_argument("--group", type=int, default=2, help="number of questions read together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--starts", type=int, default=16, help="number of starts of a fit")
    parser.add_argument(
        "--similarities",
        nargs="+",
        default=["exact", "f1", "bertscore:all-minilm-l6-v2"],
        metavar="NAME",
        help="nli:reader uses the reader",
    )
    arguments = parser.parse_args()
    reader = None
    if arguments.data:
        if not arguments.pool:
            parser.error("POOL is needed with DATA")
        reader = Reader.load(arguments.model, precision=arguments.precision)
        made_with = settings(arguments, reader)
        answer_all(arguments, reader, made_with)
        control(arguments, reader, made_with)
    elif "nli:reader" in arguments.similarities:
        reader = Reader.load(arguments.model, precision=arguments.precision)
    found = analyse(arguments.output, arguments.similarities, MEASURES, starts=arguments.starts, reader=reader)
    text = markdown(found)
    print(text)
    if arguments.report:
        write_both(arguments.report, found, text + "\n")


def settings(arguments: argparse.Namespace, reader: Reader) -> dict[str, Any]:
    """Return the settings that the answers depend on. A file made with others cannot be resumed."""
    return {
        "reader": reader_identity(reader.describe()),
        "retrievers": arguments.retrievers,
        "encoder": arguments.encoder,
        "texts": load_texts(arguments.texts).to_dict(),
        "max_new_tokens": arguments.max_new_tokens,
        "seed": arguments.seed,
        "data": {"name": arguments.data.name, "sha256": file_digest(arguments.data)},
        "pool": {"name": arguments.pool.name, "sha256": file_digest(arguments.pool)},
    }


def sources(arguments: argparse.Namespace, pool_digest: str) -> dict[str, Any]:
    """Index all passages with BM25 and the encoder, and again with each without its own 20% of them."""
    pool = load_passages(arguments.pool)
    whole = encoded(arguments, pool, pool_digest)
    generator = np.random.default_rng(arguments.seed)
    kept = [np.flatnonzero(generator.random(len(pool)) >= DROPPED) for _ in range(2)]
    fewer = [[pool[i] for i in places] for places in kept]
    return {
        "BM25": BM25(pool, depth=DEPTH),
        "Dense": whole,
        "BM25-80": BM25(fewer[0], depth=DEPTH),
        "Dense-80": Dense(arguments.encoder, fewer[1], depth=DEPTH, vectors=whole.vectors[kept[1]]),
    }


def encoded(arguments: argparse.Namespace, pool: Sequence[Passage], pool_digest: str) -> Dense:
    """Index the pool with the encoder. Vectors stored next to --output serve the same pool and encoder only."""
    path = arguments.output.with_suffix(".vectors.npz")  # encoding the pool takes minutes on a CPU
    made_from = f"{pool_digest} {arguments.encoder}"
    if path.exists():
        with np.load(path) as kept:
            if str(kept["made_from"]) == made_from:
                return Dense(arguments.encoder, pool, depth=DEPTH, vectors=kept["vectors"])
    found = Dense(arguments.encoder, pool, depth=DEPTH)
    np.savez(path, vectors=found.vectors, made_from=made_from)
    return found


def answer_all(arguments: argparse.Namespace, reader: Reader, made_with: dict[str, Any]) -> None:
    """Write every retriever's answer to every question into --output."""
    examples = [replace(e, id=str(i)) for i, e in enumerate(load_examples(arguments.data, limit=arguments.questions))]
    texts = load_texts(arguments.texts)
    with ResultLog(arguments.output, settings=made_with, resume=True) as log:
        todo = [e for e in examples if str(e.id) not in log]
        if not todo:
            return
        found_in = sources(arguments, made_with["pool"]["sha256"])
        retrievers = Retrievers(arguments.retrievers, found_in, reader=reader, texts=texts)
        for start in range(0, len(todo), arguments.group):
            found = retrievers.retrieve(todo[start : start + arguments.group])
            rows = answer(reader, found, texts=texts, max_new_tokens=arguments.max_new_tokens, keep_documents=True)
            for row in rows:
                values = {k: v for k, v in row.to_dict().items() if k != "id"}
                log.append(str(row.id), values | {"reader": reader.describe()})
            print(f"answers: {len(log)} of {len(examples)}", file=sys.stderr)


def control(arguments: argparse.Namespace, reader: Reader, made_with: dict[str, Any]) -> None:
    """Read the passages of both halves' best retrievers, by each measure, once for each retriever."""
    rows = load_rows(arguments.output)
    count, texts = len(arguments.retrievers), load_texts(arguments.texts)
    first = half(len(rows), arguments.seed)
    names = list(dict.fromkeys(name for measure in MEASURES for name in best_of_halves(rows, measure, first)))
    limits = {"temperature": arguments.temperature, "times": count}
    with ResultLog(control_file(arguments.output), settings=made_with | limits, resume=True) as log:
        jobs = [(name, row) for name in names for row in rows if f"{name}/{row.id}" not in log]
        for start in range(0, len(jobs), arguments.group):
            part = jobs[start : start + arguments.group]
            documents = [row.documents[row.retrievers.index(name)] for name, row in part]
            orders = [
                shuffled(document, count, arguments.seed, row)
                for document, (_, row) in zip(documents, part, strict=True)
            ]
            read = answer(
                reader,
                [
                    Retrieval(row.question, order, row.right, row.id)
                    for order, (_, row) in zip(orders, part, strict=True)
                ],
                texts=texts,
                max_new_tokens=arguments.max_new_tokens,
            )
            drawn = samples(arguments, reader, part, documents, count)
            for (name, row), in_orders, lines in zip(part, read, drawn, strict=True):
                values = {"orders": in_orders.texts, "samples": lines, "reader": reader.describe()}
                log.append(f"{name}/{row.id}", values)
            print(f"control: {len(log)} of {len(names) * len(rows)}", file=sys.stderr)


def shuffled(document: Document, count: int, seed: int, row: Answers) -> list[Document]:
    """Return the document as it is, and in count - 1 orders drawn for the question."""
    generator = np.random.default_rng([seed, int(row.id or 0)])
    orders: list[Sequence[Passage]] = [document.passages]
    orders += [[document.passages[i] for i in generator.permutation(len(document.passages))] for _ in range(count - 1)]
    return [Document(f"order {i}", list(order), document.failure) for i, order in enumerate(orders)]


def samples(
    arguments: argparse.Namespace,
    reader: Reader,
    part: Sequence[tuple[str, Answers]],
    documents: Sequence[Document],
    count: int,
) -> list[list[str | None]]:
    """Sample `count` answers from each document. None if its retrieval failed."""
    texts = load_texts(arguments.texts)
    prompts, places = [], []
    for i, ((_, row), document) in enumerate(zip(part, documents, strict=True)):
        if document.failure is None:
            prompts.append(reader.prompt(texts.reading(row.question, document.passages), lead=texts.answer_lead))
            places.append(i)
    out: list[list[str | None]] = [[None] * count for _ in part]
    written = write_lines(
        reader,
        prompts,
        max_new_tokens=arguments.max_new_tokens,
        n=count,
        temperature=arguments.temperature,
        seed=arguments.seed,
    )
    for i, lines in zip(places, written, strict=True):
        out[i] = list(lines)
    return out


if __name__ == "__main__":
    main()
