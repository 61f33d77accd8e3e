"""Checks of arguments that many functions take, with one wording."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fastreader.errors import InputError


def check_whole(
    name: str, value: object, least: int = 1, most: int | None = None, *, none: bool = False, saved: bool = False
) -> None:
    """Raise InputError unless `value` is a whole number in [least, most], or None where `none`.

    Where it is `saved` as JSON, NumPy's whole numbers are refused too.
    """
    if none and value is None:
        return
    whole = isinstance(value, int if saved else (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):  # type: ignore[operator]
        upper = "" if most is None else f" to {most}"
        raise InputError(f"{name}: expected a whole number from {least}{upper}{' or None' * none}, got {value!r}")


def check_one_of(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise InputError unless `value` is one of `allowed`."""
    if value not in tuple(allowed):
        raise InputError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")
