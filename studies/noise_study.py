"""The Power of Noise on real questions: effect of the passages' kind, number and place on a reader's accuracy.

Runs a study of noise layouts in a folder that `fastreader report` reads too; the same command resumes a stopped run.
Then (or only this, with --report) writes report.md, report.json and figures that compare with the paper into paper/.

    python studies/noise_study.py questions.jsonl.gz pool.jsonl.gz --questions 300 --attention 50 --output runs/noise
    fastreader report runs/noise -o noise.html

The primary contrast is fixed before the run: the folder stores it and rejects another.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from lib.noise_paper import agreement, entropy_ratios
from lib.noise_rows import noise_answers
from lib.shared import make_parser, write_both

from fastreader import load_examples, noise
from fastreader.errors import InputError
from fastreader.statistics.measures.retrieval import retrieval_measures
from fastreader.study import RunFolder, Study, run_study
from fastreader.study.folder import COSTS

COUNTS = (1, 2, 4, 8)
WATCHED = ("gold", "random:1:near", "random:8:near", "random:8:far", "distracting:8:near")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="questions with retrieved passages, gold flags and answers")
    parser.add_argument("pool", type=Path, nargs="?", help="passages to draw random ones from, one JSON object a line")
    parser.add_argument("--output", type=Path, required=True, help="folder of the run")
    parser.add_argument(
        "--questions", type=int, default=300, help="number with a gold passage; others on the way are extra"
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", default="pool", help="pool, words (50 random ones), or another file of passages")
    parser.add_argument("--hard", action="store_true", help="also use distractors made by swapping the answer")
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS), help="numbers of other passages")
    parser.add_argument("--retrieved", type=int, nargs="*", default=[4], help="numbers of retrieved passages")
    parser.add_argument(
        "--added", nargs="*", help="numbers of random passages before them, or fill [default: --counts]"
    )
    parser.add_argument("--layouts", nargs="*", help="use only these layouts")
    parser.add_argument("--primary", default=noise.PRIMARY, help="layout whose contrast is fixed in advance")
    parser.add_argument(
        "--attention", type=int, default=0, help="number of questions whose answers' attention is recorded"
    )
    parser.add_argument("--measures", nargs="*", default=[], help="measures of a study, such as distraction:READER")
    parser.add_argument("--max-batch-tokens", type=int, help="at most this number of tokens in one pass")
    parser.add_argument("--report", action="store_true", help="only write the report of the existing rows")
    arguments = parser.parse_args()
    if not arguments.report:
        if arguments.data is None or arguments.pool is None:
            raise SystemExit("expected a file of questions and a pool of passages")
        study = study_of(arguments)
        run_study(study, arguments.output, resume=(arguments.output / "study.json").exists())
    report(RunFolder(arguments.output))


def study_of(arguments: argparse.Namespace) -> Study:
    """Return the study that the arguments describe."""
    layouts = arguments.layouts or study_layouts(arguments)
    if arguments.primary not in layouts:
        raise SystemExit(f"--primary {arguments.primary} is not among the layouts")
    random = str(arguments.pool) if arguments.random == "pool" else arguments.random
    return Study.of(
        {
            "name": f"The Power of Noise: {arguments.model}",
            "data": str(arguments.data),
            "readers": [arguments.model],
            "precision": arguments.precision,
            "limit": limit_of(arguments.data, arguments.questions),
            "passages": 100,  # all that were retrieved
            "seeds": [arguments.seed],
            "batch_size": 1,
            "max_batch_tokens": arguments.max_batch_tokens,
            "methods": [f"noise:{layout}" for layout in layouts],
            "baseline": "noise:gold" if "gold" in layouts else None,
            "primary": f"noise:{arguments.primary}",
            "measures": arguments.measures,
            "noise": {
                "random": random,
                "max_new_tokens": noise.MAX_NEW_TOKENS,
                "attention": arguments.attention,
                "attention_layouts": [layout for layout in WATCHED if layout in layouts],
            },
        }
    )


def study_layouts(arguments: argparse.Namespace) -> list[str]:
    """Return the layouts of the paper's tables."""
    kinds = ["distracting", "random", *(["hard"] if arguments.hard else [])]
    added = arguments.counts if arguments.added is None else arguments.added
    return [
        "closed_book",
        *noise.oracle_grid(kinds, arguments.counts),
        *noise.realistic_grid(arguments.retrieved, [0, *(m for m in added if str(m) != "0")]),
    ]


def limit_of(data: Path, questions: int) -> int:
    """Return the number of leading questions that include `questions` with a gold passage."""
    gold = 0
    for i, example in enumerate(load_examples(data)):
        gold += any(p.is_gold for p in example.passages)
        if gold == questions:
            return i + 1
    raise SystemExit(f"--questions {questions}: the file has {gold} questions with a gold passage")


def report(run: RunFolder) -> None:
    """Write the paper's tables for a run, with agreements and disagreements."""
    started = time.perf_counter()
    study, examples, rows = run.study(), run.questions(), run.rows()
    results = noise_answers(study, examples, rows, study.readers[0], study.seeds[0], run.measures())
    if not any(result.answers for result in results):
        raise InputError(f"{run.path}: no question answered yet")
    summary = noise.summarise(results, primary=(study.primary or "").removeprefix("noise:") or None)
    costs = (run.read_json(COSTS) or {})[study.readers[0]]
    measures = retrieval_measures(examples)
    beside, published = agreement(summary)
    found: dict[str, Any] = {
        "study": study.to_dict(),
        **summary.to_dict(),
        "published": published,
        "retrieval": {"means": measures.means, "left_out": measures.left_out},
        **{key: costs[key] for key in ("total_tokens", "computed_tokens", "seconds")},
    }
    text = [f"# {study.name}", noise.markdown(summary).rstrip(), beside]
    text.append(
        f"{costs['computed_tokens']:,} of {costs['total_tokens']:,} tokens computed: "
        f"{costs['computed_tokens'] / costs['total_tokens']:.1%}. "
        f"Answering took {costs['seconds']:,.0f} s; precision {study.precision}, seed {study.seeds[0]}, random "
        f"passages from {Path(study.noise.random).name}."
    )
    if measures.means:
        values = ", ".join(f"{name} {value:.3f}" for name, value in measures.means.items())
        text.append(f"Retrieval, over {len(measures.indices)} questions with gold flags: {values}.")
    target = run.path / "paper"
    target.mkdir(exist_ok=True)
    if section := attention_report(run, {result.id: result.cluster for result in results}, found, target):
        text.append(section)
    noise.plot_accuracy(summary, target / "accuracy.svg")
    write_both(target / "report", found, "\n\n".join(text) + "\n")
    print(f"{len(results)} questions, {time.perf_counter() - started:.1f} s")


def attention_report(run: RunFolder, clusters: dict[str, str | None], found: dict[str, Any], target: Path) -> str:
    """Report entropy and a heat map over the questions with recorded attention in every layout."""
    by_question: dict[str, dict[str, noise.AnswerAttention]] = {}
    for row in run.attention():
        if row["attention"] is not None:
            attention = noise.AnswerAttention.from_dict(row["attention"])
            by_question.setdefault(row["question_id"], {})[row["layout"]] = attention
    watched = [layout for layout in WATCHED if any(layout in taken for taken in by_question.values())]
    whole = {key: taken for key, taken in by_question.items() if all(layout in taken for layout in watched)}
    if not whole or "gold" not in watched:
        return ""
    rows = [{layout: taken[layout] for layout in watched} for taken in whole.values()]
    text, found["entropy"] = entropy_ratios(
        noise.mean_entropies(rows),
        noise.mean_entropies(rows, normalised=True),
        [clusters[key] or key for key in whole],
    )
    maps = {layout: noise.mean_share([row[layout] for row in rows]) for layout in watched if layout != "gold"}
    if maps:
        noise.plot_heat_map(maps, {layout: rows[0][layout].kinds for layout in maps}, target / "attention.svg")
    noise.plot_entropy({layout: [row[layout] for row in rows] for layout in watched}, target / "entropy.svg")
    return text


if __name__ == "__main__":
    main()
