"""The report of `evidence.py`: each method against the retriever's order, by the rank of the gold passage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lib.moi_rows import Row, outcome_of
from lib.shared import cell, rows_of, table, write_both

from fastreader.statistics import bootstrap, paired_bootstrap

RESULTS = Path(__file__).parents[1] / "results"
FOLDER = RESULTS / "evidence"
HELD_OUT = 700  # the shipped calibrations were measured on questions from here on
BASELINE, PRIMARY = "retriever", "arrange-bm25"
# Methods by the name that rows have for them.
METHODS = {
    "retriever": "retriever",
    "reversed": "reversed",
    "random": "random",
    "best-at-the-ends": "best-at-the-ends",
    "bm25-matched": PRIMARY,
    "qg-matched": "arrange-qg",
    "qg": "rerank-qg",
    "moi-calibrated": "moi",
    "moi-joint": "moi:paper",
    "uncalibrated": "uncalibrated-moi",
    "uncalibrated-arrange": "uncalibrated-arrange",
    "answers-over-orderings": "answers-over-orderings",
}
STRATA: dict[str, Callable[[Row], bool]] = {
    "gold first": lambda r: r["gold_rank"] == 1,
    "gold at 2 to N": lambda r: r["gold_rank"] is not None and 1 < r["gold_rank"] <= r["settings"]["passages"],
    "gold not among the N": lambda r: r["gold_rank"] is None or r["gold_rank"] > r["settings"]["passages"],
}


def runs(folder: Path = FOLDER) -> Iterator[tuple[str, list[Row]]]:
    """Yield the name and rows of each run. Rows of one question in several files are joined."""
    for name in ("moi5", "moi10"):
        yield f"smollm2-135m, N = {name[3:]}, cross-fitted", _before(rows_of(RESULTS / name / "readings.jsonl"))
    stages = sorted({path.name.partition(".jsonl")[0] for path in folder.glob("*.jsonl*")})
    for run in dict.fromkeys(stage.rpartition("-")[0] for stage in stages):
        joined: dict[str, Row] = {}
        for stage in (stage for stage in stages if stage.rpartition("-")[0] == run):
            for row in rows_of(folder / f"{stage}.jsonl"):
                known = joined.setdefault(row["id"], row)
                for part in ("methods", "outcomes"):
                    known[part] = row[part] | known[part]
        model, _, n = run.rpartition("-n")
        known = "a pool of stored scores" if f"{run}-pooled" in stages else "shipped calibration"
        yield f"{model}, N = {n}, {known}", _before(joined.values())


def _before(rows: Any) -> list[Row]:
    return sorted((row for row in rows if int(row["id"]) < HELD_OUT), key=lambda row: int(row["id"]))


def summary(rows: list[Row]) -> Row:
    """Return the means of a run, and each method's differences from the retriever's order."""
    found: Row = {"questions": len(rows), "methods": {}}
    written = any(row["settings"]["max_new_tokens"] for row in rows)
    measures = ("nats", "contained") if written else ("nats",)
    for stored, name in METHODS.items():
        outcomes = {row["id"]: own for row in rows if (own := outcome_of(row, stored))}
        if not outcomes:
            continue
        own = [row for row in rows if row["id"] in outcomes]
        of_method = [m for m in measures if m in next(iter(outcomes.values()))]
        tokens = [row["methods"][stored].get("computed") for row in own]  # None if its scores were stored ones
        found["methods"][name] = {
            "n": len(own),
            "tokens": None if None in tokens else sum(tokens) / len(tokens),
            **{m: _interval(own, [outcomes[row["id"]][m] for row in own]) for m in of_method},
            "against": {} if name == BASELINE else {m: _against(own, stored, m) for m in of_method},
            "strata": {
                label: {"n": len(inside), "nats": _against(inside, stored, "nats")}
                for label, belongs in STRATA.items()
                if name != BASELINE and (inside := [row for row in own if belongs(row)])
            },
        }
    return found


def _interval(rows: list[Row], values: list[float]) -> Row:
    return bootstrap(values, clusters=[row["cluster"] for row in rows]).to_dict()


def _against(rows: list[Row], stored: str, measure: str) -> Row:
    pairs = [(outcome_of(row, stored), outcome_of(row, BASELINE)) for row in rows]
    ours, theirs = ([one[measure] for one in side if one] for side in zip(*pairs, strict=True))
    return paired_bootstrap(ours, theirs, clusters=[row["cluster"] for row in rows]).to_dict()


def write_report(folder: Path = FOLDER) -> None:
    """Write report.json and report.md next to the rows."""
    report = {name: summary(rows) for name, rows in runs(folder)}
    write_both(folder / "report", report, markdown(report))


def markdown(report: dict[str, Row]) -> str:
    """Return the report as Markdown."""
    lines = [
        "# Orders of passages against the retriever's",
        "",
        f"Primary contrast, stated beforehand: {PRIMARY} less {BASELINE}, in nats of the right answers. Means with 95% "
        "intervals, bootstrap over gold passages. Tokens are those computed to find the order. Questions before "
        f"{HELD_OUT}, which no shipped calibration has seen.",
    ]
    for name, run in report.items():
        primary = run["methods"].get(PRIMARY)
        lines += ["", f"## {name}: {run['questions']} questions", ""]
        if primary:
            lines += [f"Primary: {cell(primary['against']['nats'], 3)} nats on {primary['n']} questions.", ""]
        columns = ["method", "n", "nats", "less retriever", *STRATA, "contained", "less retriever", "tokens"]
        rows = [
            [
                *(label, m["n"], cell(m["nats"], 2), cell(m["against"].get("nats"), 2)),
                *(cell(m["strata"].get(s, {}).get("nats"), 2) for s in STRATA),
                *(
                    cell(m.get("contained"), 3),
                    cell(m["against"].get("contained"), 3),
                    "" if m["tokens"] is None else f"{m['tokens']:,.0f}",
                ),
            ]
            for label, m in run["methods"].items()
        ]
        lines += table(columns, rows)
        if missing := [name for name in METHODS.values() if name not in run["methods"]]:
            lines += ["", f"Not run: {', '.join(missing)}."]
    return "\n".join(lines) + "\n"
