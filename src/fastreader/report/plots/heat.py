"""A square heat map of ratios with names on both sides, for RWR and its kin."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastreader.core.drawing import INK, MAP


def square(axis: Any, rows: list[dict[str, Any]], value: str, title: str = "") -> Any:
    """Draw `rows` (row, column, value in 0..1 or None) and their numbers; returns the image."""
    names = list(dict.fromkeys(row["row"] for row in rows))
    cells = np.full((len(names), len(names)), np.nan)
    for row in rows:
        if row[value] is not None:
            cells[names.index(row["row"]), names.index(row["column"])] = row[value]
    image = axis.imshow(cells, cmap=MAP, vmin=0.0, vmax=1.0)
    axis.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(names)), names)
    axis.set_title(title)
    for i, j in np.ndindex(cells.shape):
        if np.isnan(cells[i, j]):
            axis.text(j, i, "–", ha="center", va="center", color=INK, fontsize=8)
        else:
            colour = "#000000" if cells[i, j] > 0.55 else "#ffffff"
            axis.text(j, i, f"{cells[i, j]:.2f}".lstrip("0"), ha="center", va="center", color=colour, fontsize=8)
    return image
