"""Draw figures of a noise study from tables or results, with matplotlib (extra `plot`)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_output, expect, rejecting
from fastreader.core.drawing import COLOURS, INK, MAP, MARKERS, new_figure
from fastreader.noise.attention import AnswerAttention, FloatArray
from fastreader.noise.layouts import POSITIONS, LayoutSpec
from fastreader.noise.summary import NoiseSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = list[dict[str, Any]]


@checked
def plot_accuracy(summary: NoiseSummary, path: str | os.PathLike[str] | None = None) -> Figure:
    """Plot accuracy against the number of other passages, see `draw_accuracy`.

    Args:
        summary: the study.
        path: file to write the figure to, with its format as suffix (png, svg, pdf); None writes no file.

    Raises:
        InputError: if no layout has the gold passage and others.
        MissingExtraError: if matplotlib is not installed.
    """
    rows = []
    for condition in summary.comparison.conditions:
        spec, found = LayoutSpec.parse(condition.name), condition.bootstrap
        if spec.gold or condition.name == "closed_book":
            rows.append(accuracy_row(spec) | {"accuracy": found.estimate, "low": found.low, "high": found.high})
    others = any(row["others"] for row in rows)
    expect(others, "plot_accuracy", "a layout of the gold passage and others", [row["layout"] for row in rows])
    return _written(draw_accuracy(rows), path)


def accuracy_row(spec: LayoutSpec, reader: str = "") -> dict[str, Any]:
    """Return the row of a layout for `draw_accuracy`, without its accuracy."""
    return {
        "layout": spec.name,
        "reader": reader,
        "others": spec.noise,
        "count": spec.count if spec.count >= 0 else None,
        "position": spec.position,
    }


def draw_accuracy(rows: Rows) -> Figure:
    """Draw one panel per kind and reader, with one line and interval per position, and only gold as the point at 0.

    The dotted line is the closed book.

    Args:
        rows: one per layout: the result of `accuracy_row`, with accuracy, low and high.
    """
    panels = list(dict.fromkeys((row["others"], row["reader"]) for row in rows if row["others"]))
    readers = {row["reader"] for row in rows}
    figure = new_figure(max(5.2, 3.6 * len(panels)), 3.4)
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (kind, reader) in zip(axes, panels, strict=True):
        own = [row for row in rows if row["reader"] == reader]
        for index, position in enumerate(POSITIONS):
            _line(axis, own, kind, position, index)
        for row in own:
            if row["layout"] == "closed_book":
                axis.axhline(row["accuracy"], color=INK, linestyle=":", label="closed book")
        axis.set(xlabel=f"{kind} passages", title=reader if len(readers) > 1 else "")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(axis="y")
    axes[0].set(ylabel="accuracy", ylim=(0, None))
    axes[-1].legend(title="gold passage")
    return figure


def _line(axis: Any, rows: Rows, kind: str, position: str, index: int) -> None:
    found = [r for r in rows if r["others"] == kind and r["position"] == position and r["count"] is not None]
    if not found:
        return
    alone = [{**row, "count": 0} for row in rows if row["layout"] == "gold"]
    found = sorted([*alone, *found], key=lambda row: row["count"])
    counts, colour = [row["count"] for row in found], COLOURS[index]
    values, low, high = ([row[key] for row in found] for key in ("accuracy", "low", "high"))
    style = ("-", "--", "-.")[index]
    axis.plot(counts, values, marker=MARKERS[index], color=colour, linestyle=style, label=position)
    axis.fill_between(counts, low, high, color=colour, alpha=0.15, lw=0)


@checked
def plot_heat_map(
    shares: Mapping[str, FloatArray], kinds: Mapping[str, Sequence[str]], path: str | os.PathLike[str] | None = None
) -> Figure:
    """Plot the share of attention of each passage by layer, one panel per layout (the paper's figure 3).

    Args:
        shares: for each layout float64 [layers, passages], as `AnswerAttention.share` or `mean_share`.
        kinds: for each layout the kinds of its passages, in reading order.
        path: same as `plot_accuracy`.

    Raises:
        InputError: if there is no layout, or a layout's numbers of kinds and passages differ.
        MissingExtraError: if matplotlib is not installed.
    """
    expect(shares.keys() <= kinds.keys(), "kinds", f"layouts among {sorted(shares)}", sorted(kinds))
    flat = [name for name, share in shares.items() if share.ndim != 2]
    expect(not flat, "shares", "arrays [layers, passages]", flat)
    fitting = all(share.shape[1] == len(kinds[name]) for name, share in shares.items())
    expect(
        bool(shares) and fitting,
        "plot_heat_map: shares, kinds",
        "at least one layout, and one kind per passage",
        dict(kinds),
    )
    return _written(draw_attention([(name, share, kinds[name]) for name, share in shares.items()]), path)


def draw_attention(maps: Sequence[tuple[str, FloatArray, Sequence[str]]]) -> Figure:
    """Draw heat maps, four per row, layers upwards, all with one scale.

    Args:
        maps: title, shares [layers, passages] with NaN if a layer sees no passage, and the passages' kinds.
    """
    across = min(4, len(maps))
    down = -(-len(maps) // across)
    figure = new_figure(max(4.4, 2.6 * across + 0.8), 3.6 * down)
    axes = figure.subplots(down, across, squeeze=False)
    top = max((float(np.nanmax(cells)) for _, cells, _ in maps if not np.isnan(cells).all()), default=1.0)
    for axis in axes.flat[len(maps) :]:
        axis.set_visible(False)
    for axis, (title, cells, kinds) in zip(axes.flat, maps, strict=False):
        image = axis.imshow(cells, aspect="auto", origin="lower", cmap=MAP, vmin=0, vmax=top)
        axis.set_title(title, fontsize=9)
        axis.set_xticks(range(len(kinds)), kinds, rotation=90, fontsize=8)
    for axis in axes[:, 0]:
        axis.set_ylabel("layer")
    figure.colorbar(image, ax=axes, label="share of attention", shrink=0.7)
    return figure


@checked
def plot_entropy(
    attentions: Mapping[str, Sequence[AnswerAttention]], path: str | os.PathLike[str] | None = None
) -> Figure:
    """Plot the mean entropy of attention by layer, one line per layout.

    Args:
        attentions: for each layout the attention of several answers.
        path: same as `plot_accuracy`.

    Raises:
        InputError: if there is no layout, or a layout has no answers.
        MissingExtraError: if matplotlib is not installed.
    """
    counts = {name: len(rows) for name, rows in attentions.items()}
    expect(
        bool(counts) and all(counts.values()),
        "plot_entropy: attentions",
        "layouts with at least one answer each",
        counts,
    )
    figure = new_figure(6.0, 3.6)
    axis = figure.subplots()
    for (name, rows), marker in zip(attentions.items(), itertools.cycle(MARKERS)):
        means = np.nanmean([row.entropy for row in rows], axis=0)
        axis.plot(range(len(means)), means, marker=marker, markersize=4, label=name)
    axis.set(xlabel="layer", ylabel="entropy of attention, nats")
    axis.grid(alpha=0.3)
    axis.legend()
    return _written(figure, path)


def _written(figure: Figure, path: str | os.PathLike[str] | None) -> Figure:
    if path is not None:
        check_output("path", path)
        with rejecting(f"path: {os.fspath(path)!r} cannot be written", ValueError):  # a suffix that matplotlib lacks
            figure.savefig(path, dpi=150)
    return figure
