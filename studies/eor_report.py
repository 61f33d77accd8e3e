"""The page that studies/eor_study.py writes from its analysis."""

from __future__ import annotations

from typing import Any

ERRORS = ("retriever", "hallucination", "extraction", "luck")


def markdown(found: dict[str, Any]) -> str:
    reader = ", ".join(f"{k} {v}" for k, v in found["settings"]["reader"].items())
    lines = [
        f"{found['questions']} questions in halves of {found['halves'][0]} and {found['halves'][1]}; reader: {reader}; "
        f"similarities: {', '.join(found['similarities'])}; answers have {found['words']:.1f} words on average.",
        f"What is chosen or learned for a half comes from the other. Percent [95% bootstrap interval]. The primary "
        f"measure is {found['primary']}.",
    ]
    for measure, part in found["measures"].items():
        lines += ["", f"## {measure}", ""]
        if part["floor"]:
            lines += [f"A floor effect: no answer at all is right by {measure}, which tells nothing apart here.", ""]
        lines += conditions(part) + weights(part["weights"]["EoR"], found["similarities"])
        lines += ["", "| ensemble of | upper bound, least | mean | most |", "|-|-|-|-|"]
        lines += [
            f"| {size} | " + " | ".join(f"{100 * row[k]:.1f}" for k in ("least", "mean", "most")) + " |"
            for size, row in part["upper bounds"].items()
        ]
    return "\n".join(lines + errors(found["errors"]))


def conditions(part: dict[str, Any]) -> list[str]:
    lines = ["| condition | right | less best single | McNemar p | MRLR |", "|-|-|-|-|-|"]
    for name, row in part["conditions"].items():
        gain = percent(row["less best single"], "+") if "less best single" in row else "-"
        p = f"{row['mcnemar p']:.3f}" if "mcnemar p" in row else "-"
        lines.append(f"| {name} | {percent(row['accuracy'])} | {gain} | {p} | {percent(row['mrlr'])} |")
    lines += ["", f"Best single by the halves: {', '.join(part['chosen'].values())}.", ""]
    return lines + [f"- {name}: {percent(row, '+')}" for name, row in part["contrasts"].items()]


def weights(learned: list[dict[str, Any]], similarities: list[str]) -> list[str]:
    lines = ["", "| retriever | " + " | ".join(f"weight by half {h + 1}" for h in range(2)) + " |", "|-|-|-|"]
    lines += [
        f"| {n} | " + " | ".join(f"{w['retrievers'][n]:.2f}" for w in learned) + " |" for n in learned[0]["retrievers"]
    ]
    for i, name in enumerate(similarities):
        lines.append(f"| {name} | " + " | ".join(f"{w['similarities'][i]:.2f}" for w in learned) + " |")
    for h, w in enumerate(learned):
        fit = w["report"]
        nothing = "" if fit["varying"] else " No question tells the retrievers apart: nothing was learned."
        lines.append(
            f"\nFit on half {h + 1}: {fit['objective']:.3f}, equal weights {fit['unweighted']:.3f}; starts end "
            f"between {min(fit['starts']):.3f} and {max(fit['starts']):.3f}; {fit['varying']} of {fit['questions']} "
            f"questions decide.{nothing}"
        )
    return lines


def errors(found: dict[str, Any]) -> list[str]:
    lines = ["", "## Errors (correct: contained)"]
    for name, title in (
        ("all", "All questions"),
        ("filtered", f"The paper's filter: {found['kept']} questions where no answer is longer than 5 words"),
    ):
        part = found[name]
        lines += ["", f"{title}.", ""]
        if not found["kept"] and name == "filtered":
            continue
        lines += ["| retriever | E_r | E_h | E_e | E_luck | wrong | Eq. 4 | residual |", "|-|-|-|-|-|-|-|-|"]
        for m, retriever in enumerate(found["retrievers"]):
            cells = [part["rates"][error][m] for error in ERRORS]
            cells += [part[k][m] for k in ("failure", "explained", "residual")]
            lines.append(f"| {retriever} | " + " | ".join(f"{100 * c:.1f}" for c in cells) + " |")
    return lines


def percent(interval: dict[str, float | None], sign: str = "") -> str:
    values = [interval[k] for k in ("estimate", "low", "high")]
    if any(value is None for value in values):
        return "-"
    return "{0:{3}.1f} [{1:{3}.1f}, {2:{3}.1f}]".format(*(100 * value for value in values if value is not None), sign)
