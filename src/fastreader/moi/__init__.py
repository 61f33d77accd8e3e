"""MoI (Mixture-of-Intervention): a better order of the passages from scores of many orders.

Importing this package loads no torch. Its functions have the names of their modules and hide them as attributes; reach
other names of a module by ``from fastreader.moi.solve.debias import ...``.
"""

from fastreader.moi import analyses, baselines, distill
from fastreader.moi.calibration.calibrate import calibrate
from fastreader.moi.calibration.calibrate_reader import CalibrationCost, calibrate_reader, calibration_cost
from fastreader.moi.calibration.pool import Pool
from fastreader.moi.calibration.probe import Probe, probe
from fastreader.moi.quantities.observations import Observations, observe
from fastreader.moi.quantities.position_bias import PositionBias
from fastreader.moi.quantities.utilities import Utilities
from fastreader.moi.reorder.answer import MoiAnswer, answer
from fastreader.moi.reorder.planning import Cost, RerankPlan, Stopping, plan
from fastreader.moi.reorder.ranked import Ranked, RankedPassage
from fastreader.moi.reorder.rerank import rerank
from fastreader.moi.solve.debias import debias
from fastreader.scoring.marginal_answer import MarginalAnswer, marginal_answer

__all__ = [
    "CalibrationCost",
    "Cost",
    "MarginalAnswer",
    "MoiAnswer",
    "Observations",
    "Pool",
    "PositionBias",
    "Probe",
    "Ranked",
    "RankedPassage",
    "RerankPlan",
    "Stopping",
    "Utilities",
    "analyses",
    "answer",
    "baselines",
    "calibrate",
    "calibrate_reader",
    "calibration_cost",
    "debias",
    "distill",
    "marginal_answer",
    "observe",
    "plan",
    "probe",
    "rerank",
]
