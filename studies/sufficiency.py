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
label and the reader's own answer. It takes several times as long.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
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
COVERAGES = (0.25, 0.5, 0.75, 1.0)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="questions whose passages say which is gold")
    parser.add_argument("--output", type=Path, required=True, help="folder of the run")
    parser.add_argument("--model", default=READERS[0])
    parser.add_argument("--questions", type=int, default=300)
    parser.add_argument("--passages", type=int, default=3)
    parser.add_argument("--answers", action="store_true", help="measure a label and the reader's answer instead")
    parser.add_argument("--fit", action="store_true", help="only fit the parameters to the existing rows")
    parser.add_argument("--report", action="store_true", help="only write the report of the existing rows")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if not (arguments.fit or arguments.report):
        study(arguments)
        return
    rows = {name: list(rows_of(log_of(arguments.output, name))) for name in READERS}
    answers = {name: list(rows_of(log_of(arguments.output, name, ".answers"))) for name in READERS}
    if arguments.fit:
        write_json(arguments.output / "weights.json", fitted(rows))
    report(arguments.output, rows, answers, read_object(arguments.output / "weights.json"))


def study(arguments: argparse.Namespace) -> None:
    """Measure the questions that have no row yet."""
    pairs = chosen(arguments.data, arguments.passages, arguments.questions)
    reader = fr.Reader.load(arguments.model)
    log = log_of(arguments.output, arguments.model, ".answers" if arguments.answers else "")
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


def report(folder: Path, rows: dict[str, list[Row]], answers: dict[str, list[Row]], weights: Row) -> None:
    """Write report.json and report.md."""
    found: Row = {"weights": weights, "readers": {}, "answers": {}}
    lines = ["# Whether passages hold an answer", ""]
    columns = ["", "questions", "AUROC", "Brier score", "ECE", "AUROC of the gain", "AUROC of the words"]
    cells, risks = [], []
    for name, own in rows.items():
        values = found["readers"][name] = measured_by(own, weights)
        shown = [cell(values[key], 3) for key in ("auroc", "brier")]
        cells.append(
            [name, values["n"], *shown, f"{values['error']:.3f}", cell(values["gain"], 3), cell(values["about"], 3)]
        )
        risks.append([name, *(f"{risk:.3f}" for risk in values["risks"].values()), f"{values['area']:.3f}"])
    lines += [*table(columns, cells), "", "Share of versions without an answer among the given ones, by coverage:", ""]
    lines += [*table(["", *COVERAGES, "area"], risks), ""]
    for name, own in answers.items():
        values = found["answers"][name] = {"n": len(own), **answers_by(own)}
        lines += [f"AUROC of other evidence, {name}, {len(own)} questions:", ""]
        lines += [*table(["", "AUROC"], [[key, cell(values[key], 3)] for key in EVIDENCE]), ""]
    names = list(SufficiencyWeights._fields)
    fits = [["all", *weights["all"].values()]]
    fits += [[f"without part {i}", *one.values()] for i, one in enumerate(weights["folds"])]
    lines += ["## Parameters", "", *table(["fitted to", *names], fits), ""]
    write_both(folder / "report", found, "\n".join(lines))


if __name__ == "__main__":
    main()
