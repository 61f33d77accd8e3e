"""Compare `fr.attribute` with transformers reading each subset of the passages, from a prefix cache, in one run.

All 32 subsets of five passages, in a dynamic cache of the header's keys and values that transformers continues for
each prompt, in float32 and in bfloat16. Rounds alternate, and medians and ratios are printed. Bar: at most 0.35 of the
time of transformers in the reader's own type of products.

    python benchmarks/attribution_speed.py questions.jsonl.gz --rounds 3 --output benchmarks/results/attribution.jsonl
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import peers
import torch

import fastreader as fr
from fastreader.passages.attribution.subsets import every_subset
from fastreader.reader.prompts.pieces import encode
from fastreader.reader.prompts.template import Template


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="questions with passages")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--passages", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    example = next(e for e in fr.load_examples(arguments.data) if len(e.passages) >= arguments.passages and e.answers)
    passages, answer = example.passages[: arguments.passages], example.answers[0]
    reader = fr.Reader.load(arguments.model, device="cpu")
    pieces = encode(reader.encoder, Template(), example.question, passages, [answer])
    prompts = [pieces.head + pieces.body(subset) + pieces.tail() for subset in every_subset(len(passages))]
    theirs = {dtype: peers.plain_model(arguments.model, dtype) for dtype in (torch.float32, torch.bfloat16)}
    ways: dict[str, Callable[[], Any]] = {
        "fastreader": lambda: fr.attribute(reader, example.question, passages, answer),
        "float32": lambda: cached(theirs[torch.float32], pieces.head, prompts, pieces.candidates[0]),
        "bfloat16": lambda: cached(theirs[torch.bfloat16], pieces.head, prompts, pieces.candidates[0]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(arguments.rounds + 1):
        for name, call in ways.items():
            started = time.perf_counter()
            found = call()
            if turn:  # the first is a warm-up
                seconds[name].append(time.perf_counter() - started)
            if name == "fastreader":
                stats = found.stats
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    row = {
        "benchmark": "attribution",
        "model": arguments.model,
        "passages": len(passages),
        "products": reader.describe()["products"],
        "seconds": {name: round(value, 3) for name, value in medians.items()},
        "ratios": {name: round(medians["fastreader"] / value, 3) for name, value in medians.items()},
        "tokens": {"of all prompts": stats.total_tokens, "computed": stats.computed_tokens},
        **machine.describe(),
    }
    print(json.dumps(row))
    if arguments.output:
        with arguments.output.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")


@torch.inference_mode()
def cached(model: Any, head: list[int], prompts: list[list[int]], answer: list[int]) -> list[float]:
    """Return the answer's log-likelihood after each prompt, read after the header's keys and values."""
    prefix = model(torch.tensor([head]), use_cache=True).past_key_values
    found = []
    for prompt in prompts:
        tokens = torch.tensor([prompt[len(head) :] + answer])
        logits = model(tokens, past_key_values=copy.deepcopy(prefix), logits_to_keep=len(answer) + 1).logits[0, :-1]
        found.append(float(logits.float().log_softmax(-1).gather(1, tokens[0, -len(answer) :, None]).sum()))
    return found


if __name__ == "__main__":
    main()
