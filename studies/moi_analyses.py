"""MoI's analyses on real questions: the gold passage at every place, how far orders are apart, mean bias by place.

    python studies/moi_analyses.py questions.jsonl.gz --passages 5 --questions 200 --output runs/moi5-analyses
    python studies/moi_analyses.py ... --output runs/moi5-analyses --report

For each question: its answers with the gold passage at each place (the paper's table 7; questions without one are
skipped there), the L1 distances of the answer's first token between random orders (appendix B), and the scores of 3N
random orders, from which each question's own joint solve gives a bias (figure 6), compared with the pooled calibration.
Polarity (table 8) is in the report of moi_study.py. Rows are appended as they come; the same command resumes a run.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
from lib.moi_rows import Row, cluster_of
from lib.shared import cell, fingerprint, moi_parser, rows_of, table, unpack, write_both

from fastreader import Example, PermutationScores, Reader, Template, load_examples, score_permutations
from fastreader.core.progress import track
from fastreader.data.fingerprints import reader_identity
from fastreader.data.result_log import ResultLog
from fastreader.moi import calibrate
from fastreader.moi.analyses import first_token_distances, gold_places, mean_bias, partition_means
from fastreader.moi.analyses.outcomes import MEASURES
from fastreader.moi.calibration.probe import gold_of
from fastreader.permutations import random
from fastreader.statistics import bootstrap


def main() -> None:
    a = parse()
    if not a.report:
        a.output.mkdir(parents=True, exist_ok=True)
        run(a)
    write_report(a.output)


def parse() -> argparse.Namespace:
    parser = moi_parser(__doc__, questions=200)
    parser.add_argument("--orders", type=int, default=20, help="number of random orders to compare")
    return parser.parse_args()


def run(a: argparse.Namespace) -> None:
    reader, template = Reader.load(a.model, precision=a.precision), Template()
    settings = {
        "data": fingerprint(a.data),
        "reader": reader_identity(reader.describe()),
        "template": template.digest(),
        "passages": a.passages,
        "orders": a.orders,
        "max_new_tokens": a.max_new_tokens,
        "seed": a.seed,
    }
    examples = load_examples(a.data, limit=a.questions)
    with (
        ResultLog(unpack(a.output / "analyses.jsonl"), settings=settings, resume=True) as log,
        track("analysing", len(examples), "questions", None) as advance,
    ):
        for i, example in enumerate(examples):
            if str(i) not in log:
                own = replace(example, passages=example.passages[: a.passages], candidates=[], id=str(i))
                log.append(str(i), analysed(reader, template, own, a, i) | {"cluster": cluster_of(i, example)})
            advance(1)


def analysed(reader: Reader, template: Template, example: Example, a: argparse.Namespace, i: int) -> Row:
    """Return one question's row, without the data's texts."""
    orders = random(
        len(example.passages), min(a.orders, math.factorial(len(example.passages))), a.seed + i
    ).permutations.tolist()
    distances = first_token_distances(
        reader, example.question, example.passages, orders, template=template, max_batch_tokens=a.max_batch_tokens
    )
    within, between = partition_means(distances, orders)
    scores = score_permutations(
        reader,
        example,
        permutations="random",
        seed=a.seed + i,
        template=template,
        question_only=True,
        query_likelihood=True,
        max_batch_tokens=a.max_batch_tokens,
    )
    row: Row = {
        "reader": reader.describe(),
        "distances": {
            "same first passage": within if np.isfinite(within) else None,
            "another first passage": between if np.isfinite(between) else None,
        },
        "scores": {k: v for k, v in scores.to_dict().items() if k not in ("question", "candidates")},
    }
    if gold_of(example.passages) is not None:
        found = gold_places(
            reader, [example], template=template, max_new_tokens=a.max_new_tokens, max_batch_tokens=a.max_batch_tokens
        )
        row["places"] = [outcome.to_dict() for outcome in found.outcomes[0]]
    return row


def write_report(folder: Path) -> None:
    """Write analyses.json and analyses.md next to the rows."""
    rows = list(rows_of(folder / "analyses.jsonl"))
    if not rows:
        raise SystemExit(f"{folder}: no rows yet")
    scores = [PermutationScores.from_dict(r["scores"] | {"question": "", "candidates": []}) for r in rows]
    report = {
        "questions": len(rows),
        "settings": rows[0]["settings"],
        "places": by_place([r for r in rows if "places" in r]),
        "distances": {name: distance(rows, name) for name in rows[0]["distances"]},
        "bias": biases(scores),
    }
    write_both(folder / "analyses", report, markdown(report))


def by_place(rows: list[Row]) -> list[Row]:
    """Return means with intervals of every measure, for the gold passage at each place."""
    if not rows:
        return []
    clusters = [r["cluster"] for r in rows]
    return [
        {"n": len(rows)}
        | {m: bootstrap([r["places"][place][m] for r in rows], clusters=clusters).to_dict() for m in MEASURES}
        for place in range(len(rows[0]["places"]))
    ]


def distance(rows: list[Row], name: str) -> Row | None:
    known = [r for r in rows if r["distances"][name] is not None]
    if not known:
        return None
    return bootstrap([r["distances"][name] for r in known], clusters=[r["cluster"] for r in known]).to_dict()


def biases(scores: list[PermutationScores]) -> Row:
    """Return the mean of each question's joint solve, and the pooled calibration of the same scores."""
    single = mean_bias(scores)
    out: Row = {"joint": single.mean.tolist(), "identified": sum(single.identified)}
    if len(scores) >= 2:
        pooled = calibrate(scores)
        out |= {"joint_se": single.standard_error.tolist(), "calibrated": pooled.bias.tolist(), "sign": pooled.sign}
        out |= {"calibrated_se": np.sqrt(np.diag(pooled.covariance)).tolist(), "r2": pooled.r2}
    return out


def markdown(report: Row) -> str:
    settings, bias = report["settings"], report["bias"]
    places = [
        [place, f"{1 / place:.3f}", *(cell(row[m], 2 if m == "nats" else 3) for m in MEASURES), row["n"]]
        for place, row in enumerate(report["places"], 1)
    ]
    biases = [[place, f"{value:.3f}", ""] for place, value in enumerate(bias["joint"], 1)]
    if "calibrated" in bias:
        for row, *values in zip(biases, bias["joint_se"], bias["calibrated"], bias["calibrated_se"], strict=True):
            row[1:] = [f"{row[1]} +- {values[0]:.3f}", f"{values[1]:+.3f} +- {values[2]:.3f}"]
    lines = [
        *(f"# MoI's analyses on {report['questions']} questions, N = {settings['passages']}", ""),
        *(f"Reader {settings['reader']['name']}. 95% intervals, bootstrap over gold passages.", ""),
        *("## The gold passage at each place", ""),
        *table(["place", "gold MRR", "answer, nats", "EM", "contained", "F1", "n"], places),
        *("", "## L1 distance of the answer's first token, two orders with", ""),
        *(f"- {name}: {cell(value, 3) or 'none'}" for name, value in report["distances"].items()),
        *("", "## Bias by place", ""),
        f"Joint: the mean of each question's own solve, of which {bias['identified']} determine an order; calibrated: "
        f"all questions pooled (unit norm, sign: {bias.get('sign', 'none')}).",
        *("", *table(["place", "joint", "calibrated"], biases)),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
