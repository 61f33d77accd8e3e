"""Figures of a noise study; they need matplotlib (extra `plot`)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.errors import InputError, MissingExtraError
from fastreader.noise.attention import AnswerAttention, FloatArray
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


def plot_heat_map(
    shares: Mapping[str, FloatArray],
    kinds: Mapping[str, Sequence[str]],
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Share of the passages' attention that each passage gets, by layer: a panel a layout (the paper's figure 3).

    Args:
        shares: for each layout float64 [layers, passages], as `AnswerAttention.share` or `mean_share`.
        kinds: for each layout its passages' kinds, in reading order.
        path: as for `plot_accuracy`.

    Raises:
        InputError: no layout, or kinds that do not fit.
        MissingExtraError: matplotlib is not installed.
    """
    if not shares or any(share.shape[1] != len(kinds[name]) for name, share in shares.items()):
        raise InputError("plot_heat_map: expected at least one layout, and one kind a passage")
    figure = new_figure(max(4.0, 3.4 * len(shares)), 4.2)
    axes = figure.subplots(1, len(shares), squeeze=False)[0]
    top = max(float(share.max()) for share in shares.values())
    for axis, (name, share) in zip(axes, shares.items(), strict=True):
        image = axis.imshow(share, aspect="auto", cmap="cividis", vmin=0.0, vmax=top, origin="lower")
        axis.set(title=name, xlabel="passage, in reading order")
        axis.set_xticks(range(share.shape[1]), [kind[:4] for kind in kinds[name]], rotation=90)
    axes[0].set_ylabel("layer")
    figure.colorbar(image, ax=list(axes), label="share of attention")
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def plot_entropy(
    attentions: Mapping[str, Sequence[AnswerAttention]], path: str | os.PathLike[str] | None = None
) -> Figure:
    """Mean entropy of attention by layer, a line a layout.

    Args:
        attentions: for each layout the attention of several answers.
        path: as for `plot_accuracy`.

    Raises:
        InputError: a layout without answers, or no layout.
        MissingExtraError: matplotlib is not installed.
    """
    if not attentions or not all(attentions.values()):
        raise InputError("plot_entropy: expected at least one layout, each with at least one answer")
    figure = new_figure(6.0, 3.6)
    axis = figure.subplots()
    for (name, rows), marker in zip(attentions.items(), itertools.cycle("os^vDPX*")):
        means = np.nanmean([row.entropy for row in rows], axis=0)
        axis.plot(range(len(means)), means, marker=marker, markersize=4, label=name)
    axis.set(xlabel="layer", ylabel="entropy of attention, nats")
    axis.grid(alpha=0.3)
    axis.legend()
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
