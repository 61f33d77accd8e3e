"""MoI (Mixture-of-Intervention): a better order of the passages from scores of many orders.

Importing this loads no torch; what runs a reader does. The functions have the names of their modules, and stand for
them as attributes here: reach what else a module holds by ``from fastreader.moi.debias import ...``.
"""

from fastreader.moi import analyses, baselines, distill
from fastreader.moi.answer import MoiAnswer, answer
from fastreader.moi.calibrate import calibrate
from fastreader.moi.cost import Cost
from fastreader.moi.debias import debias
from fastreader.moi.observe import observe
from fastreader.moi.options import Stopping
from fastreader.moi.planning import Plan, plan
from fastreader.moi.probe import Probe, probe
from fastreader.moi.ranked import Ranked, RankedPassage
from fastreader.moi.rerank import rerank
from fastreader.moi.types import Observations, PositionBias, Utilities

__all__ = [
    "Cost",
    "MoiAnswer",
    "Observations",
    "Plan",
    "PositionBias",
    "Probe",
    "Ranked",
    "RankedPassage",
    "Stopping",
    "Utilities",
    "analyses",
    "answer",
    "baselines",
    "calibrate",
    "debias",
    "distill",
    "observe",
    "plan",
    "probe",
    "rerank",
]
