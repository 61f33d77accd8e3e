"""Whether `fr.sufficient` can tell passages that hold an answer from passages that hold none, on real questions.

    python studies/sufficiency.py questions.dev.jsonl.gz --output runs/sufficiency --model smollm2-135m --questions 300
    python studies/sufficiency.py --output runs/sufficiency --fit
    python studies/sufficiency.py --output runs/sufficiency --report

Each question whose gold passage is among the best of BM25 is seen twice: with its best passages, of which one is gold,
and with as many of the best ones of which none is gold or has the text of a known answer. Both versions have most
passages in common. A passage may still hold an answer in other words; it then counts as one that does not.

Rows are numbers without texts and are appended as they come; a stopped run resumes with the same command. `--fit` fits
the model to the rows of both readers, and once without each of five parts of the questions; `--report` judges each
question by the model fitted without it. `--answers` measures what `fr.sufficient` does not use, into separate rows: a
label and the reader's own answer. It takes several times as long. `--emptied` compares passages with themselves
without the sentences that state an answer, which stay on the topic.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from lib.counterfactuals import SENTENCE
from lib.moi_rows import rounded
from lib.resuming import Job, Row, append_missing, best_passages, log_of, settings_of
from lib.shared import cell, make_parser, rows_of, table, write_both
from lib.sufficiency_answers import EVIDENCE, answer_evidence
from scipy.optimize import minimize

import fastreader as fr
from fastreader.data.files import read_object, write_json
from fastreader.noise.labels import has_answer
from fastreader.passages.sufficiency.model import SufficiencyWeights, features, probability
from fastreader.statistics import auroc, bootstrap, expected_calibration_error, risk_coverage

READERS = ("smollm2-135m", "gemma-3-270m")
VERSIONS = ("with", "without")
FOLDS = 5
LEAST = 20  # words of a passage without the sentences of the answer
COVERAGES = (0.25, 0.5, 0.75, 1.0)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="questions whose passages say which is gold")
    parser.add_argument("--output", type=Path, required=True, help="folder of the run")
    parser.add_argument("--model", default=READERS[0])
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--passages", type=int, default=3)
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--answers", action="store_true", help="measure a label and the reader's answer instead")
    other.add_argument("--emptied", action="store_true", help="measure passages without the sentences of the answer")
    parser.add_argument("--fit", action="store_true", help="only fit the parameters to the existing rows")
    parser.add_argument("--report", action="store_true", help="only write the report of the existing rows")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if not (arguments.fit or arguments.report):
        study(arguments)
        return
    rows, without, answers = (
        {name: list(rows_of(log)) for name in READERS if (log := log_of(arguments.output, name, part)).exists()}
        for part in ("", ".emptied", ".answers")
    )
    if arguments.fit:
        write_json(arguments.output / "weights.json", fitted(rows))
    report(arguments.output, rows, without, answers, read_object(arguments.output / "weights.json"))


def study(arguments: argparse.Namespace) -> None:
    """Measure the questions that have no row yet."""
    choose = chosen_emptied if arguments.emptied else chosen
    pairs = choose(arguments.data, arguments.passages, arguments.questions)
    reader = fr.Reader.load(arguments.model)
    suffix = ".answers" if arguments.answers else ".emptied" if arguments.emptied else ""
    log = log_of(arguments.output, arguments.model, suffix)
    measured = answer_evidence if arguments.answers else evidence

    def row_of(number: int) -> Row:
        row: Row = {"question": number}
        with reader.session(cache_scored=True) as session:
            for name, example in zip(VERSIONS, pairs[number], strict=True):
                row[name] = {key: rounded(value) for key, value in measured(session, example).items()}
        return row

    settings = settings_of(reader, arguments.data, arguments.passages)
    jobs = [Job(str(number), partial(row_of, number)) for number in pairs]
    append_missing(log, settings, jobs, label=arguments.model)


def chosen(data: Path, count: int, questions: int) -> dict[int, tuple[fr.Example, fr.Example]]:
    """Return the first questions in both versions, by their index in the data."""
    found: dict[int, tuple[fr.Example, fr.Example]] = {}
    for number, example in enumerate(fr.load_examples(data)):
        best = best_passages(example)
        others = [p for p in best if not p.is_gold and not has_answer(p, example.answers)]
        if sum(bool(p.is_gold) for p in best[:count]) == 1 and example.answers and len(others) >= count:
            one, other = (fr.Example(example.question, kept[:count], example.answers) for kept in (best, others))
            found[number] = one, other
        if len(found) == questions:
            break
    return found


def chosen_emptied(data: Path, count: int, questions: int) -> dict[int, tuple[fr.Example, fr.Example]]:
    """Return the first questions whose passages still say something without the sentences that state an answer.

    The first version is that of `chosen`. The second one has the same passages without these sentences.
    """
    found: dict[int, tuple[fr.Example, fr.Example]] = {}
    for number, example in enumerate(fr.load_examples(data)):
        best = best_passages(example)[:count]
        if sum(bool(p.is_gold) for p in best) != 1 or not example.answers:
            continue
        left = [kept for passage in best if (kept := emptied(passage, example.answers))]
        if len(left) == len(best):
            one, other = (fr.Example(example.question, kept, example.answers) for kept in (best, left))
            found[number] = one, other
        if len(found) == questions:
            break
    return found


def emptied(passage: fr.Passage, answers: Sequence[str]) -> fr.Passage | None:
    """Return a passage without the sentences that state an answer, or None if little is left or the answer still is."""
    if not has_answer(passage, answers):
        return passage
    kept = [s for s in SENTENCE.split(passage.text) if not has_answer(fr.Passage(s), answers)]
    left = replace(passage, text=" ".join(kept))
    return None if len(left.text.split()) < LEAST or has_answer(left, answers) else left


def evidence(session: Any, example: fr.Example) -> Row:
    found = fr.sufficient(session, example)
    return {"gains": found.gains.tolist(), "about": found.about.tolist()}


def stacked(rows: Sequence[Row]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the features of both versions of each question [2 n, 3], which hold an answer, and the questions."""
    items = [(row[name], name == "with", row["question"]) for row in rows for name in VERSIONS]
    found = np.array([features(np.array(one["gains"]), np.array(one["about"])) for one, _, _ in items])
    return found, np.array([holds for _, holds, _ in items]), np.array([question for _, _, question in items])


def loss_of(rows: Sequence[Row]) -> Any:
    """Return minus the mean log-likelihood of the versions."""
    found, holds, _ = stacked(rows)

    def loss(values: np.ndarray) -> float:
        odds = found @ values
        return float(np.logaddexp(0.0, np.where(holds, -odds, odds)).mean())

    return loss


def fit(rows: Sequence[Row]) -> SufficiencyWeights:
    """Return the parameters of the largest likelihood."""
    found = minimize(loss_of(rows), np.zeros(len(SufficiencyWeights._fields)), method="BFGS")
    return SufficiencyWeights(*(round(float(value), 3) for value in found.x))


def fitted(rows: dict[str, list[Row]]) -> Row:
    """Return the parameters for all rows of both readers, and without each part."""
    every = [row for own in rows.values() for row in own]
    folds = [fit([row for row in every if row["question"] % FOLDS != fold])._asdict() for fold in range(FOLDS)]
    return {"all": fit(every)._asdict(), "folds": folds}


def measured_by(rows: Sequence[Row], weights: Row) -> Row:
    """Return how well the probabilities, by parameters fitted without the question, tell the versions apart."""
    found, holds, questions = stacked(rows)
    folds = [SufficiencyWeights(**own) for own in weights["folds"]]
    values = np.array([float(probability(one, folds[q % FOLDS])) for one, q in zip(found, questions, strict=True)])
    clustered: Row = {"clusters": questions.tolist(), "seed": 0}
    curve = risk_coverage(values, holds)
    return {
        "n": len(rows),
        "auroc": auroc(values, holds, **clustered).to_dict(),
        "brier": bootstrap((values - holds) ** 2, **clustered).to_dict(),
        "error": expected_calibration_error(values, holds),
        "risks": {str(coverage): curve.at(coverage) for coverage in COVERAGES},
        "area": curve.area,
        "gain": auroc(found[:, 1], holds, **clustered).to_dict(),
        "about": auroc(found[:, 2], holds, **clustered).to_dict(),
    }


def answers_by(rows: Sequence[Row]) -> Row:
    """Return the AUROC of each evidence that the model does not use."""
    items = [(row[name], name == "with", row["question"]) for row in rows for name in VERSIONS]
    holds, questions = [one[1] for one in items], [one[2] for one in items]
    return {
        name: auroc([value(one) for one, _, _ in items], holds, clusters=questions, seed=0).to_dict()
        for name, value in EVIDENCE.items()
    }


def report(
    folder: Path, rows: dict[str, list[Row]], without: dict[str, list[Row]], answers: dict[str, list[Row]], weights: Row
) -> None:
    """Write report.json and report.md."""
    found: Row = {"weights": weights, "readers": {}, "emptied": {}, "answers": {}}
    lines = ["# Whether passages hold an answer"]
    for part, title, of in (
        ("readers", "Passages with an answer, and others", rows),
        ("emptied", "Passages with an answer, and the same without its sentences", without),
    ):
        found[part] = {name: measured_by(own, weights) for name, own in of.items()}
        lines += ["", f"## {title}", "", *_tables(found[part])]
    lines.append("")
    for name, own in answers.items():
        values = found["answers"][name] = {"n": len(own), **answers_by(own)}
        lines += [f"AUROC of other evidence, {name}, {len(own)} questions:", ""]
        lines += [*table(["", "AUROC"], [[key, cell(values[key], 3)] for key in EVIDENCE]), ""]
    names = list(SufficiencyWeights._fields)
    fits = [["all", *weights["all"].values()]]
    fits += [[f"without part {i}", *one.values()] for i, one in enumerate(weights["folds"])]
    lines += ["## Parameters", "", *table(["fitted to", *names], fits), ""]
    write_both(folder / "report", found, "\n".join(lines))


def _tables(found: Row) -> list[str]:
    columns = ["", "questions", "AUROC", "Brier score", "ECE", "AUROC of the gain", "AUROC of the words"]
    cells = [
        [
            name,
            own["n"],
            *(cell(own[key], 3) for key in ("auroc", "brier")),
            f"{own['error']:.3f}",
            *(cell(own[key], 3) for key in ("gain", "about")),
        ]
        for name, own in found.items()
    ]
    risks = [
        [name, *(f"{risk:.3f}" for risk in own["risks"].values()), f"{own['area']:.3f}"] for name, own in found.items()
    ]
    share = ["", "Share of versions without an answer among the given ones, by coverage:", ""]
    return [*table(columns, cells), *share, *table(["", *COVERAGES, "area"], risks)]


if __name__ == "__main__":
    main()
