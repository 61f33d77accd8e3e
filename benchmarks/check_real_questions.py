"""Compare the packed pass with transformers, one sequence at a time, on real questions in float32.

For each question: N passages in cyclic orders, K candidates (its answer and other questions'); a sample of the
sequences runs alone through transformers. Results are appended as they come, so a stopped run can be resumed.
Fails if a candidate or question is off by more than 1e-4 nats, or all passages of an ordering by 1e-3.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import torch
from peers import plain_model

from fastreader import Example, Reader, Template, load_examples, score_permutations
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.reader.prompts.pieces import PromptPieces, encode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="questions with passages, in a format fastreader reads")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cpu", help="cpu or cuda[:n]")
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--passages", type=int, default=10)
    parser.add_argument("--candidates", type=int, default=4)
    parser.add_argument("--sample", type=int, default=2, help="number of orderings of each question that run alone")
    arguments = parser.parse_args()

    examples = load_examples(arguments.data)
    reader = Reader.load(arguments.model, device=arguments.device, precision="exact")
    model = plain_model(arguments.model, torch.float32, arguments.device)
    settings = {k: v for k, v in vars(arguments).items() if k not in ("output", "data", "device")}
    with ResultLog(arguments.output, settings=settings, resume=True) as log:
        for i in range(arguments.questions):
            if str(i) in log:
                continue
            generator = random.Random(i)
            others = generator.sample(
                [e.answers[0] for j, e in enumerate(examples) if j != i], arguments.candidates - 1
            )
            candidates = [examples[i].answers[0], *others]
            example = Example(examples[i].question, examples[i].passages[: arguments.passages], candidates=candidates)
            row = check(reader, model, example, generator, arguments.sample)
            log.append(str(i), row)
            print(f"{i}: {row}", file=sys.stderr)
    rows = list(iter_results(arguments.output))
    worst = {name: max(row[name] for row in rows) for name in ("candidates", "question", "passages")}
    print(
        f"{len(rows)} questions, {sum(row['sequences'] for row in rows)} sequences alone; largest difference: {worst}"
    )
    if worst["candidates"] > 1e-4 or worst["question"] > 1e-4 or worst["passages"] > 1e-3:
        sys.exit("over tolerance")


def check(reader: Reader, model: object, example: Example, generator: random.Random, sample: int) -> dict[str, float]:
    scores = score_permutations(reader, example, score_passages=True)
    pieces = encode(reader.encoder, Template(), example.question, example.passages, example.candidates)
    worst = {"candidates": 0.0, "question": 0.0, "passages": 0.0}
    rows = generator.sample(range(len(scores.permutations)), sample)
    for m in rows:
        body = pieces.body(scores.permutations[m].tolist())
        k = generator.randrange(len(example.candidates))
        own = alone(model, pieces, body, pieces.candidates[k])
        worst["candidates"] = max(worst["candidates"], abs(own["candidate"] - scores.logprobs[m, k]))
        worst["question"] = max(worst["question"], abs(own["question"] - scores.question_logprobs[m]))
        assert scores.passages_logprobs is not None
        worst["passages"] = max(worst["passages"], abs(own["passages"] - scores.passages_logprobs[m]))
    return {
        **{name: float(value) for name, value in worst.items()},
        "sequences": len(rows),
        "given": scores.stats.total_tokens,
        "computed": scores.stats.computed_tokens,
    }


@torch.inference_mode()
def alone(model: object, pieces: PromptPieces, body: list[int], candidate: list[int]) -> dict[str, float]:
    """Score question, passages and one candidate of one ordering in a single plain forward."""
    ids = pieces.head + body + pieces.tail() + candidate
    logits = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0, :-1]  # type: ignore
    values = logits.cpu().double().log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]

    def between(first: int, last: int) -> float:
        return float(values[first - 1 : last - 1].sum())

    passages = len(pieces.head), len(pieces.head) + len(body)
    question = passages[1] + len(pieces.question_lead)
    return {
        "passages": between(*passages),
        "question": between(question, question + len(pieces.question)),
        "candidate": between(len(ids) - len(candidate), len(ids)),
    }


if __name__ == "__main__":
    main()
