"""The torch.library namespace ``fastreader``: where every op is defined, with its fake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

LIBRARY = torch.library.Library("fastreader", "FRAGMENT")  # type: ignore[no-untyped-call]
Fake = TypeVar("Fake", bound=Callable[..., Any])


def define(schema: str) -> Callable[[Fake], Fake]:
    """Define the op ``fastreader::<schema>``, whose results the decorated function makes without data (the fake)."""
    LIBRARY.define(schema)  # type: ignore[no-untyped-call]

    def register(fake: Fake) -> Fake:
        torch.library.register_fake(f"fastreader::{schema.partition('(')[0]}", fake, lib=LIBRARY)
        return fake

    return register
