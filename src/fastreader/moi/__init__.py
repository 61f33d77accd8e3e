"""MoI (Mixture-of-Intervention): a better order of the passages from scores of many orders.

Importing this loads no torch; what runs a reader does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastreader.moi.types import Observations, PositionBias, Utilities

_HOME = {
    "Observations": "types",
    "PositionBias": "types",
    "Utilities": "types",
}

__all__ = ["Observations", "PositionBias", "Utilities"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"fastreader.moi.{_HOME[name]}"), name)
    raise AttributeError(f"module 'fastreader.moi' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
