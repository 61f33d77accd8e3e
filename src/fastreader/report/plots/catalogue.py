"""TODO."""

from __future__ import annotations

from fastreader.report.plots import Chart


def charts() -> list[Chart]:
    """All figures, in the page's order."""
    from fastreader.report.plots import (
        accuracy,
        attention,
        error_rwr,
        mrlr,
        passage_position,
        position_bias,
        random_passages,
        rwr,
        upper_bound,
        utilities,
        weights,
    )

    modules = (
        accuracy,
        position_bias,
        utilities,
        passage_position,
        rwr,
        error_rwr,
        mrlr,
        upper_bound,
        weights,
        random_passages,
        attention,
    )
    return [module.CHART for module in modules]
