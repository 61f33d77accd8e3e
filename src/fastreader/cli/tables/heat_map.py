"""Probabilities of answers under each ordering, as shaded cells or plain bars."""

from __future__ import annotations

import numpy as np
from rich.table import Table

from fastreader.cli.screen import Text
from fastreader.scoring.results import FloatArray, PermutationScores

_WIDTH = 14  # characters of a cell
_PALE, _DARK = np.array([247, 251, 255]), np.array([8, 48, 107])  # colours of probability 0 and 1


def probabilities(scores: PermutationScores) -> FloatArray:
    """Return the probability of each candidate among the candidates: [orderings, candidates]."""
    shares = np.exp(scores.logprobs - scores.logprobs.max(axis=1, keepdims=True))
    result: FloatArray = shares / shares.sum(axis=1, keepdims=True)
    return result


def heat_map(scores: PermutationScores, shaded: bool) -> Table:
    """Show orderings x candidates, with an asterisk at the answer of each ordering.

    Args:
        scores: of one question.
        shaded: shade the cells; without it, a bar of number signs follows each number.
    """
    table = Table(header_style="bold", box=None, padding=(0, 1, 0, 0))
    table.add_column("order read", no_wrap=True)
    for candidate in scores.candidates:
        table.add_column(Text(candidate), width=_WIDTH, justify="center" if shaded else "left")
    for order, row in zip(scores.permutations.tolist(), probabilities(scores).tolist(), strict=True):
        cells = [_cell(value, value == max(row), shaded) for value in row]
        table.add_row(" ".join(str(p + 1) for p in order), *cells)
    return table


def _cell(probability: float, leads: bool, shaded: bool) -> Text:
    number = f"{probability:.2f}{'*' if leads else ' '}"
    if not shaded:
        return Text(f"{number} {'#' * round(8 * probability)}")
    red, green, blue = np.rint(_PALE + probability * (_DARK - _PALE)).astype(int).tolist()
    ink = "white" if probability > 0.5 else "black"
    return Text(number.center(_WIDTH), style=f"{'bold ' if leads else ''}{ink} on rgb({red},{green},{blue})")
