"""What all figures share: colours, markers, and a figure of its own. Drawing needs matplotlib (extra `plot`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastreader.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#010203"
"""Stands for a page's text colour, black by itself; no other line has it."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#BC6090", "#A37000")
"""Okabe and Ito's, purple and orange darker, so that each stands out from white and from the dark page by 3 to 1 at
least; the page has a lighter blue for dark."""
MARKERS = "os^DvP"
"""Tell lines apart without colour."""
MAP = "cividis"
"""Even to the eye, and the same to colour-blind ones."""


def new_figure(width: float, height: float) -> Figure:
    """A figure of its own, inches; no global state holds on to it.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot") from error
    return Figure(figsize=(width, height), layout="constrained")
