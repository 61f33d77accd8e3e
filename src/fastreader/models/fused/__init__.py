"""A fused forward for what most decoder families share, used only where it gives transformers' numbers."""

from fastreader.models.fused.attention import FusedAttention
from fastreader.models.fused.layer import FusedEnd, FusedLayer
from fastreader.models.fused.match import covers, describe, fuse, trial_starts
from fastreader.models.fused.mixed import MixedLayer
from fastreader.models.fused.parts import FusedFeedForward, FusedGatedNorm, FusedNorm, JoinedLinear, UpcastLinear
from fastreader.models.fused.step import FusedStep

__all__ = [
    "FusedAttention",
    "FusedEnd",
    "FusedFeedForward",
    "FusedGatedNorm",
    "FusedLayer",
    "FusedNorm",
    "FusedStep",
    "JoinedLinear",
    "MixedLayer",
    "UpcastLinear",
    "covers",
    "describe",
    "fuse",
    "trial_starts",
]
