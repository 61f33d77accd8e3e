"""Repair objects that hold locks in a forked child, before it uses what it has of its parent."""

from __future__ import annotations

import os
import sys
import weakref
from typing import Protocol


class Forked(Protocol):
    """An object that repairs itself in a forked child."""

    def after_fork(self) -> None:
        """Replace locks, which a thread that the child does not have may hold."""


_LIVING: weakref.WeakSet[Forked] = weakref.WeakSet()


def repair_in_children(item: Forked) -> None:
    """Call `item.after_fork` in every child that is forked while the item lives."""
    _LIVING.add(item)


def _after_fork() -> None:
    items = list(_LIVING)
    for item in items:
        item.after_fork()
    if items and "torch" in sys.modules:
        # OpenMP's threads do not survive a fork, and a pass on several would wait for them for ever.
        sys.modules["torch"].set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
