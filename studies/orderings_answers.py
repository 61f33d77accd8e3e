"""Answers over orderings: mean probability against vote and single readings, and what tells a right answer.

    python studies/orderings_answers.py DATA --output runs/orderings
    python studies/orderings_answers.py DATA --output runs/orderings --report

For each question the reader writes an answer after three rotations of the retriever's order, all distinct answers are
scored after all of them and without passages, SuRe's summaries verify and compare the two most probable ones, and EoR's
vote compares the answers with each other. The prompt ends with "The answer is:", since the packaged reader otherwise
answers in sentences, no two of them equal. Rows are appended as they come, without texts; a stopped run resumes with
the same command.

The report compares answers (retriever's order, majority, mean probability, SuRe, and a logistic model of all evidence)
and confidences: AUROC, expected calibration error, risk against coverage, conformal sets. The model, and the isotonic
and conformal calibrations, are fitted on other folds of questions; questions that share a gold passage share a fold.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lib.moi_rows import cluster_of, folds_of, rounded
from lib.shared import cell, fingerprint, make_parser, rows_of, table, unpack, write_both

from fastreader import Example, Reader, Template, load_examples, score_permutations, sure
from fastreader.core.progress import track
from fastreader.data.result_log import ResultLog
from fastreader.eor import Answers, Voter
from fastreader.moi.baselines.consistency import majority
from fastreader.permutations import cyclic, explicit
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import Program
from fastreader.reader.programs.scheduler import run as run_programs
from fastreader.scoring.marginal_answer import STOP, distinct
from fastreader.scoring.reading import reading_prompts
from fastreader.statistics import (
    ConformalSets,
    auroc,
    bootstrap,
    coverage,
    expected_calibration_error,
    paired_bootstrap,
    risk_coverage,
)
from fastreader.statistics.measures.answers import contained, exact_match, normalise
from fastreader.sure.program import judge, summarise
from fastreader.sure.replies import CandidateReply
from fastreader.sure.task import Task
from fastreader.sure.types import SureResult

Row = dict[str, Any]
VERIFIED = 2  # candidates that SuRe verifies, the most probable ones
FOLDS, LEVEL = 5, 0.8
ORDERINGS = 3
TEMPLATE = Template(answer_lead="The answer is:", candidate=" {candidate}")
RATES = {"em": exact_match, "contained": contained}
EVIDENCE = ("mean probability", "written", "log P", "closed book", "support", "P(valid)", "preferred")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path, help="questions with ranked passages and right answers")
    parser.add_argument("--output", type=Path, required=True, help="folder of the run")
    parser.add_argument("--passages", type=int, default=5)
    parser.add_argument("--questions", type=int, default=150)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--report", action="store_true", help="only write the report of the existing rows")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    log = arguments.output / "rows.jsonl"
    if not arguments.report:
        study(arguments, unpack(log))
    report(arguments.output, sorted(rows_of(log), key=lambda row: int(row["id"])))


def study(arguments: argparse.Namespace, log: Path) -> None:
    """Answer the questions that have no row yet."""
    settings = {"data": fingerprint(arguments.data), "passages": arguments.passages, "model": arguments.model}
    examples = load_examples(arguments.data)
    drawn = np.random.default_rng(0).permutation(len(examples))[: arguments.questions].tolist()
    with ResultLog(log, settings=settings, resume=True) as rows:
        todo = [i for i in drawn if str(i) not in rows]
        reader = Reader.load(arguments.model) if todo else None
        with track("answering", len(todo), "questions", None) as advance:
            for i in todo:
                assert reader is not None
                example = examples[i]
                given = Example(example.question, example.passages[: arguments.passages], example.answers)
                rows.append(str(i), {"cluster": cluster_of(i, example), **answered(reader, given)})
                advance(1)


def answered(reader: Reader, example: Example) -> Row:
    """Return the row of a question: candidates by number, and the evidence for each."""
    count = len(example.passages)
    rows = cyclic(count).permutations[np.linspace(0, count, ORDERINGS, endpoint=False).astype(int)]
    prompts = reading_prompts(reader, example.question, example.passages, rows.tolist(), TEMPLATE)
    with reader.session(*prompts) as session:
        texts = [reply[0].text.strip() for reply in session.generate(prompts, max_new_tokens=16, stop=STOP)]
        candidates, written = distinct(texts)
        if not candidates:
            return {"written": []}
        scores = score_permutations(
            session,
            example,
            candidates=candidates,
            permutations=explicit(rows, count),
            template=TEMPLATE,
            closed_book=True,
        )
    normal = [normalise(text) for text in candidates]
    wrote = [normal.index(normalise(text)) if normalise(text) in normal else None for text in texts]
    vote = Voter(["exact", "f1"]).vote(Answers(example.question, [str(m) for m in range(len(texts))], texts))
    support = [max(vote.support[m] for m, k in enumerate(wrote) if k == number) for number in range(len(candidates))]
    best = np.argsort(-scores.consensus(), kind="stable")[:VERIFIED].tolist()
    task = Task(example.question, example.passages, sure.Settings(max_summary_tokens=48), Readers(reader))
    (outcome,) = run_programs([(verified(task, [candidates[k] for k in best]), task.readers)])
    if outcome.error is not None:
        raise outcome.error
    found = outcome.value
    assert found is not None and scores.closed_book_logprobs is not None
    return {
        "written": written,
        "wrote": wrote,
        "majority": normal.index(normalise(majority(texts)[0])),
        "right": {name: [int(rate(text, example.answers)) for text in candidates] for name, rate in RATES.items()},
        "logprobs": rounded(scores.logprobs.tolist()),
        "closed_book": rounded(scores.closed_book_logprobs.tolist()),
        "tokens": scores.candidate_tokens.tolist(),
        "support": rounded(support),
        "verified": best,
        "valid": [None if p is None else rounded(p) for p in found.validity_probability],
        "ranking": found.ranking,
        "sure": best[found.best or 0],
    }


def verified(task: Task, candidates: list[str]) -> Program[SureResult]:
    """Run SuRe's stages after the candidates, which are given."""
    summaries = yield from summarise(task, candidates)
    result = yield from judge(task, CandidateReply(candidates, "", "list"), summaries)
    return result


def shares(row: Row) -> np.ndarray:
    """Return each candidate's mean probability over the orderings: float64 [K]."""
    logs = np.array(row["logprobs"])
    weight = np.exp(logs - logs.max(axis=1, keepdims=True))
    return (weight / weight.sum(axis=1, keepdims=True)).mean(axis=0)


def evidence(row: Row) -> np.ndarray:
    """Return float64 [K, E], the columns of `EVIDENCE`. Unverified candidates are neutral in the last two."""
    mean, count = shares(row), len(row["written"])
    logs = np.array(row["logprobs"])
    valid, preferred = np.full(count, 0.5), np.zeros(count)
    for place, k in enumerate(row["verified"]):
        valid[k] = 0.5 if row["valid"][place] is None else row["valid"][place]
        preferred[k] = row["ranking"][place] / max(len(row["verified"]) - 1, 1)
    log_mean = np.logaddexp.reduce(logs, axis=0) - np.log(len(logs))
    orderings = np.array(row["written"]) / len(logs)
    logit = np.log(valid) - np.log1p(-valid)
    return np.column_stack([mean, orderings, log_mean, row["closed_book"], row["support"], logit, preferred])


def combined(rows: Sequence[Row], right: str) -> list[np.ndarray]:
    """Return P(right) of each candidate by a logistic model of the evidence, fitted on the other folds."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    folds = np.array(folds_of([row["cluster"] for row in rows], FOLDS, 0))
    found: list[np.ndarray] = [np.zeros(0)] * len(rows)
    for fold in range(FOLDS):
        train = [row for row, at in zip(rows, folds, strict=True) if at != fold]
        x = np.concatenate([evidence(row) for row in train])
        y = np.concatenate([row["right"][right] for row in train])
        weight = np.concatenate([np.full(len(row["written"]), 1 / len(row["written"])) for row in train])
        model = make_pipeline(StandardScaler(), LogisticRegression())
        model.fit(x, y, logisticregression__sample_weight=weight)
        for i in np.flatnonzero(folds == fold):
            found[i] = model.predict_proba(evidence(rows[i]))[:, 1]
    return found


def recalibrated(rows: Sequence[Row], values: np.ndarray, outcomes: np.ndarray) -> np.ndarray:
    """Return confidences mapped to shares of right answers by a logistic curve fitted on the other folds."""
    from sklearn.linear_model import LogisticRegression

    folds = np.array(folds_of([row["cluster"] for row in rows], FOLDS, 0))
    out = np.zeros(len(rows))
    for fold in range(FOLDS):
        model = LogisticRegression(C=1e3).fit(values[folds != fold, None], outcomes[folds != fold])
        out[folds == fold] = model.predict_proba(values[folds == fold, None])[:, 1]
    return out


def conformal(rows: Sequence[Row], probabilities: Sequence[np.ndarray], right: str) -> Row:
    """Return coverage and size of conformal sets, calibrated on the other folds."""
    folds = np.array(folds_of([row["cluster"] for row in rows], FOLDS, 0))
    indices = []
    for row, p in zip(rows, probabilities, strict=True):
        good = [k for k, value in enumerate(row["right"][right]) if value]
        indices.append(max(good, key=lambda k: p[k]) if good else None)  # the easiest right one to cover
    have = [i for i, index in enumerate(indices) if index is not None]
    sets: dict[int, list[int]] = {}
    for fold in range(FOLDS):
        train = [i for i in have if folds[i] != fold]
        fitted = ConformalSets.fit([probabilities[i] for i in train], [indices[i] for i in train], LEVEL)
        sets |= {i: fitted.set_of(probabilities[i]) for i in have if folds[i] == fold}
    return {
        "n": len(have),
        "coverage": coverage([sets[i] for i in have], [indices[i] for i in have]),
        "size": float(np.mean([len(sets[i]) for i in have])),
        "candidates": float(np.mean([len(rows[i]["written"]) for i in have])),
    }


def report(folder: Path, rows: list[Row]) -> None:
    """Write report.json and report.md."""
    rows = [row for row in rows if row["written"]]
    clusters = [row["cluster"] for row in rows]
    found: Row = {"questions": len(rows), "candidates": float(np.mean([len(row["written"]) for row in rows]))}
    lines = [f"# Answers over {ORDERINGS} orderings: {len(rows)} questions", ""]
    for right in RATES:
        model = combined(rows, right)
        picks: dict[str, list[int]] = {
            "retriever": [row["wrote"][0] if row["wrote"][0] is not None else row["majority"] for row in rows],
            "majority": [row["majority"] for row in rows],
            "marginal": [int(shares(row).argmax()) for row in rows],
            "sure": [row["sure"] for row in rows],
            "combined": [int(p.argmax()) for p in model],
        }
        outcomes = {
            name: np.array([row["right"][right][k] for row, k in zip(rows, chosen, strict=True)], dtype=float)
            for name, chosen in picks.items()
        }
        oracle = [max(row["right"][right]) for row in rows]
        answers = [
            {
                "name": name,
                "rate": bootstrap(values, clusters=clusters).to_dict(),
                "less retriever": paired_bootstrap(values, outcomes["retriever"], clusters=clusters).to_dict(),
            }
            for name, values in [*outcomes.items(), ("oracle", np.array(oracle, dtype=float))]
        ]
        chosen = picks["marginal"]
        of_answers = np.array([evidence(row)[k] for row, k in zip(rows, chosen, strict=True)])
        features = dict(zip(EVIDENCE, of_answers.T, strict=True))
        features["combined"] = np.array([float(p[k]) for p, k in zip(model, chosen, strict=True)])
        y = outcomes["marginal"]
        confidences = []
        for name, values in features.items():
            known = auroc(values, y, clusters=clusters)
            curve = risk_coverage(values, y)
            probability = values if name in ("mean probability", "written", "combined") else None
            confidences.append(
                {
                    "name": name,
                    "auroc": known.to_dict(),
                    "area": curve.area,
                    "risk at half": curve.at(0.5),
                    "risk": float(curve.risk[-1]),
                    "ece": None if probability is None else expected_calibration_error(probability, y),
                    "ece recalibrated": expected_calibration_error(recalibrated(rows, values, y), y),
                }
            )
        sets = {"mean probability": conformal(rows, [shares(row) for row in rows], right)}
        sets["combined"] = conformal(rows, model, right)
        found[right] = {"answers": answers, "confidences": confidences, "conformal": sets}
        lines += [f"## Right by {right}", "", *_answers(answers), "", *_confidences(confidences), "", *_sets(sets), ""]
    write_both(folder / "report", found, "\n".join(lines))


def _answers(answers: list[Row]) -> list[str]:
    cells = [[row["name"], cell(row["rate"], 3), cell(row["less retriever"], 3)] for row in answers]
    return table(["answer", "right", "less the retriever's order"], cells)


def _confidences(confidences: list[Row]) -> list[str]:
    cells = [
        [
            row["name"],
            cell(row["auroc"], 3),
            f"{row['area']:.3f}",
            f"{row['risk at half']:.3f} of {row['risk']:.3f}",
            "" if row["ece"] is None else f"{row['ece']:.3f}",
            f"{row['ece recalibrated']:.3f}",
        ]
        for row in confidences
    ]
    columns = ["confidence in the marginal answer", "AUROC", "risk-coverage area", "risk at half, of all", "ECE"]
    return table([*columns, "ECE, recalibrated out of fold"], cells)


def _sets(sets: dict[str, Row]) -> list[str]:
    cells = [
        [name, row["n"], f"{row['coverage']:.3f}", f"{row['size']:.2f} of {row['candidates']:.2f}"]
        for name, row in sets.items()
    ]
    columns = [f"conformal sets at {LEVEL}, by", "questions with a right candidate", "coverage", "size, of candidates"]
    return table(columns, cells)


if __name__ == "__main__":
    main()
