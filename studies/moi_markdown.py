"""The report of the MoI study as Markdown."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def markdown(report: Row, measures: tuple[str, ...]) -> str:
    """All of it."""
    parts = [
        _methods(report, measures),
        _contrasts(report),
        _strata(report, measures),
        _polarity(report),
        _claims(report),
        _biases(report),
        _errors(report),
    ]
    return "\n".join("\n".join(part) for part in parts if part) + "\n"


def _methods(report: Row, measures: tuple[str, ...]) -> list[str]:
    n, settings = report["settings"]["passages"], report["settings"]
    lines = [f"# MoI on {report['questions']} questions, N = {n}", ""]
    lines += [
        f"Reader {settings['reader']['name']}. Means with 95% intervals, bootstrap over gold passages. Detectable: the "
        f"least lead of {report['primary'][0]} in nats found with power 0.8. Tokens are those computed to find the "
        "order; the share is of 3N whole orderings, each read alone. Orders of other n are of other questions.",
        "",
    ]
    lines += ["| order | n | answer, nats | EM | contained | F1 | gold MRR | detectable, nats | tokens | share of 3N |"]
    lines += ["|" + "-|" * 10]
    least = {c["against"]: c["mde"] for c in report["contrasts"] if c["measure"] == "nats"}
    for m in _best_first(report["methods"]):
        cells = [cell(m.get(measure), _digits(measure)) for measure in measures]
        cells += [_number(m.get("gold_mrr"), ".3f"), _number(least.get(m["name"]), ".3f")]
        cells += [_number(m.get("tokens"), ",.0f"), _number(m.get("share"), ".1%")]
        lines.append(f"| {m['name']} | {m['n']} | " + " | ".join(cells) + " |")
    return lines


def _contrasts(report: Row) -> list[str]:
    method, baseline, measure = report["primary"]
    n, total = report["primary_questions"], report["questions"]
    told = f"{n} of {total} questions" if n else f"**not available**: no question has both (of {total})"
    lines = ["", f"## {method} less each other order", ""]
    lines += [f"Primary, stated beforehand: against {baseline} in {measure}: {told}. Holm over all the others.", ""]
    lines += ["p by flipping signs of whole gold passages.", ""]
    lines += ["| against | measure | difference | p | p (Holm) | detectable | n |", "|-|-|-|-|-|-|-|"]
    for c in report["contrasts"]:
        name = f"**{c['against']}**" if c["primary"] else c["against"]
        corrected = "" if c["primary"] else f"{c['p_holm']:.3g}"
        cells = [name, c["measure"], cell(c["difference"], 3), f"{c['p']:.3g}", corrected]
        lines.append("| " + " | ".join([*cells, _number(c["mde"], ".3f"), str(c["n"])]) + " |")
    return lines


def _strata(report: Row, measures: tuple[str, ...]) -> list[str]:
    lines = []
    for name, part in report["strata"].items():
        lines += ["", f"## {name}: {part['questions']} questions", ""]
        lines += [
            f"| order | n | answer, nats | EM | contained | F1 | {report['primary'][0]} leads by, nats | detectable "
        ]
        lines[-1] += "| tokens |"
        lines += ["|" + "-|" * 9]
        for m in _best_first(part["methods"]):
            cells = [m["name"], str(m["n"]), *(cell(m.get(measure), _digits(measure)) for measure in measures)]
            cells += [cell(m.get("lead"), 2), _number(m.get("mde"), ".3f"), _number(m.get("tokens"), ",.0f")]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _best_first(methods: list[Row]) -> list[Row]:
    return sorted(methods, key=lambda m: -m.get("nats", {"estimate": -1e9})["estimate"])


def _digits(measure: str) -> int:
    return 2 if measure == "nats" else 3


def _polarity(report: Row) -> list[str]:
    if not report["polarity"]:
        return []
    lines = ["", "## Polarity: what reversing an order loses (forward less reversed)", ""]
    lines += ["p is not corrected for the number of these contrasts.", ""]
    lines += ["| order | measure | loss | p | detectable | n |", "|-|-|-|-|-|-|"]
    for c in report["polarity"]:
        cells = [c["name"], c["measure"], cell(c["difference"], 3), f"{c['p']:.3g}", _number(c["mde"], ".3f")]
        lines.append("| " + " | ".join([*cells, str(c["n"])]) + " |")
    return lines


def _claims(report: Row) -> list[str]:
    if not report["claims"]:
        return []
    lines = ["", f"## P(best) of {report['primary'][0]}, where the gold passage is among those read", ""]
    lines += ["| P(best) of its best passage | questions | mean P(best) | that passage is gold |", "|-|-|-|-|"]
    for c in report["claims"]:
        lines.append(f"| {c['from']:.1f} to {c['to']:.1f} | {c['n']} | {c['claimed']:.3f} | {c['gold']:.3f} |")
    return lines


def _biases(report: Row) -> list[str]:
    lines = ["", "## Position bias of each fold", ""]
    lines += ["| fold | questions | bias by place | sign | beta z | gold z | R2 |", "|-|-|-|-|-|-|-|"]
    for b in report["biases"]:
        weights = " ".join(f"{w:+.2f}" for w in b["bias"])
        cells = [b["fold"], str(b["questions"]), weights, b["sign"]]
        cells += [_number(b["sign_z"], ".1f"), _number(b["contrast_z"], ".1f"), f"{b['r2']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _errors(report: Row) -> list[str]:
    if not report["errors"]:
        return []
    found = [f"- {name}: {e['questions']} questions; {e['first']}" for name, e in report["errors"].items()]
    return ["", "## Without an order", "", *found]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def cell(value: dict[str, Any] | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value['estimate']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"
