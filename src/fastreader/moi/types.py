"""What MoI reads and returns: observations, a position bias, utilities. NumPy only."""

from fastreader.moi.arrays import KINDS, FloatArray, IntArray
from fastreader.moi.observations import Observations
from fastreader.moi.position_bias import SIGNS, PositionBias, check_position_bias
from fastreader.moi.utilities import ORDERS, Utilities

__all__ = [
    "KINDS",
    "ORDERS",
    "SIGNS",
    "FloatArray",
    "IntArray",
    "Observations",
    "PositionBias",
    "Utilities",
    "check_position_bias",
]
