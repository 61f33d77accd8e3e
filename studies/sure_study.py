"""SuRe and the methods it is compared with, on real questions: exact match, F1 and containment with 95% intervals.

For each question all rows run together, so equal prompts are sent once. Every reply is written as it comes: the same
command resumes a stopped run, with the same rows or more. Without DATA only the table of the rows in --output is
written. A failed answer is reported and left out; the next run tries it again.

    python studies/sure_study.py DATA --output study.jsonl --table study.md
    python studies/sure_study.py DATA --output study.jsonl --methods base sure sure+k=4 sure+judge=MODEL
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from lib.shared import make_parser, percent
from lib.sure_rows import ROWS, Row, parse_row

from fastreader import Example, Reader, load_examples, sure
from fastreader.data.result_log import iter_results
from fastreader.errors import InputError
from fastreader.reader.programs.readers import Readers
from fastreader.statistics import bootstrap, paired_bootstrap
from fastreader.statistics.measures.answers import contained, exact_match, f1
from fastreader.sure.pipeline import Store, SureJob, run_group

MEASURES = {"EM": exact_match, "F1": f1, "contained": contained}
POOL = 8  # at most this number of questions at the end of the data are shown with their answers


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="questions with passages, in a format fastreader reads")
    parser.add_argument("--output", type=Path, required=True, help="a .jsonl file of all answers; resumed if it exists")
    parser.add_argument("--table", type=Path, help="also write the Markdown table here")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--passages", type=int, default=10, help="number of passages of methods without @N")
    parser.add_argument("--methods", nargs="+", default=ROWS, metavar="METHOD[@N][+NAME=VALUE]")
    parser.add_argument("--group", type=int, default=1, help="number of questions run together")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--k", type=int, default=2)
    parser.add_argument("--max-summary-tokens", type=int, default=128)
    arguments = parser.parse_args()
    failed = 0
    try:
        if arguments.data:
            failed = study(arguments)
    except InputError as error:
        sys.exit(f"error: {error}")
    table = report(list(iter_results(arguments.output)) if arguments.output.exists() else [])
    print(table)
    if arguments.table:
        arguments.table.write_text(table + "\n")
    if failed:
        sys.exit(f"{failed} answers failed; the same command tries them again")


def study(arguments: argparse.Namespace) -> int:
    """Answer all questions that have no answer yet. Return the number of failures."""
    rows = [parse_row(name) for name in arguments.methods]
    examples = load_examples(arguments.data)
    asked = examples[: arguments.questions]
    shown = max(row.shots for row in rows)
    if shown > POOL:
        raise InputError(f"--methods: at most +shots={POOL}, got {shown}")
    if len(asked) + shown > len(examples):
        raise InputError(
            f"--questions: the last {shown} of {len(examples)} questions are shown with their answers; at most "
            f"{len(examples) - shown} can be asked"
        )
    pool = [[e.question, e.answers[:1]] for e in examples[-POOL:]]
    settings = sure.Settings(k=arguments.k, max_summary_tokens=arguments.max_summary_tokens)
    load = functools.cache(lambda name: Reader.load(name, precision=arguments.precision))
    readers = Readers(load(arguments.model))
    facts = {
        "options": settings.to_dict(),
        "readers": readers.identity(),
        "passages": arguments.passages,
        "shown": hashlib.sha256(json.dumps(pool).encode()).hexdigest()[:16],
    }
    failed = 0
    with Store(arguments.output, facts, resume=True) as store:
        for start in range(0, len(asked), arguments.group):
            chunk = list(enumerate(asked))[start : start + arguments.group]
            jobs = {
                f"{i}/{row.name}": row.job(
                    limited(example, row, arguments.passages),
                    settings,
                    readers,
                    examples[len(examples) - shown :],
                    load,
                )
                for i, example in chunk
                for row in rows
            }
            failed += answer(store, jobs)
            print(f"{start + len(chunk)} of {len(asked)}", file=sys.stderr)
        if not failed:
            store.finish()
    return failed


def limited(example: Example, row: Row, passages: int) -> Example:
    """Return the example with the passages that a row reads."""
    return Example(example.question, example.passages[: row.count(passages)], answers=example.answers)


def answer(store: Store, jobs: dict[str, SureJob]) -> int:
    """Run the jobs that have no result, and store and measure the answers. Return the number of failures."""
    todo = [key for key, job in jobs.items() if store.result(key, job.example) is None]
    failed = 0
    for key, outcome in zip(todo, run_group([jobs[key] for key in todo], store.checkpoint(todo)), strict=True):
        if outcome.value is None:
            failed += 1
            print(f"failed: {key}: {outcome.error}", file=sys.stderr)
            continue
        example = jobs[key].example
        measures = {name: measure(outcome.value.answer, example.answers) for name, measure in MEASURES.items()}
        store.keep(key, example, outcome.value, measures=measures)
    return failed


def report(rows: list[dict[str, Any]]) -> str:
    """Return the Markdown table: a row for each method, in percent with 95% bootstrap intervals over questions."""
    if not rows:
        return "No answers yet."
    by_method: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        question, _, method = row["id"].partition("/")
        by_method.setdefault(method, {})[question] = row
    lines = [
        "| method | questions | EM | F1 | contained | EM less base | tokens given | computed |",
        "|-|-|-|-|-|-|-|-|",
    ]
    for method, answered in by_method.items():
        cells = [percent(bootstrap([r["measures"][m] for r in answered.values()]).to_dict()) for m in MEASURES]
        shared = [q for q in answered if q in by_method.get("base", {})]
        gain = "-"
        if method != "base" and shared:
            ours, theirs = ([by_method[m][q]["measures"]["EM"] for q in shared] for m in (method, "base"))
            gain = percent(paired_bootstrap(ours, theirs).to_dict(), "+")
        tokens = [mean_tokens(answered.values(), kind) for kind in ("total_tokens", "computed_tokens")]
        lines.append("| " + " | ".join([method, str(len(answered)), *cells, gain, *tokens]) + " |")
    first = rows[0]["settings"]
    reader = ", ".join(f"{k} {v}" for k, v in first["readers"]["all"].items())
    lines += ["", f"Percent [95% interval]; tokens are means a question. Reader: {reader}."]
    return "\n".join([*lines, *candidate_lines(by_method.get("sure", {}).values())])


def candidate_lines(rows: Any) -> list[str]:
    """Summarise the forms of the candidates, and count ties and cut summaries."""
    rows = list(rows)
    if not rows:
        return []
    forms = Counter(row["found"]["form"] for row in rows)
    counts = Counter(len(row["candidates"]) for row in rows)
    ties = sum("the earliest wins" in note for row in rows for note in row["notes"])
    cut = sum(finish == "length" for row in rows for finish in row["finishes"])
    summaries = sum(len(row["finishes"]) for row in rows)
    return [
        "",
        f"SuRe's candidates were read by {listed(forms)}; questions by their number of candidates: {listed(counts)}; "
        f"{ties} of {len(rows)} votes were ties, {cut} of {summaries} summaries were cut.",
    ]


def listed(counts: Counter[Any]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


def mean_tokens(rows: Any, kind: str) -> str:
    totals = [[cost[kind] for cost in row["costs"].values()] for row in rows]
    if any(value is None for total in totals for value in total):
        return "?"
    return f"{sum(map(sum, totals)) / len(totals):,.0f}"


if __name__ == "__main__":
    main()
