"""The report of the MoI study: every method's means with intervals, the contrasts, the strata; JSON and Markdown."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from moi_markdown import markdown
from moi_orders import REVERSED
from moi_rows import RATES, outcome_of
from moi_signflip import sign_flip

from fastreader.data.result_log import iter_results
from fastreader.moi import PositionBias
from fastreader.moi.analyses import gold_ranks
from fastreader.moi.outcomes import MEASURES
from fastreader.statistics import bootstrap, holm, minimum_detectable_effect, paired_bootstrap

Row = dict[str, Any]
CLAIMED = (0.0, 0.5, 0.7, 0.9, 1.01)  # bins of P(best)
STRATA: dict[str, Callable[[Row], bool]] = {
    "gold at rank 1": lambda r: r["gold_rank"] == 1,
    "gold at rank 2 to N": lambda r: r["gold_rank"] != 1 and _is_gold(r),
    "gold not among the N": lambda r: not _is_gold(r),
}


def write_report(folder: Path, primary: tuple[str, str, str]) -> None:
    """Write report.json and report.md beside the rows.

    Args:
        folder: of the run.
        primary: (method, baseline, measure) of the contrast stated beforehand.
    """
    rows = sorted(iter_results(folder / "readings.jsonl"), key=lambda row: int(row["id"]))
    if not rows:
        raise SystemExit(f"{folder}: no readings yet")
    values = collect(rows)
    clusters = {row["id"]: row["cluster"] for row in rows}
    compared = contrasts(values, clusters, primary)
    report = {
        "questions": len(rows),
        "settings": rows[0]["settings"],
        "primary": list(primary),
        "methods": [summary(name, own, rows, clusters) for name, own in values.items()],
        "primary_questions": next((c["n"] for c in compared if c["primary"]), 0),
        "contrasts": compared,
        "strata": {name: stratum(rows, values, clusters, inside, primary[0]) for name, inside in STRATA.items()},
        "polarity": polarity(values, clusters),
        "claims": claims(rows, primary[0]),
        "biases": [_bias(path) for path in sorted(folder.glob("bias-fold*.json"))],
        "errors": errors(rows),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(report, MEASURES), encoding="utf-8")
    print(folder / "report.md")


def collect(rows: list[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """method -> measure -> question id -> value; a method without an order for a question lacks it."""
    values: dict[str, dict[str, dict[str, float]]] = {}

    def put(name: str, measure: str, key: str, value: float) -> None:
        values.setdefault(name, {}).setdefault(measure, {})[key] = value

    for row in rows:
        for name in row["methods"]:
            for measure, value in (outcome_of(row, name) or {}).items():
                put(name, measure, row["id"], value)
        for measure, value in row["random_mean"].items():
            put("random-mean", measure, row["id"], value)
        if vote := row["vote"]:
            for measure in RATES:
                put("self-consistency", measure, row["id"], vote[measure])
    return values


def summary(name: str, own: dict[str, dict[str, float]], rows: list[Row], clusters: dict[str, str]) -> Row:
    """Means with intervals of one method, its tokens and where it puts the gold passage."""
    out: Row = {"name": name}
    for measure, by_question in own.items():
        out[measure] = interval(by_question, clusters)
        out["n"] = len(by_question)
    found = [(r, r["methods"][name]) for r in rows if "order" in r["methods"].get(name, {})]
    if found:
        out |= _tokens([m["computed"] for _, m in found], [r["full"] for r, _ in found])
        with_gold = [(m["order"], r["gold"]) for r, m in found if _is_gold(r)]
        if with_gold:
            out["gold_mrr"] = gold_ranks(*zip(*with_gold, strict=True)).mrr  # type: ignore[arg-type]
    elif name == "self-consistency":
        votes = [r for r in rows if r["vote"]]
        out |= _tokens([r["vote"]["computed"] for r in votes], [r["full"] for r in votes])
    elif name == "random-mean":
        out |= {"tokens": 0.0, "share": 0.0}
    return out


def _tokens(computed: list[int], full: list[int]) -> Row:
    """Mean tokens a question, and their share of 3N whole orderings with the question."""
    return {"tokens": float(np.mean(computed)), "share": sum(computed) / sum(full)}


def interval(by_question: dict[str, float], clusters: dict[str, str]) -> dict[str, float | None]:
    return bootstrap(list(by_question.values()), clusters=[clusters[q] for q in by_question]).to_dict()


def contrasts(
    values: dict[str, dict[str, dict[str, float]]], clusters: dict[str, str], primary: tuple[str, str, str]
) -> list[Row]:
    """The primary method less every other one, in every measure; Holm over all but the primary contrast."""
    method, baseline, first = primary
    own = values.get(method, {})
    found = [
        contrast(own[measure], values[other][measure], clusters)
        | {"against": other, "measure": measure, "primary": (other, measure) == (baseline, first)}
        for other in values
        if other != method
        for measure in MEASURES
        if measure in own and measure in values[other] and set(own[measure]) & set(values[other][measure])
    ]
    rest = [c for c in found if not c["primary"]]
    for c, corrected in zip(rest, holm([c["p"] for c in rest]), strict=True):
        c["p_holm"] = corrected
    return sorted(found, key=lambda c: not c["primary"])


def contrast(a: dict[str, float], b: dict[str, float], clusters: dict[str, str]) -> Row:
    shared = [q for q in a if q in b]
    left, right = [a[q] for q in shared], [b[q] for q in shared]
    labels = [clusters[q] for q in shared]
    effect = minimum_detectable_effect(left, right, clusters=labels) if len(set(labels)) > 1 else float("nan")
    return {
        "n": len(shared),
        "difference": paired_bootstrap(left, right, clusters=labels).to_dict(),
        "p": sign_flip([x - y for x, y in zip(left, right, strict=True)], labels),
        "mde": effect if np.isfinite(effect) else None,
    }


def stratum(
    rows: list[Row],
    values: dict[str, dict[str, dict[str, float]]],
    clusters: dict[str, str],
    inside: Callable[[Row], bool],
    method: str,
) -> Row:
    """`summary` of each method within a stratum, and the primary method's lead in nats over each other one."""
    among = [row for row in rows if inside(row)]
    keys = {row["id"] for row in among}
    own = _within(values.get(method, {}).get("nats", {}), keys)
    methods = []
    for name, measures in values.items():
        here = {m: found for m, of_all in measures.items() if (found := _within(of_all, keys))}
        if not here:
            continue
        row = summary(name, here, among, clusters)
        if name != method and set(own) & set(here.get("nats", {})):
            found = contrast(own, here["nats"], clusters)
            row |= {"lead": found["difference"], "mde": found["mde"]}
        methods.append(row)
    return {"questions": len(among), "methods": methods}


def polarity(values: dict[str, dict[str, dict[str, float]]], clusters: dict[str, str]) -> list[Row]:
    """Each order that was also read in reverse, less its reverse, in every measure."""
    return [
        contrast(own[measure], values[name + REVERSED][measure], clusters) | {"name": name, "measure": measure}
        for name, own in values.items()
        if name + REVERSED in values
        for measure in own
        if set(own[measure]) & set(values[name + REVERSED][measure])
    ]


def claims(rows: list[Row], method: str) -> list[Row]:
    """P(best) of the passage that a method finds best, and how often that is gold, where one of the N is."""
    found = [
        (np.array(m["details"]["p_best"]), r["gold"])
        for r in rows
        if _is_gold(r) and "p_best" in (m := r["methods"].get(method, {})).get("details", {})
    ]
    claimed = np.array([p.max() for p, _ in found])
    right = np.array([p.argmax() == gold for p, gold in found])
    bins = [(0.0, 1.01), *itertools.pairwise(CLAIMED)]
    inside = [(low, high, (low <= claimed) & (claimed < high)) for low, high in bins]
    return [
        {
            "from": low,
            "to": min(high, 1.0),
            "n": int(own.sum()),
            "claimed": float(claimed[own].mean()),
            "gold": float(right[own].mean()),
        }
        for low, high, own in inside
        if own.any()
    ]


def errors(rows: list[Row]) -> dict[str, Row]:
    """For each method that had no order for some questions: how many, and what it said first."""
    found: dict[str, Row] = {}
    for row in rows:
        for name, method in row["methods"].items():
            if "error" in method:
                found.setdefault(name, {"questions": 0, "first": method["error"]})["questions"] += 1
    return found


def _bias(path: Path) -> Row:
    bias = PositionBias.load(path)
    fold = path.stem.removeprefix("bias-fold")
    about = {"fold": fold, "bias": bias.bias.tolist(), "questions": bias.num_questions}
    return about | {name: getattr(bias, name) for name in ("sign", "sign_z", "contrast_z", "r2", "reason")}


def _is_gold(row: Row) -> bool:
    """Whether the gold passage itself is among the N (`gold` may be one that only has the answer)."""
    return row["gold_rank"] is not None and row["gold_rank"] <= row["settings"]["passages"]


def _within(by_question: dict[str, float], keys: set[str]) -> dict[str, float]:
    return {q: v for q, v in by_question.items() if q in keys}
