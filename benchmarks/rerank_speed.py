"""Compare `fr.rerank` with transformers, and 32 questions in one call with one at a time.

Ten passages of 100 words of real questions, query likelihood: transformers in float32 scores the same prompts in one
padded batch, and the question alone. Rounds alternate; the medians and ratios are
printed. Bars: at most 0.75 of transformers' time; 32 questions of one call at least 1.2 times the rate of one at a time
(three passages of 30 or 100 words, and five or ten of 100, where products take nearly all of the time).

    python benchmarks/rerank_speed.py questions.jsonl.gz --rounds 3 --output benchmarks/results/rerank_speed.jsonl
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np
import peers
import torch

import fastreader as fr
from fastreader.reader.prompts.pieces import encode

WORDS = 100
SIZES = ((3, 30), (3, 100), (5, 100), (10, 100))  # passages and words of the second comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="questions with passages")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", nargs="+", default=["fast", "exact"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=32, help="of the second comparison")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    examples = fr.load_examples(arguments.data)[: arguments.questions + 3]
    model = peers.plain_model(arguments.model, torch.float32)
    rows = []
    for precision in arguments.precision:
        reader = fr.Reader.load(arguments.model, device="cpu", precision=precision)
        rows += [beside_transformers(model, reader, examples[:3], arguments.rounds)]
        rows += [together(reader, examples[3:], arguments.rounds, *size) for size in SIZES]
        for row in rows[-1 - len(SIZES) :]:
            row |= {"precision": precision, "products": reader.describe()["products"], **machine.describe()}
            print(json.dumps(row))
    if arguments.output:
        with arguments.output.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)


def beside_transformers(model: Any, reader: fr.Reader, examples: list[fr.Example], count: int) -> dict[str, Any]:
    asked = [(example.question, texts(example, 10)) for example in examples]
    ways: dict[str, Callable[[], Any]] = {
        "fastreader": lambda: [fr.rerank(reader, q, p) for q, p in asked],
        "transformers": lambda: [padded(model, reader, q, p) for q, p in asked],
    }
    seconds, found = rounds(ways, count)
    values = [[r.value for r in sorted(ranked, key=lambda r: r.index)] for ranked in found["fastreader"]]
    apart = float(np.abs(np.array(values) - np.array(found["transformers"])).max())
    return {
        "what": "10 passages of 100 words, against transformers float32 padded",
        "seconds": seconds,
        "ratio": round(seconds["fastreader"] / seconds["transformers"], 3),
        "nats_a_token_apart": round(apart, 5),
    }


def together(reader: fr.Reader, examples: list[fr.Example], count: int, number: int, words: int) -> dict[str, Any]:
    questions = [example.question for example in examples]
    lists = [texts(example, number, words) for example in examples]
    ways: dict[str, Callable[[], Any]] = {
        "one call": lambda: fr.rerank(reader, questions, lists, progress=False),
        "one at a time": lambda: [fr.rerank(reader, q, p) for q, p in zip(questions, lists, strict=True)],
    }
    seconds, _ = rounds(ways, count)
    return {
        "what": f"{len(questions)} questions of {number} passages of {words} words in one call, against one at a time",
        "seconds": seconds,
        "rate": round(seconds["one at a time"] / seconds["one call"], 3),
    }


def texts(example: fr.Example, count: int, length: int = WORDS) -> list[str]:
    """The example's passages, each brought to a number of words by what follows it."""
    words = [passage.text.split() for passage in example.passages]
    whole = [word for passage in words for word in passage] * 4
    return [" ".join((words[i % len(words)] + whole)[:length]) for i in range(count)]


def rounds(ways: dict[str, Callable[[], Any]], count: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Run all ways alternating, once to warm them. Return the median seconds and the last results of each."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    found = {name: run() for name, run in ways.items()}
    for _ in range(count):
        for name, run in ways.items():
            started = time.perf_counter()
            found[name] = run()
            times[name].append(time.perf_counter() - started)
    return {name: round(statistics.median(own), 4) for name, own in times.items()}, found


@torch.inference_mode()
def padded(model: Any, reader: fr.Reader, question: str, passages: list[str]) -> list[float]:
    """The gains of the passages by transformers, all prompts in one batch padded on the right."""
    pieces = encode(reader.encoder, fr.Template(), question, [fr.Passage(text) for text in passages], [])
    asked = pieces.question
    alone = pieces.head + pieces.question_lead
    contexts = [alone]
    contexts += [pieces.head + p[0] + pieces.separator + pieces.question_lead for p in pieces.passages]
    longest = max(len(context) for context in contexts) + len(asked)
    ids = torch.zeros(len(contexts), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, context in enumerate(contexts):
        row = torch.tensor(context + asked)
        ids[i, : len(row)], mask[i, : len(row)] = row, 1
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    values = []
    for i, context in enumerate(contexts):
        rows = logits[i, len(context) - 1 : len(context) - 1 + len(asked)].float().log_softmax(-1)
        values.append(float(rows.gather(1, torch.tensor(asked)[:, None]).sum()))
    return [(value - values[0]) / len(asked) for value in values[1:]]


if __name__ == "__main__":
    main()
