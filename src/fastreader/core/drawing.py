"""Colours, markers and the empty figure that all plots share. Drawing needs matplotlib (extra `plot`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreader.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#010203"
"""Placeholder that a page replaces by its text colour; nearly black by itself, and used by no other line."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#BC6090", "#A37000")
"""Okabe and Ito's, with purple and orange darkened so that each contrasts with white and with the dark page by at
least 3 to 1; the page has a lighter blue for its dark theme."""
MARKERS = "os^DvP"
"""Distinguish lines without colour."""
MAP = "cividis"
"""Colour map that is perceptually uniform, also for colour-blind readers."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, outside of matplotlib's global state, with sizes in inches.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot") from error
    return Figure(figsize=(width, height), layout="constrained")
