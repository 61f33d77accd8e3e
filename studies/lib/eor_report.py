"""The page of studies/eor_study.py."""

from __future__ import annotations

from typing import Any

from lib.shared import percent, table

ERRORS = ("retriever", "hallucination", "extraction", "luck")


def markdown(found: dict[str, Any]) -> str:
    reader = ", ".join(f"{k} {v}" for k, v in found["settings"]["reader"].items())
    lines = [
        f"{found['questions']} questions in halves of {found['halves'][0]} and {found['halves'][1]}; reader: {reader}; "
        f"similarities: {', '.join(found['similarities'])}; answers have {found['words']:.1f} words on average.",
        "Choices and fits for a half come from the other. Percent [95% bootstrap interval]. The primary measure is "
        f"{found['primary']}.",
    ]
    for measure, part in found["measures"].items():
        lines += ["", f"## {measure}", ""]
        if part["floor"]:
            lines += [f"A floor effect: no answer is right by {measure}, so it cannot distinguish conditions here.", ""]
        bounds = [
            [size, *(f"{100 * row[k]:.1f}" for k in ("least", "mean", "most"))]
            for size, row in part["upper bounds"].items()
        ]
        lines += conditions(part) + weights(part["weights"]["EoR"], found["similarities"])
        lines += ["", *table(["ensemble of", "upper bound, least", "mean", "most"], bounds)]
    return "\n".join(lines + errors(found["errors"]))


def conditions(part: dict[str, Any]) -> list[str]:
    rows = []
    for name, row in part["conditions"].items():
        gain = percent(row["less best single"], "+") if "less best single" in row else "-"
        p = f"{row['mcnemar p']:.3f}" if "mcnemar p" in row else "-"
        rows.append([name, percent(row["accuracy"]), gain, p, percent(row["mrlr"])])
    lines = table(["condition", "right", "less best single", "McNemar p", "MRLR"], rows)
    lines += ["", f"Best single by the halves: {', '.join(part['chosen'].values())}.", ""]
    return lines + [f"- {name}: {percent(row, '+')}" for name, row in part["contrasts"].items()]


def weights(learned: list[dict[str, Any]], similarities: list[str]) -> list[str]:
    rows = [[name, *(f"{w['retrievers'][name]:.2f}" for w in learned)] for name in learned[0]["retrievers"]]
    rows += [[name, *(f"{w['similarities'][i]:.2f}" for w in learned)] for i, name in enumerate(similarities)]
    lines = ["", *table(["retriever", "weight by half 1", "weight by half 2"], rows)]
    for h, w in enumerate(learned):
        fit = w["report"]
        note = "" if fit["varying"] else " No question distinguishes the retrievers: nothing was learned."
        lines.append(
            f"\nFit on half {h + 1}: {fit['objective']:.3f}, equal weights {fit['unweighted']:.3f}; starts end "
            f"between {min(fit['starts']):.3f} and {max(fit['starts']):.3f}; {fit['varying']} of {fit['questions']} "
            f"questions decide.{note}"
        )
    return lines


def errors(found: dict[str, Any]) -> list[str]:
    columns = ["retriever", "E_r", "E_h", "E_e", "E_luck", "wrong", "Eq. 4", "residual"]
    lines = ["", "## Errors (correct: contained)"]
    for name, title in (
        ("all", "All questions"),
        ("filtered", f"The paper's filter: {found['kept']} questions in which no answer is longer than 5 words"),
    ):
        lines += ["", f"{title}.", ""]
        if found["kept"] or name == "all":
            part = found[name]
            values = [*(part["rates"][error] for error in ERRORS), part["failure"], part["explained"], part["residual"]]
            rows = [[r, *(f"{100 * v[m]:.1f}" for v in values)] for m, r in enumerate(found["retrievers"])]
            lines += table(columns, rows)
    return lines
