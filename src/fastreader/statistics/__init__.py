"""Statistics of paired results: intervals, tests, effect sizes. NumPy and SciPy only."""

from fastreader.statistics.compare import Comparison, Condition, Contrast, compare
from fastreader.statistics.effects import cohens_d, discordant_odds_ratio, minimum_detectable_effect, risk_difference
from fastreader.statistics.intervals import Interval, bootstrap, paired_bootstrap, wilson
from fastreader.statistics.significance import holm, mcnemar, sign_flip, wilcoxon

__all__ = [
    "Comparison",
    "Condition",
    "Contrast",
    "Interval",
    "bootstrap",
    "cohens_d",
    "compare",
    "discordant_odds_ratio",
    "holm",
    "mcnemar",
    "minimum_detectable_effect",
    "paired_bootstrap",
    "risk_difference",
    "sign_flip",
    "wilcoxon",
    "wilson",
]
