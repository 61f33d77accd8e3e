"""SuRe and the methods it is compared with, on real questions: exact match, F1 and containment with 95% intervals.

For each question all methods run in step, so that what they ask alike is asked once. Every reply is on the disk as soon
as it is there: a stopped run continues where it was. Without DATA the table of what --output holds is written.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastreader import Example, Reader, load_examples, sure
from fastreader.answers import contained, exact_match, f1
from fastreader.jsonl import iter_results
from fastreader.statistics import bootstrap, paired_bootstrap
from fastreader.sure.pipeline import run_group
from fastreader.sure.store import Store
from fastreader.sure.task import Readers
from fastreader.sure.variants import METHODS, find_method

METHODS_OF_THE_STUDY = [
    *("no_retrieval", "base@1", "base@5", "base", "base@20"),
    *("summaries", "ranking", "validity", "sure@5", "sure", "oracle"),
    *("multiple_choice", "generic_summary", "chain_of_thought", "self_verification", "selection_inference"),
    *("rerank", "replug", "top1_retriever", "top1_question", "top1_reader", "top1_generic", "top1_sure"),
]
MEASURES = {"EM": exact_match, "F1": f1, "contained": contained}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="questions with passages, in a format fastreader reads")
    parser.add_argument("--output", type=Path, required=True, help="a .jsonl file of all answers; continued")
    parser.add_argument("--table", type=Path, help="write the Markdown table here, too")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--passages", type=int, default=10, help="of methods without @N")
    parser.add_argument("--methods", nargs="*", default=METHODS_OF_THE_STUDY, metavar="METHOD")
    parser.add_argument("--shots", type=int, default=0, help="answered questions for the few-shot methods")
    parser.add_argument("--group", type=int, default=1, help="questions run together")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--precision", default="fast")
    parser.add_argument("--k", type=int, default=2)
    parser.add_argument("--mode", default="loglikelihood")
    parser.add_argument("--max-summary-tokens", type=int, default=128)
    arguments = parser.parse_args()
    if arguments.data:
        study(arguments)
    table = report(list(iter_results(arguments.output)))
    print(table)
    if arguments.table:
        arguments.table.write_text(table + "\n")


def study(arguments: argparse.Namespace) -> None:
    few_shot = [m for m in METHODS if m.endswith("few_shot")] if arguments.shots else []
    plain = [m for m in arguments.methods if m not in few_shot]
    for method in plain:
        find_method(method)
    examples = load_examples(arguments.data)
    asked = examples[: arguments.questions]
    # The answered questions come from the end of the data, behind all that are asked.
    shots = (
        [(e.question, e.answers[0]) for e in examples[arguments.questions :][-arguments.shots :]] if few_shot else []
    )
    settings = sure.Settings(k=arguments.k, mode=arguments.mode, max_summary_tokens=arguments.max_summary_tokens)
    with_shots = sure.Settings(**{**vars(settings), "shots": shots})
    readers = Readers(Reader.load(arguments.model, precision=arguments.precision))
    facts = {"options": with_shots.to_dict(), "readers": readers.describe(), "passages": arguments.passages}
    with Store(arguments.output, facts, resume=True) as store:
        for start in range(0, len(asked), arguments.group):
            chunk = list(enumerate(asked))[start : start + arguments.group]
            for options, methods in ((settings, plain), (with_shots, few_shot)):
                items = [
                    (f"{i}/{method}", limited(example, method, arguments.passages), method)
                    for i, example in chunk
                    for method in methods
                ]
                answer(store, items, options, readers)
            print(f"{start + len(chunk)} of {len(asked)}", file=sys.stderr)
        store.finish()


def limited(example: Example, method: str, passages: int) -> Example:
    """The example with the passages a method reads."""
    count = int(method.partition("@")[2] or passages)
    return Example(example.question, example.passages[:count], answers=example.answers)


def answer(store: Store, items: Sequence[tuple[str, Example, str]], settings: sure.Settings, readers: Readers) -> None:
    todo = [item for item in items if store.result(item[0], item[1]) is None]
    outcomes = run_group([(e, m) for _, e, m in todo], settings, readers, store.journal([key for key, _, _ in todo]))
    for (key, example, _), outcome in zip(todo, outcomes, strict=True):
        if outcome.error is not None:
            raise outcome.error
        assert outcome.value is not None
        measures = {name: measure(outcome.value.answer, example.answers) for name, measure in MEASURES.items()}
        store.keep(key, example, outcome.value, measures=measures)


def report(rows: list[dict[str, Any]]) -> str:
    """The Markdown table: a row a method, in percent with 95% bootstrap intervals over questions."""
    by_method: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        question, _, method = row["id"].partition("/")
        by_method.setdefault(method, {})[question] = row
    lines = [
        "| method | questions | EM | F1 | contained | EM less base | tokens given | computed |",
        "|-|-|-|-|-|-|-|-|",
    ]
    for method, answered in by_method.items():
        cells = [percent(bootstrap([r["measures"][m] for r in answered.values()])) for m in MEASURES]
        shared = [q for q in answered if q in by_method.get("base", {})]
        gain = "-"
        if method != "base" and shared:
            ours, theirs = ([by_method[m][q]["measures"]["EM"] for q in shared] for m in (method, "base"))
            gain = percent(paired_bootstrap(ours, theirs), "+")
        tokens = [mean_tokens(answered.values(), kind) for kind in ("given", "computed")]
        lines.append("| " + " | ".join([method, str(len(answered)), *cells, gain, *tokens]) + " |")
    first = rows[0]["settings"]
    reader = ", ".join(f"{k} {v}" for k, v in first["readers"]["all"].items())
    lines += ["", f"Percent [95% interval]; tokens are means a question. Reader: {reader}."]
    return "\n".join([*lines, *candidate_lines(by_method.get("sure", {}).values())])


def candidate_lines(rows: Any) -> list[str]:
    """How the candidates were read, and how often there was something to note."""
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


def percent(interval: Any, sign: str = "") -> str:
    values = (100 * interval.estimate, 100 * interval.low, 100 * interval.high)
    return "{0:{3}.1f} [{1:{3}.1f}, {2:{3}.1f}]".format(*values, sign)


def mean_tokens(rows: Any, kind: str) -> str:
    totals = [[cost[kind] for cost in row["costs"].values()] for row in rows]
    if any(value is None for total in totals for value in total):
        return "?"
    return f"{sum(map(sum, totals)) / len(totals):,.0f}"


if __name__ == "__main__":
    main()
