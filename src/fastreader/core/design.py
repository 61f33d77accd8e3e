"""A design: distinct orderings of passages, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Design:
    """Distinct orderings of passages, all of one length.

    Attributes:
        permutations: int64 [M orderings, L places], read-only; any integers [M, L] are taken and checked.
        n: number of passages N; L <= N.
        name: what made it.
        made: the arguments it was made with.

    Raises:
        InputError: no rows, rows of several lengths, no integers, a passage out of range or twice in a row, a
            row that comes twice; the message names the row, counted from 0.
    """

    permutations: IntArray = field(repr=False)
    n: int
    name: str = "explicit"
    made: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_n(self.n)
        object.__setattr__(self, "permutations", _validated(self.permutations, self.n))

    def __len__(self) -> int:
        return len(self.permutations)

    @property
    def length(self) -> int:
        """Places L of each ordering."""
        return int(self.permutations.shape[1])

    @property
    def given(self) -> int:
        """Passages read when every ordering is read alone: M * L."""
        return int(self.permutations.size)

    @property
    def computed(self) -> int:
        """Passages read when shared beginnings are read once: nodes of the orderings' prefix tree."""
        return sum(len(np.unique(self.permutations[:, : k + 1], axis=0)) for k in range(self.length))


def check_n(n: object) -> int:
    """`n` as a number of passages.

    Raises:
        InputError: it is none.
    """
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise InputError(f"permutations: expected at least one passage, got n = {n!r}")
    return int(n)


def check_count(name: str, value: int, most: int, what: str) -> None:
    """Refuse an argument outside of [1, most], where `what` says how `most` comes about.

    Raises:
        InputError: it is outside.
    """
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not 1 <= value <= most:
        raise InputError(f"{name} must be in [1, {what} = {most}], got {value!r}")


def _validated(rows: Any, n: int) -> IntArray:
    if isinstance(rows, Sequence):
        rows = _stacked(rows)
    rows = np.asarray(rows)
    if rows.dtype.kind not in "iu" or rows.ndim != 2 or not rows.size:
        raise InputError(
            f"permutations: expected integers [M orderings, L places], at least one of each, "
            f"got {rows.dtype} {list(rows.shape)}"
        )
    if rows.shape[1] > n:
        raise InputError(f"permutations: expected at most {n} places for {n} passages, got {rows.shape[1]}")
    outside = (rows < 0) | (rows >= n)
    if outside.any():
        row, place = np.argwhere(outside)[0]
        raise InputError(f"permutations: row {row}: expected passages in [0, {n}), got {rows[row, place]}")
    ordered = np.sort(rows, axis=1)
    repeats = ordered[:, 1:] == ordered[:, :-1]
    if repeats.any():
        row, place = np.argwhere(repeats)[0]
        raise InputError(f"permutations: row {row}: expected each passage once, got {ordered[row, place]} twice")
    firsts = np.unique(rows, axis=0, return_index=True)[1]
    if len(firsts) < len(rows):
        row = np.setdiff1d(np.arange(len(rows)), firsts)[0]
        same = np.flatnonzero((rows == rows[row]).all(axis=1))[0]
        raise InputError(f"permutations: row {row}: expected distinct rows, got row {same} again: {rows[row].tolist()}")
    frozen: IntArray = rows.astype(np.int64)
    frozen.setflags(write=False)
    return frozen


def _stacked(rows: Sequence[Any]) -> npt.NDArray[Any]:
    """Rows given as lists, as one array."""
    arrays: list[npt.NDArray[Any]] = []
    for number, row in enumerate(rows):
        try:
            array = np.asarray(row)
        except ValueError:
            array = np.empty((), dtype=object)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            raise InputError(f"permutations: row {number}: expected a list of integers, got {row!r}")
        if arrays and len(array) != len(arrays[0]):
            raise InputError(
                f"permutations: row {number}: expected {len(arrays[0])} places as in row 0, got {len(array)}"
            )
        arrays.append(array)
    return np.stack(arrays) if arrays else np.empty((0, 0), dtype=np.int64)
