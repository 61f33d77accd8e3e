"""Argument checks with one wording: ``NAME: expected WHAT, got VALUE``.

`expect` is the general form; `require` takes a whole sentence. The others cover what many functions take: integers,
numbers, texts, choices, lists. Each raises InputError or returns None, so a function reads as its checks followed by
its work::

    check_int("k", k)
    check_number("share", share, above=0, below=1)
    expect(len(rows) == n, "rows", f"one for each of {n} questions", len(rows))
"""

from __future__ import annotations

import abc
import contextlib
import json
import math
import os
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, MappingView, Sequence, Set
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError


class Table(abc.ABC):  # noqa: B024  # the hook decides
    """The type of data frames of any library, which yield their columns or the columns' names, not their rows."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        return hasattr(other, "columns") and hasattr(other, "__getitem__")


class Structure(abc.ABC):  # noqa: B024  # the hook decides
    """The type of records that yield their fields: models of pydantic, and replies of Elasticsearch."""

    @classmethod
    def __subclasshook__(cls, other: type) -> bool:
        reply = any(base.__name__ == "ObjectApiResponse" for base in other.__mro__)
        return reply or hasattr(other, "__pydantic_fields__")


UNORDERED = (str, bytes, bytearray, memoryview, Mapping, Set, MappingView)  # not lists: see check_list
NOT_LISTS = (*UNORDERED, Table, Structure)
LARGEST_SEED = 2**63 - 1  # as an int64, which random streams are keyed with

MOST_STARTS = 10_000  # random starts of a search
MOST_RESAMPLES = 10_000_000  # draws of a bootstrap or a permutation test

_INTEGERS = (int, np.integer)
_NUMBERS = (int, float, np.integer, np.floating)
_SURROGATE = re.compile("[\ud800-\udfff]")
_SHOWN = 80  # characters of a value in a message
_TOKENS = "text or token ids"
Given = TypeVar("Given")


def expect(condition: bool, name: str, expected: str, value: object) -> None:
    """Raise InputError "NAME: expected EXPECTED, got VALUE" unless `condition`."""
    if not condition:
        raise InputError(f"{name}: expected {expected}, got {shown(value)}")


def require(condition: bool, message: str) -> None:
    """Raise InputError(message) unless `condition`: for a rule that needs a whole sentence."""
    if not condition:
        raise InputError(message)


def given(value: Given | None, message: str) -> Given:
    """Return `value`, or raise InputError(message) if it is None."""
    require(value is not None, message)
    return value  # type: ignore[return-value]  # require() has raised for None


@contextlib.contextmanager
def rejecting(message: str, *errors: type[Exception]) -> Iterator[None]:
    """Raise InputError "MESSAGE (ERROR)" if the block raises one of `errors`."""
    try:
        yield
    except errors as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"{message} ({reason})" if reason else message) from error


@contextlib.contextmanager
def located(place: str) -> Iterator[None]:
    """Put `place` (a file and its line, an example) before the message of an InputError raised in the block."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


@contextlib.contextmanager
def rebuilding(name: str, values: Iterable[str]) -> Iterator[None]:
    """Raise InputError with the keys of saved `values` if the block that rebuilds an object finds them unfit."""
    try:
        yield
    except InputError:
        raise
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise InputError(f"{name}: {error!r} in values with keys {sorted(values)}") from error


def shown(value: object) -> str:
    """Return `value` as error messages show it: arrays by shape, data frames by columns, others by a short repr."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    try:
        if isinstance(value, Table):
            return f"a {type(value).__name__}; pass a column or its rows, in pandas df.to_dict('records')"
        text = repr(value)
    except Exception as error:  # a class of the caller may raise anything here, and the message is about its value
        text = f"a {type(value).__name__} without a repr ({type(error).__name__})"
    text = re.sub(r"\s*\n\s*", " ", text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def is_missing(value: object) -> bool:
    """Return whether `value` is None, or what tables hold for a missing value: NaN, or pandas' NA or NaT."""
    if isinstance(value, (float, np.floating)):
        return math.isnan(value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def is_int(value: object) -> bool:
    """Return whether `value` is an integer of Python or NumPy, and not a bool."""
    return isinstance(value, _INTEGERS) and not isinstance(value, bool)


def fits_float(value: Any) -> bool:
    """Return whether a float can hold the number `value`: an integer of 400 digits is too large."""
    try:
        float(value)
    except OverflowError:
        return False
    return True


def check_int(
    name: str,
    value: object,
    minimum: int = 1,
    maximum: int | None = None,
    *,
    optional: bool = False,
    json_value: bool = False,
) -> None:
    """Check for an integer in [minimum, maximum], with `optional` and `json_value` as in `check_number`."""
    if optional and value is None:
        return
    number: Any = value
    # Not is_int: every call of a warm path comes here, and enters one function less.
    kind = isinstance(value, int if json_value else _INTEGERS) and not isinstance(value, bool)
    if not (kind and minimum <= number and (maximum is None or number <= maximum)):
        bounds = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        expect(False, name, f"an integer {bounds}{' or None' * optional}", value)


def check_number(
    name: str,
    value: object,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    below: float | None = None,
    optional: bool = False,
    json_value: bool = False,
) -> None:
    """Check for a finite number within bounds.

    Args:
        name, value: of the argument.
        minimum, maximum: bounds that are included; None sets no bound.
        above, below: bounds that are excluded; None sets no bound.
        optional: also accept None.
        json_value: accept only Python's numbers, because the value will be saved as JSON.
    """
    if optional and value is None:
        return
    number: Any = value
    kind = (
        isinstance(value, _NUMBERS)
        and not isinstance(value, bool)
        and (isinstance(value, (int, float)) or not json_value)
    )
    kind = kind and (isinstance(number, float) or fits_float(number)) and math.isfinite(number)
    low = kind and (minimum is None or number >= minimum) and (above is None or number > above)
    if not (low and (maximum is None or number <= maximum) and (below is None or number < below)):
        words = (("of at least", minimum), ("above", above), ("at most", maximum), ("below", below))
        bounds = " and ".join(f"{word} {bound:g}" for word, bound in words if bound is not None)
        expect(False, name, f"a finite number {bounds}".rstrip() + " or None" * optional, value)


def check_seed(name: str, value: object) -> None:
    """Check for a generator's seed: an integer from 0 to `LARGEST_SEED`."""
    check_int(name, value, 0)
    seed: Any = value
    expect(seed <= LARGEST_SEED, name, f"at most {LARGEST_SEED}", value)


def random_generator(seed: int) -> np.random.Generator:
    """Return NumPy's generator for a seed.

    Raises:
        InputError: if `seed` is not an integer of at least 0.
    """
    check_seed("seed", seed)
    return np.random.default_rng(seed)


def check_text(name: str, value: object, *, empty: bool = False, optional: bool = False) -> None:
    """Check for a text, with more than white space in it unless `empty`, or for None if `optional`."""
    if optional and value is None:
        return
    text = isinstance(value, str) and (empty or bool(value.strip()))
    if isinstance(value, str) and not value.isascii():
        with located(name):
            check_utf8(value)
    expect(text, name, ("text" if empty else "text that is not empty") + " or None" * optional, value)


def check_utf8(text: str) -> None:
    """Check that UTF-8 can hold `text`."""
    if (half := _SURROGATE.search(text)) is not None:
        place = f"half a surrogate pair at character {half.start()} of {shown(text)}"
        raise InputError(f"expected text that UTF-8 can hold, got {place}")


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Check for one of `choices`."""
    allowed = tuple(choices)
    expect(isinstance(value, str) and value in allowed, name, f"one of {', '.join(allowed)}", value)


def check_list(name: str, value: object, *, of: str = "") -> None:
    """Check for a list of items named `of`, or another iterable with an order.

    A set has no order, a dictionary and a data frame are more than a list of their keys, and a text would yield its
    letters.
    """
    listed = isinstance(value, Iterable) and not isinstance(value, NOT_LISTS) and getattr(value, "ndim", 1) > 0
    expect(listed, name, f"a list of {of}" if of else "a list", value)


def check_texts(name: str, value: object, *, empty: bool = False) -> None:
    """Check for a list of texts, each with more than white space in it unless `empty`."""
    expect(isinstance(value, Collection) and not isinstance(value, NOT_LISTS), name, "a list of texts", value)
    texts: Any = value
    for index, text in enumerate(texts):
        check_text(f"{name}[{index}]", text, empty=empty)


def as_integers(value: Any) -> npt.NDArray[Any]:
    """Return what `np.asarray` returns, in half the time if `value` is a list or a tuple of integers."""
    if type(value) in (list, tuple) and value and type(value[0]) is int:
        with contextlib.suppress(TypeError, OverflowError):  # there is something else among them
            return np.frombuffer(array("q", value), dtype=np.int64)
    return np.asarray(value)


def check_tokens(name: str, value: object) -> None:
    """Check for a list of token ids, which need not be in the vocabulary: planning a pass checks that."""
    expect(isinstance(value, (Sequence, np.ndarray)) and not isinstance(value, (str, bytes)), name, _TOKENS, value)
    try:
        found = as_integers(value)
    except ValueError:  # lists of several lengths
        found = np.empty(1, dtype=object)
    integers = found.dtype.kind in "iu" and (not found.size or found.max() < 2**63)
    expect(found.ndim == 1 and (not found.size or integers), name, _TOKENS, value)


def check_keys(name: str, values: Mapping[str, object], known: Iterable[str]) -> None:
    """Check that a mapping has no key besides `known`."""
    allowed = tuple(known)
    unknown = sorted(str(key) for key in values if key not in allowed)
    expect(not unknown, name, f"no keys besides {', '.join(allowed) or 'none'}", ", ".join(unknown))


def check_output(name: str, path: str | os.PathLike[str]) -> None:
    """Check that a file can be written at `path`: no folder is there, and its own folder exists."""
    expect(not Path(path).is_dir(), name, "a file, not a folder", os.fspath(path))
    expect(Path(path).parent.is_dir(), name, "a file in a folder that exists", os.fspath(path))


def check_json(name: str, value: object) -> None:
    """Check that JSON can hold `value`, so that a result can be saved with it."""
    try:
        json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False).encode()
    except (RecursionError, TypeError, ValueError) as error:
        raise InputError(f"{name}: expected JSON values, got {shown(value)} ({error})") from error
