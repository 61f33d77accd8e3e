"""Figures of a noise study; they need matplotlib (extra `plot`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fastreader.errors import InputError, MissingExtraError
from fastreader.noise.layouts import POSITIONS, LayoutSpec
from fastreader.noise.summary import NoiseSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers tell apart; markers tell the lines apart without colour.
_STYLES = {"far": ("#0072B2", "o", "-"), "mid": ("#D55E00", "s", "--"), "near": ("#009E73", "^", "-.")}


def plot_accuracy(summary: NoiseSummary, path: str | os.PathLike[str] | None = None) -> Figure:
    """Accuracy against the number of other passages, a panel a kind, a line a position, with intervals.

    The dotted line is the closed book, the point at 0 the gold passage alone.

    Args:
        summary: the study.
        path: where to write the figure; its ending tells the format (png, svg, pdf).

    Raises:
        InputError: the study has no layout of gold and others.
        MissingExtraError: matplotlib is not installed.
    """
    kinds = list(
        dict.fromkeys(
            spec.noise for c in summary.comparison.conditions if (spec := LayoutSpec.parse(c.name)).gold and spec.noise
        )
    )
    if not kinds:
        raise InputError("plot_accuracy: the study has no layout of the gold passage and others")
    figure = new_figure(4.5 * len(kinds), 3.6)
    axes = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axis, kind in zip(axes, kinds, strict=True):
        for position in POSITIONS:
            _line(axis, summary, kind, position)
        for condition in summary.comparison.conditions:
            if condition.name == "closed_book":
                axis.axhline(condition.bootstrap.estimate, color="#555555", linestyle=":", label="closed book")
        axis.set(title=f"{kind} passages", xlabel="passages besides the gold one")
        axis.grid(alpha=0.3)
    axes[0].set(ylabel="accuracy", ylim=(0, None))
    axes[-1].legend(title="gold passage")
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def new_figure(width: float, height: float) -> Figure:
    """A figure of its own, in inches, that no global state holds on to.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot") from error
    return Figure(figsize=(width, height), layout="constrained")


def _line(axis: Any, summary: NoiseSummary, kind: str, position: str) -> None:
    points = []
    for condition in summary.comparison.conditions:
        spec = LayoutSpec.parse(condition.name)
        if condition.name == "gold":
            points.append((0, condition.bootstrap))
        elif (spec.noise, spec.position) == (kind, position) and spec.count > 0:
            points.append((spec.count, condition.bootstrap))
    if len(points) < 2:
        return
    points.sort(key=lambda point: point[0])
    counts, intervals = [n for n, _ in points], [i for _, i in points]
    colour, marker, style = _STYLES[position]
    axis.plot(counts, [i.estimate for i in intervals], color=colour, marker=marker, linestyle=style, label=position)
    axis.fill_between(counts, [i.low for i in intervals], [i.high for i in intervals], color=colour, alpha=0.15, lw=0)
