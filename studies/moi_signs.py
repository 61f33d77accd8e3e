"""What each rule for the sign of the paper's bias is worth, from the stored rows of `moi_study.py`, without a model.

    python studies/moi_signs.py

Whole orderings leave the sign of `moi:paper`'s bias open. `moi_study.py` read the order that follows from the paper's
solution of each question, and its reverse, which follows from the opposite sign. So the outcome of every rule of
`moi.baselines.moi_paper` is known: the solution is found again from the stored scores, and the rule chooses between
the two. "pooled" takes the bias that was measured on other questions (of the question's own fold).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from lib.moi_rows import Row, key, scores_of
from lib.shared import cell, make_parser, rows_of, table, write_both

from fastreader.core.progress import track
from fastreader.moi import PositionBias, observe
from fastreader.moi.baselines.paper import SIGNS, agreement_of
from fastreader.moi.quantities.utilities import descending
from fastreader.moi.solve.joint import solve, turned
from fastreader.statistics import paired_bootstrap, wilson

RESULTS = Path(__file__).parent / "results"
RUNS = ("moi5", "moi10")
MEASURES = ("nats", "contained")
BASELINES = ("retriever", "moi-calibrated")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--runs", nargs="+", type=Path, default=[RESULTS / name for name in RUNS])
    parser.add_argument("--output", type=Path, default=RESULTS / "moi_signs")
    arguments = parser.parse_args()
    found = {folder.name: summary(choices(folder)) for folder in arguments.runs}
    write_both(arguments.output, found, markdown(found))


def choices(folder: Path) -> list[Row]:
    """Return the order that each rule chooses for each question, and its outcome, None if it was not read."""
    biases = {fold: PositionBias.load(path) for fold, path in enumerate(sorted(folder.glob("bias-fold*.json")))}
    observed = {row["id"]: row for row in rows_of(folder / "observations.jsonl")}
    rows = []
    readings = [row for row in rows_of(folder / "readings.jsonl") if "order" in row["methods"]["moi-joint"]]
    with track(folder.name, len(readings), "questions", None) as advance:
        for row in readings:
            rows.append(_chosen(row, observed[row["id"]], biases[row["fold"]]))
            advance(1)
    return rows


def _chosen(row: Row, observed: Row, bias: PositionBias) -> Row:
    scores = scores_of(observed)
    found = solve(observe(scores, "joint", passages=row["settings"]["passages"]), seed=int(row["id"]))
    orders = {}
    for sign in SIGNS:
        agreement = agreement_of(found, sign, scores.query_logprobs, np.array(bias.bias))
        orders[sign] = descending(turned(found, agreement).utility).tolist()
    baselines = {name: row["methods"][name]["order"] for name in BASELINES}
    return {
        "cluster": row["cluster"],
        "flipped": {sign: order != orders["as_solved"] for sign, order in orders.items()},
        "outcomes": {name: row["outcomes"].get(key(order)) for name, order in (orders | baselines).items()},
    }


def summary(rows: list[Row]) -> Row:
    """Return each rule's differences from the baselines, over the questions of which every order was read."""
    kept = [row for row in rows if None not in row["outcomes"].values()]
    clusters = [row["cluster"] for row in kept]

    def against(sign: str, baseline: str, measure: str) -> Row:
        ours, theirs = ([row["outcomes"][name][measure] for row in kept] for name in (sign, baseline))
        return paired_bootstrap(ours, theirs, clusters=clusters).to_dict()

    return {
        "questions": len(kept),
        "left_out": len(rows) - len(kept),
        "signs": {
            sign: {
                "turned": wilson(sum(row["flipped"][sign] for row in kept), len(kept)).to_dict(),
                "against": {b: {m: against(sign, b, m) for m in MEASURES} for b in BASELINES},
            }
            for sign in SIGNS
        },
    }


def markdown(found: dict[str, Any]) -> str:
    """Return the tables of all runs."""
    lines = ["# The sign of the paper's bias", "", "Differences with 95% intervals, bootstrap over gold passages.", ""]
    columns = ["sign", "turned", *(f"{m}, less {b}" for b in BASELINES for m in MEASURES)]
    for name, run in found.items():
        lines += [
            f"## {name}",
            "",
            f"{run['questions']} questions; {run['left_out']} left out, an order was not read.",
            "",
        ]
        cells = [
            [
                sign,
                f"{own['turned']['estimate']:.3f}",
                *(cell(own["against"][b][m], 3) for b in BASELINES for m in MEASURES),
            ]
            for sign, own in run["signs"].items()
        ]
        lines += [*table(columns, cells), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
