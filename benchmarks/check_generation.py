"""Greedy text against transformers' generate, one prompt at a time, on real questions in float32.

Prompts hold a question and its passages; ours are written together, `--batch` at once, theirs alone. Where two texts
differ, the two tokens' logits at the first difference are computed once more by a plain forward: a gap within
rounding is a tie and counted as such, any other fails. Results are appended as they come, so a stopped run continues.

    python benchmarks/check_generation.py questions.jsonl --output check.jsonl
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from peers import plain_model
from plain_folder import folder_of

from fastreader import Example, Reader, load_examples
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.models.loading.packaged import PACKAGED

TIE = 1e-3  # logits of a float32 forward differ by about 1e-4 with the order of its sums


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="questions with passages, in a format fastreader reads")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--passages", type=int, default=5)
    parser.add_argument("--new", type=int, default=64, help="tokens written at most")
    parser.add_argument("--batch", type=int, default=10, help="prompts written together")
    arguments = parser.parse_args()

    examples = load_examples(arguments.data)[: arguments.questions]
    folder = folder_of(arguments.model) if arguments.model in PACKAGED else arguments.model
    model = plain_model(arguments.model, torch.float32)
    reader = Reader.load((model, transformers.AutoTokenizer.from_pretrained(folder)), precision="exact")
    settings = {k: v for k, v in vars(arguments).items() if k not in ("output", "data", "questions")}
    with ResultLog(arguments.output, settings=settings, resume=True) as log:
        for first in range(0, len(examples), arguments.batch):
            numbers = [i for i in range(first, min(first + arguments.batch, len(examples))) if str(i) not in log]
            prompts = [prompt(reader, examples[i], arguments.passages) for i in numbers]
            for i, ids, (text,) in zip(
                numbers, prompts, reader.generate(prompts, max_new_tokens=arguments.new), strict=True
            ):
                row = compare(model, ids, text.token_ids, arguments.new, reader.end_tokens)
                log.append(str(i), {**row, "text": text.text, "finish": text.finish_reason})
                print(f"{i}: {row} {text.text[:60]!r}", file=sys.stderr)
    rows = list(iter_results(arguments.output))
    differing = [row for row in rows if row["first_difference"] is not None]
    ties = [row for row in differing if row["gap"] <= TIE]
    print(
        f"{len(rows)} prompts, {sum(row['tokens'] for row in rows)} tokens: {len(rows) - len(differing)} texts equal, "
        f"{len(ties)} part where logits tie within {TIE}, {len(differing) - len(ties)} differ"
        + (f"; gaps {[round(row['gap'], 6) for row in differing]}" if differing else "")
    )
    if len(differing) > len(ties):
        sys.exit("over tolerance")


def prompt(reader: Reader, example: Example, passages: int) -> list[int]:
    texts = [f"{p.title}\n{p.text}\n\n" if p.title else f"{p.text}\n\n" for p in example.passages[:passages]]
    task = f"Question: {example.question}\nAnswer in one or two sentences, from the passages."
    return reader.prompt(["Passages:\n\n", *texts, task])


@torch.inference_mode()
def compare(model: Any, ids: list[int], ours: list[int], new: int, end: frozenset[int]) -> dict[str, Any]:
    """Where the two texts part, and how far apart the two tokens' logits are there."""
    out = model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=new,
        do_sample=False,
        eos_token_id=sorted(end),
        pad_token_id=0,
    )
    theirs = out[0, len(ids) :].tolist()
    stop = next((i for i, token in enumerate(theirs) if token in end), None)
    ending = [] if stop is None else [theirs[stop]]
    own = ours + ending if len(ours) < new else ours  # a text that ended names no end token; take theirs
    theirs = theirs if stop is None else theirs[: stop + 1]
    place = next((i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), None)
    if place is None and len(own) == len(theirs):
        return {"tokens": len(ours), "first_difference": None, "gap": 0.0}
    if place is None:
        place = min(len(own), len(theirs))
    logits = model(torch.tensor([ids + theirs[:place]]), logits_to_keep=1).logits[0, -1].double()
    mine = own[place] if place < len(own) else max(end, key=lambda token: float(logits[token]))
    other = theirs[place] if place < len(theirs) else max(end, key=lambda token: float(logits[token]))
    return {"tokens": len(ours), "first_difference": place, "gap": abs(float(logits[other] - logits[mine]))}


if __name__ == "__main__":
    main()
