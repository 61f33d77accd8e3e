"""Design: distinct orderings of passages, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import check_int, expect

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Design:
    """Distinct orderings of passages, all of one length.

    Attributes:
        permutations: int64 [M orderings, L places], read-only; any array or lists of integers [M, L] are converted.
        n: number of passages N; L <= N.
        name: name of the function that made the design.
        made: arguments of that function.

    Raises:
        InputError: if there are no rows, rows differ in length, are not integers, hold a passage out of range or twice,
            or are repeated; the message names the row, counted from 0.
    """

    permutations: IntArray = field(repr=False)
    n: int
    name: str = "explicit"
    made: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_int("permutations: n", self.n)
        n, name = self.n, "permutations"
        rows: Any = self.permutations  # before it is converted
        if isinstance(rows, Sequence):
            rows = _stacked(name, rows)
        rows = np.asarray(rows)
        matrix = rows.dtype.kind in "iu" and rows.ndim == 2 and rows.size > 0
        expect(matrix, name, "integers [M orderings, L places], at least one of each", rows)
        expect(rows.shape[1] <= n, name, f"at most {n} places for {n} passages", rows.shape[1])
        outside = (rows < 0) | (rows >= n)
        if outside.any():
            row, place = np.argwhere(outside)[0]
            expect(False, f"{name}: row {row}", f"passages in [0, {n})", int(rows[row, place]))
        ordered = np.sort(rows, axis=1)
        repeats = ordered[:, 1:] == ordered[:, :-1]
        if repeats.any():
            row = np.argwhere(repeats)[0, 0]
            expect(False, f"{name}: row {row}", "each passage once", rows[row].tolist())
        firsts = np.unique(rows, axis=0, return_index=True)[1]
        if len(firsts) < len(rows):
            row = np.setdiff1d(np.arange(len(rows)), firsts)[0]
            same = np.flatnonzero((rows == rows[row]).all(axis=1))[0]
            expect(False, f"{name}: row {row}", f"a row different from row {same}", rows[row].tolist())
        frozen: IntArray = rows.astype(np.int64)
        frozen.setflags(write=False)
        object.__setattr__(self, "permutations", frozen)

    def __len__(self) -> int:
        return len(self.permutations)

    @property
    def length(self) -> int:
        """Number of places L of each ordering."""
        return int(self.permutations.shape[1])

    @property
    def given(self) -> int:
        """Number of passages read if every ordering is read by itself: M * L."""
        return int(self.permutations.size)

    @property
    def computed(self) -> int:
        """Number of passages read if shared prefixes are read once: nodes of the orderings' prefix tree."""
        return sum(len(np.unique(self.permutations[:, : k + 1], axis=0)) for k in range(self.length))


def _stacked(name: str, rows: Sequence[Any]) -> npt.NDArray[Any]:
    """Return rows given as lists as one array."""
    arrays: list[npt.NDArray[Any]] = []
    for number, row in enumerate(rows):
        try:
            array = np.asarray(row)
        except ValueError:  # nested lists of several lengths
            array = np.empty((), dtype=object)
        integers = array.ndim == 1 and (array.dtype.kind in "iu" or not array.size)
        expect(integers, f"{name}: row {number}", "a list of integers", row)
        places = len(arrays[0]) if arrays else len(array)
        expect(len(array) == places, f"{name}: row {number}", f"{places} places as in row 0", len(array))
        arrays.append(array)
    return np.stack(arrays) if arrays else np.empty((0, 0), dtype=np.int64)
