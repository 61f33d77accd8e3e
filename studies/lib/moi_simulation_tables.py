"""Tables and figure of the MoI simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

_MISSES = ("misses", "misses_flagged", "covers_flagged")


def tables(rows: list[dict[str, Any]], about: str, confidence_level: float) -> str:
    """Return the results as Markdown. `about` states the numbers of questions."""
    calibrated = of(rows, "calibration")
    out = [
        "## Calibrated",
        "",
        f"{about} Noise is the standard deviation of a score over that of the signal; utility off is the largest error "
        f"in the directions that the orderings see, and seen the share of these directions; coverage is that of "
        f"{confidence_level:.0%} intervals; claimed is P(best), recalibrated and raw; gained is the gain of matched "
        "order as a share of the largest possible gain.",
        "",
        "| N | bias | noise | design | bias off | utility off | seen | coverage | best found | claimed | raw | gained "
        "| flagged |",
        "|" + " ---: |" * 13,
    ]
    for r in calibrated:
        lead = f"| {r['n']} | {r['shape']} | {r['noise']} |"
        if "refused" in r:
            out.append(f"{lead} all | | | | | | | | | error: {r['refused']} |")
        elif r["shape"] == "flat":
            out.append(f"{lead} all | | | | | | | | | flat: {r['flat']} of {r['calibrations']} |")
        else:
            out += [
                f"{lead} {design} | {r['bias_error']:.0e} | {d['seen_error']:.0e} | {d['seen']:.0%} "
                f"| {d['coverage']:.3f} | {d['best_found']:.2f} | {d['best_claimed']:.2f} "
                f"| {d['best_claimed_raw']:.2f} | {d['gained']:.2f} | {d['flagged']:.0%} |"
                for design, d in r["designs"].items()
            ]
    biased = [r for r in calibrated if r["shape"] != "flat"]
    sound = [d["sound_coverage"] for r in biased if r["noise"] > 0 for d in r["designs"].values()]
    noisy = [coverage for coverage in sound if coverage is not None]
    exact = [(r["bias_error"], d["seen_error"]) for r in biased if r["noise"] == 0 for d in r["designs"].values()]
    claims = [
        abs(d["best_claimed"] - d["best_found"])
        for r in biased
        if r["noise"] > 0
        for d in r["designs"].values()
        if d["flagged"] == 0
    ]
    flats = [r for r in calibrated if r["shape"] == "flat" and "refused" not in r]
    missing = [sum(d[name] for r in biased for d in r["designs"].values()) for name in _MISSES]
    out += [
        "",
        f"- Without noise: largest error of the bias {_most([e for e, _ in exact])}, of a utility in the "
        f"directions seen {_most([e for _, e in exact])}, all designs, flagged ones included.",
        f"- Coverage with noise, of questions that are not flagged: {_range(noisy)}.",
        f"- P(best) claimed less best found, of cells with noise and without flags: at most {_most(claims, '.3f')}.",
        f"- Flat biases flagged: {sum(r['flat'] for r in flats)} of {sum(r['calibrations'] for r in flats)}; "
        "without noise their scores are constant, which raises an error.",
        "- Questions whose orderings miss a place for some passage, flagged: {1:,.0f} of {0:,.0f}; others flagged so: "
        "{2:,.0f}.".format(*missing),
        "",
        "## Joint solve",
        "",
        "| N | design | noise, nats | flagged | right order | reversed | best found | residual | product |",
        "|" + " ---: |" * 9,
    ]
    out += [
        f"| {r['n']} | {r['design']} | {r.get('noise', 0.0)} | {r['flagged']:.0%} | {r['right']:.0%} "
        f"| {r['reversed']:.0%} | {r['best']:.0%} | {r['residual']:.0e} | {r['product_error']:.0e} |"
        for r in of(rows, "joint")
    ]
    out += ["", "## U-shaped bias on an even cycle", ""]
    out += ["Calibrations under which ten fresh questions are all flagged:", ""]
    out += [f"- N = {r['n']}, noise {r['noise']}: {r['caught']} of {r['runs']}" for r in of(rows, "singular")]
    out += ["", "## Calibrated on cyclic orderings alone", "", "Noise half the signal's.", ""]
    out += ["| N | bias | beta | calibrations | flagged | bias off, of the others |", "|" + " ---: |" * 6]
    out += [
        f"| {r['n']} | {r['shape']} | {r['beta']} | {r['runs']} | {r['flagged']} "
        f"| {'' if r['error'] is None else format(r['error'], '.2f')} |"
        for r in of(rows, "cyclic")
    ]
    out += ["", "## Sign", "", "| N | beta | runs | decided | wrong |", "|" + " ---: |" * 5]
    out += [f"| {r['n']} | {r['beta']} | {r['runs']} | {r['decided']} | {r['wrong']} |" for r in of(rows, "sign")]
    out += ["", "By a gold contrast, `strength` times the bias with noise of 1 at each place:", ""]
    out += ["| N | strength | questions | runs | beyond 3 s.e. | decided | wrong |", "|" + " ---: |" * 7]
    out += [
        f"| {r['n']} | {r['strength']} | {r['probed']} | {r['runs']} | {r['beyond_three']} | {r['decided']} "
        f"| {r['wrong']} |"
        for r in of(rows, "contrast")
    ]
    return "\n".join(out)


def _most(values: list[float], form: str = ".0e") -> str:
    return format(max(values), form) if values else "none"


def _range(values: list[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}" if values else "none"


def of(rows: list[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    """Return the rows of one kind."""
    return [row for row in rows if row["what"] == what]


def plot(rows: list[dict[str, Any]], path: Path, confidence_level: float) -> None:
    """Plot coverage by noise, and the share of best passages found by the share claimed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    shown = [r for r in of(rows, "calibration") if r["shape"] != "flat" and r["noise"] > 0]
    for n in sorted({r["n"] for r in shown}):
        mine = [(r["noise"], d) for r in shown if r["n"] == n for d in r["designs"].values() if d["flagged"] < 1]
        jitter = 0.01 * (np.arange(len(mine)) % 9 - 4)
        noise = np.array([at for at, _ in mine])
        left.plot(noise + jitter, [d["sound_coverage"] for _, d in mine], "o", ms=4, label=f"N = {n}")
        right.plot([d["best_claimed"] for _, d in mine], [d["best_found"] for _, d in mine], "o", ms=4)
    left.axhline(confidence_level, color="0.6", lw=0.8)
    left.axhspan(confidence_level - 0.03, confidence_level + 0.03, color="0.92", zorder=0)
    left.set(xlabel="noise over signal", ylabel="coverage of 95% intervals", ylim=(0.85, 1.0))
    right.plot([0.3, 1], [0.3, 1], color="0.6", lw=0.8)
    right.set(xlabel="claimed P(best)", ylabel="best passage found")
    left.legend(fontsize=8)
    figure.savefig(path, dpi=150)
