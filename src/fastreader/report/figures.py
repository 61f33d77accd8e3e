"""Figures for an HTML page: SVG with text as text, in the page's own colour, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastreader.core.drawing import COLOURS, INK
from fastreader.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = {
    "font.family": "sans-serif",
    "font.size": 10.0,
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": "#808080",
    "grid.alpha": 0.3,
}
_SMALLEST = 0.74
"""Minimum pixels per point: a chart of one panel fits a telephone, and one of many scrolls to stay legible."""
_PNG_STYLE = {"figure.facecolor": "white", "savefig.facecolor": "white", "axes.facecolor": "white"}


def svg(draw: Callable[[], Figure], key: str, title: str) -> str:
    """Return an inline SVG element.

    Args:
        draw: draws the figure.
        key: prefix of every id, so that a page can hold many figures.
        title: label for screen readers.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    with _style({"svg.hashsalt": key}):
        target = io.StringIO()
        draw().savefig(target, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(target.getvalue(), key, title)


def write(draw: Callable[[], Figure], path: Path, key: str) -> None:
    """Write a figure to a .svg file, transparent, or to a .png file, on white.

    Raises:
        MissingExtraError: if matplotlib is not installed.
    """
    with _style({"svg.hashsalt": key, **(_PNG_STYLE if path.suffix == ".png" else {})}):
        draw().savefig(path, dpi=150)


def _style(more: dict[str, Any]) -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot") from error
    return matplotlib.rc_context({**_STYLE, **more})


def _inline(text: str, key: str, title: str) -> str:
    """Return only the svg element, with unique ids, the page's font and text colour, and a size set by the page."""
    from markupsafe import escape

    text = text[text.index("<svg") :]
    width = re.search(r'viewBox="0 0 ([\d.]+) ', text)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{key}-", text)
    text = text.replace(INK, "currentColor").replace(COLOURS[0].lower(), "var(--blue)")
    text = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", text)
    text = re.sub(r"font-family: [^;\"]+;? ?", "", text)
    size = f"max-width:{width[1]}pt;min-width:{_SMALLEST * float(width[1]):.0f}px" if width else ""
    label = escape(title)
    return re.sub(
        r"<svg [^>]*?(viewBox=\"[^\"]+\")[^>]*>",
        rf'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" \1 role="img" '
        rf'aria-label="{label}" style="{size}">',
        text,
        count=1,
    )
