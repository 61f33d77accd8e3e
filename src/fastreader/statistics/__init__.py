"""Statistics of paired results: intervals, tests, effect sizes. NumPy and SciPy only."""

from fastreader.statistics.compare import Comparison, Condition, Contrast, compare
from fastreader.statistics.conformal import ConformalSets, coverage
from fastreader.statistics.effects import cohens_d, discordant_odds_ratio, minimum_detectable_effect, risk_difference
from fastreader.statistics.intervals import Interval, bootstrap, paired_bootstrap, wilson
from fastreader.statistics.selective import RiskCoverage, auroc, expected_calibration_error, risk_coverage
from fastreader.statistics.significance import holm, mcnemar, sign_flip, wilcoxon

__all__ = [
    "Comparison",
    "Condition",
    "ConformalSets",
    "Contrast",
    "Interval",
    "RiskCoverage",
    "auroc",
    "bootstrap",
    "cohens_d",
    "compare",
    "coverage",
    "discordant_odds_ratio",
    "expected_calibration_error",
    "holm",
    "mcnemar",
    "minimum_detectable_effect",
    "paired_bootstrap",
    "risk_coverage",
    "risk_difference",
    "sign_flip",
    "wilcoxon",
    "wilson",
]
