"""The report of the MoI study, as JSON and Markdown: means with intervals, contrasts and strata of every method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from lib.moi_orders import REVERSED
from lib.moi_rows import RATES, Row, outcome_of
from lib.shared import cell, rows_of, table, write_both

from fastreader.moi import PositionBias
from fastreader.moi.analyses import gold_ranks
from fastreader.moi.analyses.outcomes import MEASURES
from fastreader.statistics import bootstrap, holm, minimum_detectable_effect, paired_bootstrap

CLAIMED = (0.0, 0.5, 0.7, 0.9, 1.01)  # bins of P(best)
RESAMPLES = 20_000
EXACT = 14  # clusters up to which all sign patterns are enumerated
STRATA: dict[str, Callable[[Row], bool]] = {
    "gold at rank 1": lambda r: r["gold_rank"] == 1,
    "gold at rank 2 to N": lambda r: r["gold_rank"] != 1 and _is_gold(r),
    "gold not among the N": lambda r: not _is_gold(r),
}


def write_report(folder: Path, primary: tuple[str, str, str]) -> None:
    """Write report.json and report.md next to the rows.

    Args:
        folder: folder of the run.
        primary: (method, baseline, measure) of the contrast stated in advance.
    """
    rows = sorted(rows_of(folder / "readings.jsonl"), key=lambda row: int(row["id"]))
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
    write_both(folder / "report", report, markdown(report, MEASURES))


def collect(rows: list[Row]) -> dict[str, dict[str, dict[str, float]]]:
    """Return method -> measure -> question id -> value. A method without an order for a question lacks it."""
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
    """Return one method's means with intervals, its tokens and its MRR of the gold passage."""
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
    """Return the mean tokens of a question, and their share of 3N whole orderings with the question."""
    return {"tokens": float(np.mean(computed)), "share": sum(computed) / sum(full)}


def interval(by_question: dict[str, float], clusters: dict[str, str]) -> dict[str, float | None]:
    return bootstrap(list(by_question.values()), clusters=[clusters[q] for q in by_question]).to_dict()


def contrasts(
    values: dict[str, dict[str, dict[str, float]]], clusters: dict[str, str], primary: tuple[str, str, str]
) -> list[Row]:
    """Compare the primary method with every other, in every measure. Holm over all but the primary contrast."""
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


def sign_flip(differences: Sequence[float], clusters: Sequence[str], seed: int = 0) -> float:
    """Return the two-sided p of a mean difference of 0, by flipping the signs of whole clusters.

    Under the null the differences of a cluster (here: questions of one gold passage) are as likely to have all their
    signs turned; questions of one cluster may depend on each other in any way. Exact up to `EXACT` clusters that
    differ from 0, else by `RESAMPLES` random patterns, with the observed one counted.
    """
    names = {name: i for i, name in enumerate(dict.fromkeys(clusters))}
    sums = np.zeros(len(names))
    np.add.at(sums, [names[name] for name in clusters], np.asarray(differences, dtype=np.float64))
    sums = sums[sums != 0]
    if not len(sums):
        return 1.0
    least = abs(sums.sum()) * (1 - 1e-12)
    if len(sums) <= EXACT:
        patterns = (np.arange(2 ** len(sums))[:, None] >> np.arange(len(sums))) & 1
        return float(np.mean(np.abs((2.0 * patterns - 1) @ sums) >= least))
    rng, reached = np.random.default_rng(seed), 0
    for _ in range(RESAMPLES // 1000):
        patterns = rng.integers(0, 2, (1000, len(sums)), dtype=np.int8)
        reached += int((np.abs((2.0 * patterns - 1) @ sums) >= least).sum())
    return (reached + 1) / (RESAMPLES + 1)


def stratum(
    rows: list[Row],
    values: dict[str, dict[str, dict[str, float]]],
    clusters: dict[str, str],
    inside: Callable[[Row], bool],
    method: str,
) -> Row:
    """Summarise each method within a stratum, with the primary method's lead over it in nats."""
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
    """Compare each order that was also read in reverse with its reverse, in every measure."""
    return [
        contrast(own[measure], values[name + REVERSED][measure], clusters) | {"name": name, "measure": measure}
        for name, own in values.items()
        if name + REVERSED in values
        for measure in own
        if set(own[measure]) & set(values[name + REVERSED][measure])
    ]


def claims(rows: list[Row], method: str) -> list[Row]:
    """Return P(best) of a method's best passage, and how often it is gold, for questions with gold among the N."""
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
    """Return for each method without an order for some questions their number and the first error."""
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
    """Return whether the gold passage itself is among the N (`gold` may only contain the answer)."""
    return row["gold_rank"] is not None and row["gold_rank"] <= row["settings"]["passages"]


def _within(by_question: dict[str, float], keys: set[str]) -> dict[str, float]:
    return {q: v for q, v in by_question.items() if q in keys}


def markdown(report: Row, measures: tuple[str, ...]) -> str:
    """Return the report as Markdown."""
    lines = _methods(report, measures) + _contrasts(report) + _strata(report, measures) + _polarity(report)
    return "\n".join([*lines, *_claims(report), *_biases(report), *_errors(report)]) + "\n"


def _methods(report: Row, measures: tuple[str, ...]) -> list[str]:
    settings = report["settings"]
    columns = ["order", "n", "answer, nats", "EM", "contained", "F1", "gold MRR", "detectable, nats", "tokens"]
    least = {c["against"]: c["mde"] for c in report["contrasts"] if c["measure"] == "nats"}
    rows = [
        [
            *(m["name"], m["n"], *_means(m, measures)),
            *(_number(m.get("gold_mrr"), ".3f"), _number(least.get(m["name"]), ".3f")),
            *(_number(m.get("tokens"), ",.0f"), _number(m.get("share"), ".1%")),
        ]
        for m in _best_first(report["methods"])
    ]
    return [
        f"# MoI on {report['questions']} questions, N = {settings['passages']}",
        "",
        f"Reader {settings['reader']['name']}. Means with 95% intervals, bootstrap over gold passages. Detectable: the "
        f"least lead of {report['primary'][0]} in nats found with power 0.8. Tokens are those computed to find the "
        "order; the share is of 3N whole orderings, each read alone. Orders of other n are of other questions.",
        "",
        *table([*columns, "share of 3N"], rows),
    ]


def _contrasts(report: Row) -> list[str]:
    method, baseline, measure = report["primary"]
    n, total = report["primary_questions"], report["questions"]
    read = f"{n} of {total} questions" if n else f"**not available**: no question has both (of {total})"
    rows = []
    for c in report["contrasts"]:
        name, corrected = (f"**{c['against']}**", "") if c["primary"] else (c["against"], f"{c['p_holm']:.3g}")
        p = f"{c['p']:.3g}"
        rows.append([name, c["measure"], cell(c["difference"], 3), p, corrected, _number(c["mde"], ".3f"), c["n"]])
    return [
        *("", f"## {method} less each other order", ""),
        *(f"Primary, stated beforehand: against {baseline} in {measure}: {read}. Holm over all the others.", ""),
        *("p by flipping signs of whole gold passages.", ""),
        *table(["against", "measure", "difference", "p", "p (Holm)", "detectable", "n"], rows),
    ]


def _strata(report: Row, measures: tuple[str, ...]) -> list[str]:
    columns = ["order", "n", "answer, nats", "EM", "contained", "F1", f"{report['primary'][0]} leads by, nats"]
    lines = []
    for name, part in report["strata"].items():
        rows = [
            [
                *(m["name"], m["n"], *_means(m, measures), cell(m.get("lead"), 2)),
                *(_number(m.get("mde"), ".3f"), _number(m.get("tokens"), ",.0f")),
            ]
            for m in _best_first(part["methods"])
        ]
        lines += ["", f"## {name}: {part['questions']} questions", ""]
        lines += table([*columns, "detectable", "tokens"], rows)
    return lines


def _polarity(report: Row) -> list[str]:
    if not report["polarity"]:
        return []
    rows = [
        [c["name"], c["measure"], cell(c["difference"], 3), f"{c['p']:.3g}", _number(c["mde"], ".3f"), c["n"]]
        for c in report["polarity"]
    ]
    return [
        *("", "## Polarity: what reversing an order loses (forward less reversed)", ""),
        *("p is not corrected for the number of these contrasts.", ""),
        *table(["order", "measure", "loss", "p", "detectable", "n"], rows),
    ]


def _claims(report: Row) -> list[str]:
    if not report["claims"]:
        return []
    rows = [
        [f"{c['from']:.1f} to {c['to']:.1f}", c["n"], f"{c['claimed']:.3f}", f"{c['gold']:.3f}"]
        for c in report["claims"]
    ]
    return [
        *("", f"## P(best) of {report['primary'][0]}, where the gold passage is among those read", ""),
        *table(["P(best) of its best passage", "questions", "mean P(best)", "that passage is gold"], rows),
    ]


def _biases(report: Row) -> list[str]:
    rows = [
        [
            *(b["fold"], b["questions"], " ".join(f"{w:+.2f}" for w in b["bias"]), b["sign"]),
            *(_number(b["sign_z"], ".1f"), _number(b["contrast_z"], ".1f"), f"{b['r2']:.2f}"),
        ]
        for b in report["biases"]
    ]
    columns = ["fold", "questions", "bias by place", "sign", "beta z", "gold z", "R2"]
    return ["", "## Position bias of each fold", "", *table(columns, rows)]


def _errors(report: Row) -> list[str]:
    if not report["errors"]:
        return []
    found = [f"- {name}: {e['questions']} questions; {e['first']}" for name, e in report["errors"].items()]
    return ["", "## Without an order", "", *found]


def _best_first(methods: list[Row]) -> list[Row]:
    return sorted(methods, key=lambda m: -m.get("nats", {"estimate": -1e9})["estimate"])


def _means(method: Row, measures: tuple[str, ...]) -> list[str]:
    return [cell(method.get(measure), 2 if measure == "nats" else 3) for measure in measures]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
