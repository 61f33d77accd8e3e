"""The report of the MoI study: every method's means with intervals, the contrasts, the strata; JSON and Markdown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fastreader.answers import contained, exact_match, f1
from fastreader.jsonl import iter_results
from fastreader.moi import PositionBias
from fastreader.moi.analyses import gold_ranks
from fastreader.statistics import (
    bootstrap,
    holm,
    mcnemar,
    minimum_detectable_effect,
    paired_bootstrap,
    wilcoxon,
)

MEASURES = ("nats", "em", "contained", "f1")
Row = dict[str, Any]
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
    rows = list(iter_results(folder / "readings.jsonl"))
    if not rows:
        raise SystemExit(f"{folder}: no readings yet")
    values = collect(rows)
    clusters = {row["id"]: row["cluster"] for row in rows}
    method = primary[0]
    report = {
        "questions": len(rows),
        "settings": rows[0]["settings"],
        "primary": list(primary),
        "methods": [summary(name, own, rows, clusters) for name, own in values.items()],
        "contrasts": contrasts(values, clusters, primary),
        "strata": {name: stratum(rows, values, clusters, inside, method) for name, inside in STRATA.items()},
        "biases": [_bias(path) for path in sorted(folder.glob("bias-fold*.json"))],
        "errors": errors(rows),
    }
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(report), encoding="utf-8")
    print(folder / "report.md")


def collect(rows: list[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """method -> measure -> question id -> value; a method without an order for a question lacks it."""
    values: dict[str, dict[str, dict[str, float]]] = {}

    def put(name: str, measure: str, key: str, value: float) -> None:
        values.setdefault(name, {}).setdefault(measure, {})[key] = value

    for row in rows:
        for name, found in row["methods"].items():
            for measure in MEASURES if "outcome" in found else ():
                put(name, measure, row["id"], found["outcome"][measure])
        put("random-mean", "nats", row["id"], row["random_mean"])
        if vote := row.get("self_consistency"):
            for measure, rate in (("em", exact_match), ("contained", contained), ("f1", f1)):
                put("self-consistency", measure, row["id"], rate(vote["answer"], row["answers"]))
                every = [rate(answer, row["answers"]) for answer in vote["answers"]]
                put("random-mean", measure, row["id"], float(np.mean(every)))
    return values


def summary(name: str, own: dict[str, dict[str, float]], rows: list[Row], clusters: dict[str, str]) -> Row:
    """Means with intervals of one method, its tokens and where it puts the gold passage."""
    out: Row = {"name": name}
    for measure, by_question in own.items():
        out[measure] = interval(by_question, clusters)
        out["n"] = len(by_question)
    found = [(r, r["methods"][name]) for r in rows if "order" in r["methods"].get(name, {})]
    if found:
        out["tokens"] = float(np.mean([m["computed"] for _, m in found]))
        with_gold = [(m["order"], r["gold"]) for r, m in found if _is_gold(r)]
        if with_gold:
            out["gold_mrr"] = gold_ranks(*zip(*with_gold, strict=True)).mrr  # type: ignore[arg-type]
    elif name == "self-consistency":
        votes = [r["self_consistency"] for r in rows if "self_consistency" in r]
        out["tokens"] = float(np.mean([v["stats"]["computed"] for v in votes]))
    return out


def interval(by_question: dict[str, float], clusters: dict[str, str]) -> dict[str, float | None]:
    return bootstrap(list(by_question.values()), clusters=[clusters[q] for q in by_question]).to_dict()


def contrasts(
    values: dict[str, dict[str, dict[str, float]]], clusters: dict[str, str], primary: tuple[str, str, str]
) -> list[Row]:
    """The primary method less every other one, in every measure; Holm over all but the primary contrast."""
    method, baseline, first = primary
    found = [
        contrast(values[method][measure], values[other][measure], clusters)
        | {"against": other, "measure": measure, "primary": (other, measure) == (baseline, first)}
        for other in values
        if other != method
        for measure in MEASURES
        if measure in values[other] and set(values[method][measure]) & set(values[other][measure])
    ]
    rest = [c for c in found if not c["primary"]]
    for c, corrected in zip(rest, holm([c["p"] for c in rest]), strict=True):
        c["p_holm"] = corrected
    return sorted(found, key=lambda c: not c["primary"])


def contrast(a: dict[str, float], b: dict[str, float], clusters: dict[str, str]) -> Row:
    shared = [q for q in a if q in b]
    left, right = [a[q] for q in shared], [b[q] for q in shared]
    labels = [clusters[q] for q in shared]
    binary = set(left) | set(right) <= {0.0, 1.0}
    effect = minimum_detectable_effect(left, right, clusters=labels) if len(set(labels)) > 1 else float("nan")
    return {
        "n": len(shared),
        "difference": paired_bootstrap(left, right, clusters=labels).to_dict(),
        "p": mcnemar(left, right) if binary else wilcoxon(left, right),
        "test": "McNemar" if binary else "Wilcoxon",
        "mde": effect if np.isfinite(effect) else None,
    }


def stratum(
    rows: list[Row],
    values: dict[str, dict[str, dict[str, float]]],
    clusters: dict[str, str],
    inside: Callable[[Row], bool],
    method: str,
) -> Row:
    """Means in nats and EM within a stratum, and the primary method's lead in nats over each other one."""
    keys = {row["id"] for row in rows if inside(row)}
    out: Row = {"questions": len(keys), "methods": []}
    if not keys:
        return out
    own = _within(values[method]["nats"], keys)
    for name, measures in values.items():
        if "nats" not in measures or not (nats := _within(measures["nats"], keys)):
            continue
        row: Row = {"name": name, "nats": interval(nats, clusters)}
        if em := _within(measures.get("em", {}), keys):
            row["em"] = float(np.mean(list(em.values())))
        if name != method and set(own) & set(nats):
            row["lead"] = contrast(own, nats, clusters)["difference"]
        out["methods"].append(row)
    return out


def errors(rows: list[Row]) -> dict[str, Row]:
    """For each method that had no order for some questions: how many, and what it said first."""
    found: dict[str, Row] = {}
    for row in rows:
        for name, method in row["methods"].items():
            if "error" in method:
                found.setdefault(name, {"questions": 0, "first": method["error"]})["questions"] += 1
    return found


def markdown(report: Row) -> str:
    n = report["settings"]["passages"]
    lines = [f"# MoI on {report['questions']} questions, N = {n}", ""]
    lines += [
        f"Reader {report['settings']['reader']['name']}. Means with 95% intervals, bootstrap over gold passages.",
        "",
    ]
    lines += ["| order | answer, nats | EM | contained | F1 | gold MRR | tokens to find it |", "|-|-|-|-|-|-|-|"]
    ranked = sorted(report["methods"], key=lambda m: -m.get("nats", {"estimate": -1e9})["estimate"])
    for m in ranked:
        cells = [_cell(m.get(measure), 2 if measure == "nats" else 3) for measure in MEASURES]
        cells += [f"{m['gold_mrr']:.3f}" if "gold_mrr" in m else "", f"{m['tokens']:,.0f}" if "tokens" in m else ""]
        lines.append(f"| {m['name']} | " + " | ".join(cells) + " |")
    method, baseline, measure = report["primary"]
    lines += ["", f"## {method} less each other order", ""]
    lines += [f"Primary, stated beforehand: against {baseline} in {measure}. Holm over all the others.", ""]
    lines += ["| against | measure | difference | p | p (Holm) | detectable | n |", "|-|-|-|-|-|-|-|"]
    for c in report["contrasts"]:
        name = f"**{c['against']}**" if c["primary"] else c["against"]
        corrected = "" if c["primary"] else f"{c['p_holm']:.3g}"
        least = "" if c["mde"] is None else f"{c['mde']:.3f}"
        cells = [name, c["measure"], _cell(c["difference"], 3), f"{c['p']:.3g}", corrected, least, str(c["n"])]
        lines.append("| " + " | ".join(cells) + " |")
    for name, part in report["strata"].items():
        lines += ["", f"## {name}: {part['questions']} questions", ""]
        lines += [f"| order | answer, nats | EM | {method} leads by, nats |", "|-|-|-|-|"]
        for m in sorted(part["methods"], key=lambda m: -m["nats"]["estimate"]):
            em = f"{m['em']:.3f}" if "em" in m else ""
            lines.append(f"| {m['name']} | {_cell(m['nats'], 2)} | {em} | {_cell(m.get('lead'), 2)} |")
    lines += [
        "",
        "## Position bias of each fold",
        "",
        "| fold | questions | bias by place | sign | R2 |",
        "|-|-|-|-|-|",
    ]
    for b in report["biases"]:
        weights = " ".join(f"{w:+.2f}" for w in b["bias"])
        lines.append(f"| {b['fold']} | {b['questions']} | {weights} | {b['sign']} | {b['r2']:.2f} |")
    if report["errors"]:
        lines += ["", "## Without an order", ""]
        lines += [f"- {name}: {e['questions']} questions; {e['first']}" for name, e in report["errors"].items()]
    return "\n".join(lines) + "\n"


def _bias(path: Path) -> Row:
    bias = PositionBias.load(path)
    fold = path.stem.removeprefix("bias-fold")
    return {"fold": fold, "bias": bias.bias.tolist(), "sign": bias.sign, "r2": bias.r2, "questions": bias.questions}


def _is_gold(row: Row) -> bool:
    """Whether the gold passage itself is among the N (`gold` may be one that only has the answer)."""
    return row["gold_rank"] is not None and row["gold_rank"] <= row["settings"]["passages"]


def _within(by_question: dict[str, float], keys: set[str]) -> dict[str, float]:
    return {q: v for q, v in by_question.items() if q in keys}


def _cell(value: dict[str, Any] | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value['estimate']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"
