"""Checks of arguments that many functions take, with one wording."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

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


def check_number(name: str, value: object) -> None:
    """Raise InputError unless `value` is a finite number that JSON can hold, as what is saved must be."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise InputError(f"{name}: expected a finite number, got {value!r}")


def check_seed(name: str, value: object) -> None:
    """Raise InputError unless `value` can seed a generator: a whole number from 0."""
    check_whole(name, value, 0)


def seeded(seed: int) -> np.random.Generator:
    """The generator of a seed.

    Raises:
        InputError: no whole number from 0.
    """
    check_seed("seed", seed)
    return np.random.default_rng(seed)


def check_tokens(name: str, value: object) -> None:
    """Raise InputError unless `value` is a list of token ids; whether a model has them is for the pass to say."""
    if not isinstance(value, (Sequence, np.ndarray)) or isinstance(value, (str, bytes)):
        raise InputError(f"{name}: expected text or token ids, got {type(value).__name__}")
    try:
        found = np.asarray(value)
    except ValueError as error:  # lists of several lengths
        raise InputError(f"{name}: expected text or token ids, got {str(value)[:60]}") from error
    if found.ndim != 1 or (found.size and (found.dtype.kind not in "iu" or found.max() >= 2**63)):
        raise InputError(f"{name}: expected text or token ids, got {str(value)[:60]}")


def check_no_text(name: str, value: object) -> None:
    """Raise InputError where one text was given for a list, which would be taken letter by letter."""
    if isinstance(value, (str, bytes)):
        raise InputError(f"{name}: expected a list, got the text {value[:60]!r}")


def check_one_of(name: str, value: object, allowed: Iterable[str]) -> None:
    """Raise InputError unless `value` is one of `allowed`."""
    if value not in tuple(allowed):
        raise InputError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")
