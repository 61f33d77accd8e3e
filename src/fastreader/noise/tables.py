"""Tables of a noise study in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fastreader.core.checked import checked
from fastreader.noise.layouts import FILL, POSITIONS, LayoutSpec
from fastreader.noise.summary import LayoutCounts, NoiseSummary
from fastreader.statistics import Contrast, Interval

SIGNIFICANT = 0.01  # the paper's
_TESTS = {"sign flip": "clustered sign-flip", "McNemar": "exact McNemar", "Wilcoxon": "Wilcoxon"}


@checked
def markdown(summary: NoiseSummary) -> str:
    """Return the primary contrast, the tables of the paper and all numbers behind them, as Markdown."""
    parts = [_headline(summary), _oracle(summary), _realistic(summary), _conditions(summary), _contrasts(summary)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(summary: NoiseSummary) -> str:
    lines = [f"{summary.questions} questions, {summary.clusters} distinct gold passages."]
    lines += [
        f"Primary contrast, stated beforehand: {c.name} minus {c.baseline}, {_signed(c.difference)} over {c.n} "
        f"questions, {_TESTS[c.test]} p {_p(c.p)}; 80% of such samples would detect an effect of "
        f"{_number(c.minimum_detectable_effect)} at p < {1 - c.difference.confidence_level:.2g}."
        for c in summary.comparison.contrasts
        if c.primary
    ]
    over_long = {name: n.over_long for name, n in summary.counts.items() if n.over_long}
    missing = {name: n.missing for name, n in summary.counts.items() if n.missing}
    if over_long:
        lines.append("Prompts longer than the context, not run: " + _list(over_long) + ".")
    if missing:
        lines.append("Questions without the passages of a layout, not run: " + _list(missing) + ".")
    return "\n\n".join(lines)


def _oracle(summary: NoiseSummary) -> str:
    """Return accuracy by kind, number and position, as tables 1 and 2 of the paper."""
    cells = _cells(summary)
    specs = [LayoutSpec.parse(name) for name in cells]
    rows = []
    for noise in dict.fromkeys(s.noise for s in specs if s.gold and s.noise):
        if "gold" in cells:
            rows.append([noise, "0", *[cells["gold"]] * 3])
        for count in dict.fromkeys(s.count for s in specs if s.gold and s.noise == noise):
            names = [LayoutSpec(True, noise, count, position).name for position in POSITIONS]
            rows.append([noise, "fill" if count == FILL else str(count), *[cells.get(name, "") for name in names]])
    if not rows:
        return ""
    closed = f"Closed book: {cells['closed_book']}. " if "closed_book" in cells else ""
    return (
        f"{closed}Accuracy with the gold passage and others of one kind, by the place of the gold passage; "
        f"* differs from gold only (Holm-corrected p < {SIGNIFICANT}).\n\n"
        + _table(["kind", "number", *POSITIONS], rows)
    )


def _realistic(summary: NoiseSummary) -> str:
    """Return accuracy by number of retrieved and random passages, as tables 3 to 5 of the paper."""
    cells = _cells(summary)
    specs = [s for s in map(LayoutSpec.parse, cells) if s.retrieved]
    if not specs:
        return ""
    retrieved = sorted({s.retrieved for s in specs})
    counts = sorted({s.count for s in specs}, key=lambda count: (count == FILL, count))
    rows = [
        [
            "fill" if m == FILL else str(m),
            *[cells.get(LayoutSpec(noise="random" if m else "", count=m, retrieved=k).name, "") for k in retrieved],
        ]
        for m in counts
    ]
    return (
        "Accuracy with random passages (rows) before retrieved ones (columns); * differs from no random passages.\n\n"
        + _table(["random", *[str(k) for k in retrieved]], rows)
    )


def _conditions(summary: NoiseSummary) -> str:
    rows = []
    by_name = {c.name: c for c in summary.comparison.conditions}
    measures = list(dict.fromkeys(name for counts in summary.counts.values() for name in counts.measures))
    for name, counts in summary.counts.items():
        c = by_name.get(name)
        rows.append(
            [
                name,
                str(counts.asked),
                "" if c is None else str(c.bootstrap),
                "" if c is None or c.wilson is None else f"[{c.wilson.low:.3f}, {c.wilson.high:.3f}]",
                _number(counts.no_answer),
                "" if counts.prompt_tokens is None else f"{counts.prompt_tokens:.0f}",
                str(counts.missing),
                str(counts.over_long),
                _number(counts.accuracy_over_long_wrong),
                *[_mean(counts, measure) for measure in measures],
            ]
        )
    header = ["layout", "asked", "accuracy, clustered bootstrap", "Wilson", "NO-RES", "prompt tokens", "missing"]
    head = (
        "Conditions; (n) is the number of answers that have a measure, if others lack it."
        if measures
        else "Conditions."
    )
    return f"{head}\n\n" + _table([*header, "over-long", "accuracy, over-long wrong", *measures], rows)


def _mean(counts: LayoutCounts, measure: str) -> str:
    """Return the mean of a measure under one layout with its interval, empty if no answer has it."""
    if (found := counts.measures.get(measure)) is None:
        return ""
    return f"{found.mean}" if found.n == counts.asked else f"{found.mean} ({found.n})"


def _contrasts(summary: NoiseSummary) -> str:
    rows = [
        [
            c.name + (" (primary)" if c.primary else ""),
            c.baseline,
            str(c.n),
            _signed(c.difference),
            _TESTS[c.test],
            _p(c.p),
            _p(c.p_holm),
            _p(c.mcnemar),
            _p(c.wilcoxon),
            _number(c.cohens_d),
            "" if (o := c.odds_ratio) is None else f"{o.estimate:.2f} [{o.low:.2f}, {o.high:.2f}]",
            _number(c.minimum_detectable_effect),
        ]
        for c in summary.comparison.contrasts
    ]
    if not rows:
        return ""
    header = ["layout", "baseline", "n", "difference", "test", "p", "Holm", "McNemar p", "Wilcoxon p", "d"]
    return (
        "Contrasts. The test is over gold passages if questions share one; Holm's correction is over all contrasts "
        "except the primary one, and the detectable effect is without it.\n\n"
        + _table([*header, "odds ratio", "detectable"], rows)
    )


def _cells(summary: NoiseSummary) -> dict[str, str]:
    different = {c.name for c in summary.comparison.contrasts if differs(c)}
    return {
        c.name: f"{c.bootstrap.estimate:.3f}" + ("*" if c.name in different else "")
        for c in summary.comparison.conditions
    }


def differs(contrast: Contrast) -> bool:
    """Return whether a contrast differs significantly from 0, as in the paper: corrected p < 0.01."""
    return contrast.p_holm < SIGNIFICANT


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["-"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _signed(interval: Interval) -> str:
    return f"{interval.estimate:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
