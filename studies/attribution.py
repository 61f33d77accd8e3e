"""Which measure of `fr.attribute` gives most to the gold passage: questions with a known gold passage among several.

Development questions with the gold passage among the best of BM25, all subsets read, the right answer attributed. Each
measure ranks the passages; the table shows in how many questions the gold passage comes first, compared with query
likelihood, which does not know the answer. A stopped run resumes with the same command.

    python studies/attribution.py questions.dev.jsonl.gz --model smollm2-135m --questions 300 --output rows.jsonl
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lib.resuming import Job, append_missing, best_passages, settings_of
from lib.shared import make_parser, rows_of

import fastreader as fr
from fastreader.statistics import bootstrap, wilson

MEASURES = ("shapley", "alone", "left_out", "surrogate")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, help="questions whose passages say which is gold")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--passages", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    examples = chosen(arguments.data, arguments.passages, arguments.questions)
    reader = fr.Reader.load(arguments.model)
    settings = settings_of(reader, arguments.data, arguments.passages)
    jobs = [Job(name, partial(measured, reader, example)) for name, example in examples.items()]
    append_missing(arguments.output, settings, jobs, label="questions")
    print("\n".join(table([row for row in rows_of(arguments.output) if row["id"] in examples])))


def chosen(data: Path, passages: int, questions: int) -> dict[str, fr.Example]:
    """Return the first questions of which exactly one of the best passages is gold."""
    found: dict[str, fr.Example] = {}
    for number, example in enumerate(fr.load_examples(data)):
        best = best_passages(example)[:passages]
        if sum(bool(passage.is_gold) for passage in best) == 1 and example.answers:
            name = example.id or str(number)
            found[name] = fr.Example(example.question, best, example.answers, id=name)
        if len(found) == questions:
            break
    return found


def measured(reader: fr.Reader, example: fr.Example) -> dict[str, Any]:
    """Return each measure of each passage, and what the answer gains from all of them."""
    found = fr.attribute(reader, example.question, example.passages, example.answers[0])
    likelihood = fr.rerank(reader, example.question, example.passages)
    values = {name: getattr(found, name).round(4).tolist() for name in MEASURES}
    values["query likelihood"] = [round(r.value or 0.0, 4) for r in sorted(likelihood, key=lambda r: r.index)]
    return {
        "gold": [bool(passage.is_gold) for passage in example.passages].index(True),
        "values": values,
        "gain": round(found.logprob - found.closed_book_logprob, 4),
        "fit": found.surrogate_fit,
        "synergy": None if found.pairs is None else round(float(found.pairs.max()), 4),
        "tokens": [found.stats.total_tokens, found.stats.computed_tokens],
    }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return a table of how often the gold passage is the first by each measure, and where it is in the mean."""
    lines = ["| measure | gold passage first | its mean rank |", "|-|-|-|"]
    for name in rows[0]["values"]:
        values = np.array([row["values"][name] for row in rows])
        gold = values[np.arange(len(rows)), [row["gold"] for row in rows]]
        ranks = 1.0 + (values > gold[:, None]).sum(axis=1)
        first = wilson(int((ranks == 1).sum()), len(rows))
        mean = bootstrap(ranks, seed=0)
        lines.append(
            f"| {name} | {first.estimate:.3f} [{first.low:.3f}, {first.high:.3f}] | "
            f"{mean.estimate:.2f} [{mean.low:.2f}, {mean.high:.2f}] |"
        )
    fits = [row["fit"] for row in rows if row["fit"] is not None]
    shares = [row["tokens"][1] / row["tokens"][0] for row in rows]
    lines += ["", f"n = {len(rows)}; median R^2 of the surrogate {np.median(fits):.2f}; "]
    lines[-1] += f"tokens computed of those in all prompts, mean {np.mean(shares):.3f}"
    return lines


if __name__ == "__main__":
    main()
