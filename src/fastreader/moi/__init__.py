"""MoI (Mixture-of-Intervention): a better order of the passages from scores of many orders.

Importing this package loads no torch. Its functions have the names of their modules and hide them as attributes; reach
other names of a module by ``from fastreader.moi.debias import ...``.
"""

from fastreader.moi import analyses, baselines, distill
from fastreader.moi.answer import MoiAnswer, answer
from fastreader.moi.arrange import Arranger, arrange
from fastreader.moi.calibrate import calibrate
from fastreader.moi.calibrate_reader import CalibrationCost, calibrate_reader, calibration_cost
from fastreader.moi.debias import debias
from fastreader.moi.marginal import MarginalAnswer, marginal_answer
from fastreader.moi.observations import Observations, observe
from fastreader.moi.planning import Cost, Plan, Stopping, plan
from fastreader.moi.pool import Pool
from fastreader.moi.position_bias import PositionBias
from fastreader.moi.probe import Probe, probe
from fastreader.moi.ranked import Ranked, RankedPassage
from fastreader.moi.rerank import rerank
from fastreader.moi.utilities import Utilities

__all__ = [
    "Arranger",
    "CalibrationCost",
    "Cost",
    "MarginalAnswer",
    "MoiAnswer",
    "Observations",
    "Plan",
    "Pool",
    "PositionBias",
    "Probe",
    "Ranked",
    "RankedPassage",
    "Stopping",
    "Utilities",
    "analyses",
    "answer",
    "arrange",
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
