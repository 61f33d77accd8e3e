"""All figures of the report."""

from __future__ import annotations

from fastreader.report.plots import Chart, answers, ensemble, layouts, moi

CHARTS: tuple[Chart, ...] = (
    answers.ACCURACY,
    moi.POSITION_BIAS,
    moi.UTILITIES,
    moi.PASSAGE_POSITION,
    ensemble.RWR,
    ensemble.ERROR_RWR,
    ensemble.MRLR,
    ensemble.UPPER_BOUND,
    ensemble.WEIGHTS,
    layouts.RANDOM_PASSAGES,
    layouts.ATTENTION,
)
"""In the page's order."""
