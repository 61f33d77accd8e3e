"""The position bias as a figure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.drawing import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fastreader.moi.types import PositionBias


def plot_bias(bias: PositionBias, path: str | os.PathLike[str] | None = None) -> Figure:
    """The bias by place with its intervals; writes it to `path` when given.

    Raises:
        MissingExtraError: matplotlib is not installed (the extra "plot").
    """
    figure = new_figure(max(3.2, 0.45 * bias.length + 1.6), 2.8)
    axes = figure.subplots()
    places = np.arange(1, bias.length + 1)
    below, above = bias.bias - bias.intervals[:, 0], bias.intervals[:, 1] - bias.bias
    axes.axhline(0.0, color="0.7", linewidth=0.8)
    axes.errorbar(places, bias.bias, yerr=np.maximum([below, above], 0.0), fmt="o-", capsize=3, color=COLOURS[0])
    axes.set_xticks(places)
    axes.set_xlabel("place in reading order")
    axes.set_ylabel("position bias (unit norm)")
    name = bias.reader.get("name", "unknown reader")
    axes.set_title(
        f"{name}, N = {bias.passages}, {bias.questions} questions\nheld-out R² {bias.r2:.2f}, sign: {bias.sign}",
        fontsize=9,
    )
    if path is not None:
        figure.savefig(path)
    return figure
