"""Record and SavedRecord: dataclasses whose JSON form is their fields.

`to_dict` reads the values: arrays and tuples become lists, nested dataclasses become objects, and a field that is not a
finite number becomes null. `from_dict` reads the annotations: it checks each value against its field's type and
rebuilds arrays by dtype. A class with another JSON form overrides these two, and `save` and `load` follow::

    @dataclass(frozen=True)
    class Scores(SavedRecord):
        names: list[str]
        values: npt.NDArray[np.float64]
        _shapes: ClassVar = {"names": "K", "values": "M K"}

    Scores.from_dict({"names": ["a"], "values": [[1, 2]]})
    # InputError: Scores.from_dict: values: expected shape [M, 1], got float64 [1, 2]
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import enum
import functools
import math
import os
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from fastreader.core.checked import accept, checked_methods, kind_of
from fastreader.core.checks import check_output, expect, located, rebuilding, require
from fastreader.data.files import read_object, write_json

_LISTS = {list: list, abc.Sequence: list, tuple: tuple}
_MAPPINGS = (dict, abc.Mapping)
_kind_of = functools.cache(kind_of)


class Record:
    """Base of dataclasses that convert to JSON values by their fields."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]
    _nulls: ClassVar[Mapping[str, float]] = {}
    """The number that null represents in an array, by field."""

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as JSON values."""
        return values_of(self)


@checked_methods
class SavedRecord(Record):
    """Base of dataclasses that also convert back, and are saved as files."""

    _shapes: ClassVar[Mapping[str, str]] = {}
    """Dimensions of arrays and lists, by field: a letter represents one size in all fields."""
    _indent: ClassVar[int | None] = 1
    """Indent of the file; None writes one line."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Rebuild from the result of `to_dict`, ignoring keys that are not attributes.

        Raises:
            InputError: if an attribute is missing, or has another type or shape.
        """
        found: Self = rebuilt(cls, values, f"{cls.__name__}.from_dict")
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file atomically."""
        check_output("path", path)
        write_json(path, self.to_dict(), indent=self._indent)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file written by `save`.

        Raises:
            InputError: if the file cannot be read or holds something else.
        """
        values = read_object(path)
        with located(os.fspath(path)):
            return cls.from_dict(values)


def values_of(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values."""
    nulls = getattr(record, "_nulls", {})
    found = {}
    for field in (field for field in dataclasses.fields(record) if field.init):
        value = getattr(record, field.name)
        if isinstance(value, float) and not math.isfinite(value):
            value = None
        elif field.name in nulls:
            null = nulls[field.name]
            value = np.where(np.isnan(value) if math.isnan(null) else value == null, None, value)
        found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Record):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return values_of(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def rebuilt(cls: Any, values: Mapping[str, Any], name: str) -> Any:
    """Return the dataclass `cls` of JSON values, with `name` at the start of error messages.

    Raises:
        InputError: if a value is missing or does not fit.
    """
    expect(isinstance(values, Mapping), name, "a dictionary", values)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    missing = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING and f.name not in values]
    if missing:  # the message is not for free
        require(False, f"{name}: {', '.join(missing)} missing in values with keys {sorted(map(str, values))}")
    nulls, found = getattr(cls, "_nulls", {}), {}
    with rebuilding(name, values):
        for key in (field.name for field in fields if field.name in values):
            value = _filled(values[key], nulls[key]) if key in nulls else values[key]
            found[key] = _read(f"{name}: {key}", _hints(cls)[key], value)
        sizes: dict[str, int] = {}
        for key, dims in getattr(cls, "_shapes", {}).items():
            if found.get(key) is not None:
                found[key] = _shaped(f"{name}: {key}", found[key], dims.split(), sizes)
        return cls(**found)


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(hint) or hint, typing.get_args(hint)


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _filled(value: Any, null: float) -> Any:
    """Return nested lists with `null` for every None."""
    return [_filled(item, null) for item in value] if isinstance(value, list) else null if value is None else value


def _read(name: str, hint: Any, value: Any) -> Any:
    """Return the value of a field that JSON holds as `value`."""
    origin, arguments = _parts(hint)
    if origin in (typing.Union, types.UnionType) and len(rest := [h for h in arguments if h is not type(None)]) == 1:
        return None if value is None else _read(name, rest[0], value)
    if isinstance(origin, type) and issubclass(origin, SavedRecord):
        with located(name):
            return origin.from_dict(value)
    if dataclasses.is_dataclass(origin):
        return rebuilt(origin, value, name)
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return origin(value)
    if origin is np.ndarray:
        return np.array(accept(name, value, _kind_of(hint)), dtype=typing.get_args(arguments[1])[0])
    if origin in _MAPPINGS and arguments:
        expect(isinstance(value, Mapping), name, "a dictionary", value)
        key = int if arguments[0] is int else str
        return {key(k): _read(f"{name}[{k!r}]", arguments[1], item) for k, item in value.items()}
    if origin in _LISTS and arguments:
        expect(isinstance(value, (list, tuple)), name, "a list", value)
        hints = arguments if origin is tuple and arguments[-1] is not Ellipsis else arguments[:1] * len(value)
        expect(len(hints) == len(value), name, f"{len(hints)} values", value)
        return _LISTS[origin](_read(f"{name}[{i}]", *each) for i, each in enumerate(zip(hints, value, strict=True)))
    return accept(name, value, _kind_of(hint))


def _shaped(name: str, value: Any, dims: list[str], sizes: dict[str, int]) -> Any:
    """Return `value` if it has these dimensions, and record the sizes of letters seen for the first time."""
    wanted = [int(dim) if dim.isdigit() else sizes.get(dim, -1) for dim in dims]
    if isinstance(value, np.ndarray) and not value.size:  # of lists without items, the inner dimensions do not show
        value = value.reshape(*value.shape, *(max(size, 0) for size in wanted[value.ndim :]))
    shape = value.shape if isinstance(value, np.ndarray) else (len(value),)
    fits = len(shape) == len(wanted) and all(want in (-1, size) for want, size in zip(wanted, shape, strict=True))
    expected = ", ".join(dim if want < 0 else str(want) for dim, want in zip(dims, wanted, strict=True))
    expect(fits, name, f"shape [{expected}]", value)
    sizes.update(zip(dims, shape, strict=True))
    return value
