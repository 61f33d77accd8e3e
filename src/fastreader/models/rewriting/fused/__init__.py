"""Fuse what most decoder families share, where the result has transformers' numbers."""

from fastreader.models.rewriting.fused.attention import FusedAttention
from fastreader.models.rewriting.fused.layer import FusedEnd, FusedLayer, MixedLayer
from fastreader.models.rewriting.fused.match import covers, describe, fuse_layers, fuse_parts
from fastreader.models.rewriting.fused.parts import (
    FusedFeedForward,
    FusedGatedNorm,
    FusedNorm,
    JoinedLinear,
    UpcastLinear,
)
from fastreader.models.rewriting.fused.step import FusedStep

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
    "fuse_layers",
    "fuse_parts",
]
