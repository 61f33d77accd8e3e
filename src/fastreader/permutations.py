"""Designs: the orderings in which N passages are read.

A row of a design lists passages in reading order: ``permutations[i, j]`` is the passage at place j of ordering i,
a number in [0, N) into the retriever's order. Seeds make a design reproducible under one NumPy version.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_number, check_seed, expect, located, random_generator
from fastreader.errors import InputError

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


__all__ = [
    "Design",
    "Spec",
    "cyclic",
    "cyclic_reversed",
    "explicit",
    "identity",
    "latin",
    "model_rank",
    "prefix_sharing",
    "pruned",
    "random",
    "resolve",
    "variable_length",
]

Spec = str | Design | npt.ArrayLike | Callable[[int], "Design | npt.ArrayLike"]


MOST_PASSAGES = 2_000  # N of a design: N orderings of N places take 32 MB
MOST_PLACES = 50_000_000  # orderings times places of a design, 8 bytes each


@checked
def identity(n: int) -> Design:
    """Return the retriever's order as the only one."""
    check_int("permutations: n", n, 1, MOST_PASSAGES)
    return Design(np.arange(n)[None], n, "identity")


@checked
def cyclic(n: int) -> Design:
    """Return the N rotations of the retriever's order: row k is ``[k..N-1, 0..k-1]`` (phi^(k) of MoI).

    Each passage is once at each place. This design alone does not identify MoI's model: see `model_rank`.
    """
    check_int("permutations: n", n, 1, MOST_PASSAGES)
    return Design(_rotations(np.arange(n)[None]), n, "cyclic")


@checked
def cyclic_reversed(n: int) -> Design:
    """Return the N rotations of the retriever's order, then the N rotations of the reversed order.

    Each passage is equally often at each place. For N <= 2 the two sets coincide and N rows remain.
    """
    check_int("permutations: n", n, 1, MOST_PASSAGES)
    orders = np.arange(n)[None] if n <= 2 else np.stack([np.arange(n), np.arange(n)[::-1]])
    return Design(_rotations(orders), n, "cyclic_reversed")


@checked
def random(n: int, count: int | None = None, seed: int = 0) -> Design:
    """Draw distinct orderings, uniformly at random.

    Args:
        n: number of passages N.
        count: number of rows; by default 3N as in MoI, or all N! if those are fewer (N <= 3).
        seed: seed of the generator.

    Raises:
        InputError: if `count` is not in [1, N!].
    """
    check_int("permutations: n", n, 1, MOST_PASSAGES)
    most = math.factorial(n)
    count = min(3 * n, most) if count is None else count
    check_int("random: count", count, 1, min(most, MOST_PLACES // n))
    check_seed("random: seed", seed)
    return Design(_distinct(n, count, np.random.default_rng(seed)), n, "random", {"count": count, "seed": seed})


@checked
def latin(n: int, squares: int = 1, seed: int = 0) -> Design:
    """Draw random Latin squares, one after another: in each, every passage is once at every place.

    The squares are random isotopes of the cyclic one: with a random relabelling g and a random f with f(0) = 0,
    row k reads ``g[(k + f(j)) mod N]`` at place j. Distinct f give squares without a row in common. (They are
    not uniform over all Latin squares, which have other isotopy classes for N >= 4.)

    Args:
        n: number of passages N.
        squares: number of squares, of N rows each.
        seed: seed of the generator.

    Raises:
        InputError: if `squares` is not in [1, (N-1)!]; more squares would repeat rows.
    """
    check_int("permutations: n", n, 1, MOST_PASSAGES)
    check_int("latin: squares", squares, 1, min(math.factorial(n - 1), MOST_PLACES // n**2))
    check_seed("latin: seed", seed)
    rng = np.random.default_rng(seed)
    relabel = rng.permutation(n)
    tails = _distinct(n - 1, squares, rng) + 1
    orders = np.concatenate([np.zeros((squares, 1), dtype=np.int64), tails], axis=1)
    return Design(relabel[_rotations(orders)], n, "latin", {"squares": squares, "seed": seed})


@checked
def prefix_sharing(n: int, count: int | None = None, seed: int = 0) -> Design:
    """Return distinct, balanced orderings that share long prefixes: cycles with rotated tails.

    The first N rows are the rotations of a randomly relabelled order. Each further N rows are the same with the
    last t places rotated by one, t = 2, 3, ..., N-1; then by two, t = 3, 4, ...; so they recompute only those t.

    - Each passage is ``count / N`` times at each place.
    - With 2N rows or more, `model_rank` is 2N-2, the maximum for MoI's model, for every N >= 3 (tested to 20).
    - The default 3N rows compute N(N+5) passages for N >= 4; 3N random rows compute nearly 3N^2. That is fewer than
      `random` by a factor of at least 1.1 at N = 5, 1.25 at 6, 1.5 at 8, 1.7 at 10, 2.2 at 20 (tested); there is no
      gain for N <= 4.

    The price: a single question determines the position bias less well than with random rows (3N rows: standard
    error 1.2 times that of random rows at N = 6, 1.8 times at N = 10), so estimate the bias from many questions.
    Utilities under a known bias are nearly as accurate (equally to N = 10, 1.25 times the error at N = 20).

    Args:
        n: number of passages N.
        count: number of rows, a multiple of N up to N(1 + (N-1)(N-2)/2); 3N by default, N for N <= 2, 6 for N = 3.
        seed: seed of the relabelling; it changes neither rank nor cost.

    Raises:
        InputError: if `count` is not such a multiple.
    """
    check_int("permutations: n", n, 1, MOST_PASSAGES)
    most = n * (1 + (n - 1) * (n - 2) // 2)
    count = min(3 * n, most) if count is None else count
    check_int("prefix_sharing: count", count, 1, min(most, MOST_PLACES // n))
    check_seed("prefix_sharing: seed", seed)
    expect(count % n == 0, "prefix_sharing: count", f"a multiple of n = {n} for balance", count)
    rotated = ((tail, shift) for shift in range(1, n) for tail in range(shift + 1, n))
    orders = [
        np.concatenate([np.arange(n - tail), n - tail + np.roll(np.arange(tail), -shift)])
        for tail, shift in itertools.islice(itertools.chain([(0, 0)], rotated), count // n)
    ]
    relabel = np.random.default_rng(seed).permutation(n)
    rows = relabel[_rotations(np.stack(orders))]
    return Design(rows, n, "prefix_sharing", {"count": count, "seed": seed})


def explicit(array: npt.ArrayLike, n: int) -> Design:
    """Return a design of the caller's orderings: integers [M, L] in [0, n), checked by `Design`."""
    with located("array"):
        return Design(array, n)  # type: ignore[arg-type]


@checked
def pruned(design: Design, length: int) -> Design:
    """Keep the first `length` places of each ordering, and the first of rows that become equal.

    Dropping repeats can break the balance (not for `cyclic`), and a `prefix_sharing` design pruned by more than its
    tails is a cyclic one again.

    Raises:
        InputError: if `length` is not in [1, length of the design].
    """
    check_int("pruned: length", length, 1, design.length)
    rows = design.permutations[:, :length]
    first = np.sort(np.unique(rows, axis=0, return_index=True)[1])
    return Design(rows[first], design.n, f"{design.name}[:{length}]", {**design.made, "length": length})


@checked
def variable_length(scores: npt.ArrayLike, share: float = 0.9, temperature: float = 1.0) -> int:
    """Return the number of passages worth reading: the shortest prefix of the retriever's order with enough mass.

    That is the smallest L with ``sum(softmax(scores / temperature)[:L]) >= share``. (MoI prunes by retriever
    scores without stating a rule.) Scores need not descend.

    Args:
        scores: float [N], in the retriever's order, larger is better.
        share: share of the softmax mass, in (0, 1]; 1 keeps all passages.
        temperature: in the unit of the scores; raise it for scores of wide range, such as BM25's.

    Raises:
        InputError: if there are no scores, a score is not finite, or `share` or `temperature` is out of range.
    """
    values = np.asarray(scores, dtype=np.float64)
    finite = values.ndim == 1 and values.size > 0 and bool(np.isfinite(values).all())
    expect(finite, "variable_length: scores", "finite numbers [N], N >= 1", scores)
    check_number("variable_length: share", share, above=0, maximum=1)
    check_number("variable_length: temperature", temperature, above=0)
    if share == 1:
        return len(values)
    mass = np.cumsum(np.exp((values - values.max()) / temperature))
    return int(np.searchsorted(mass, share * mass[-1])) + 1


@checked
def model_rank(design: Design, seed: int = 0) -> int:
    """Return the number of parameters of MoI's model that the design's scores determine.

    The model is ``s_i = sum_j a_j u[pi_i[j]]`` with ``sum_j a_j = 1``: L - 1 free biases and N utilities. The result
    is the rank of the Jacobian of s [M] in those L - 1 + N parameters at a generic (random) point. For full
    orderings, L = N, it is at most 2N-2: with a = 1/N + da and u = mean(u) + du, the scores depend only on
    mean(u) and on the product of da and du, so (c da, du / c) fits equally well for every c != 0.

    The cyclic design reaches only N, cyclic_reversed about 3N/2 - 1.
    """
    rng = random_generator(seed)
    rows, places = design.permutations, design.length
    bias = rng.standard_normal(places)
    bias += (1 - bias.sum()) / places
    utility = rng.standard_normal(design.n)
    by_bias = utility[rows[:, 1:]] - utility[rows[:, :1]]  # [M, L-1], a_0 = 1 - sum of the others
    by_utility = np.zeros((len(rows), design.n))
    np.put_along_axis(by_utility, rows, bias[None], axis=1)
    values = np.linalg.svd(np.concatenate([by_bias, by_utility], axis=1), compute_uv=False)
    return int((values > 1e-9 * values[0]).sum())


_NAMED: dict[str, Callable[[int], Design]] = {
    "identity": identity,
    "cyclic": cyclic,
    "cyclic_reversed": cyclic_reversed,
}
_NAMED_SEEDED: dict[str, Callable[[int, int | None, int], Design]] = {
    "random": random,
    "latin": lambda n, squares, seed: latin(n, 1 if squares is None else squares, seed),
    "prefix_sharing": prefix_sharing,
}


def resolve(spec: Spec, n: int, seed: int = 0) -> Design:
    """Return the design that `spec` describes for n passages.

    Args:
        spec: a name: "identity", "cyclic", "cyclic_reversed", "random", "latin", "prefix_sharing", the last three
            also with a number ("random:12" rows, "latin:2" squares, "prefix_sharing:20" rows); or a Design; or
            orderings as integers [M, L]; or a callable that takes n and returns a Design or orderings.
        n: number of passages.
        seed: seed of the random designs.

    Raises:
        InputError: if the name is unknown or takes no number, a Design is for another number of passages, or the
            design's own arguments are invalid.
    """
    check_int("permutations: n", n, 1, MOST_PASSAGES)
    if isinstance(spec, str):
        name, number = _named(spec)
        if name in _NAMED:
            return _NAMED[name](n)
        with located("permutations"):
            return _NAMED_SEEDED[name](n, number, seed)
    if callable(spec):
        spec = spec(n)
    if not isinstance(spec, Design):
        return Design(spec, n)  # type: ignore[arg-type]
    expect(spec.n == n, "permutations", f"a design for {n} passages", f"{spec.name} for {spec.n}")
    return spec


def named_count(spec: str, n: int) -> int:
    """Return the number of orderings of a design given by name, without drawing them.

    Raises:
        InputError: if the name is unknown or takes no number.
    """
    check_int("permutations: n", n, 1, MOST_PASSAGES)
    name, number = _named(spec)
    if name in _NAMED:
        return {"identity": 1, "cyclic": n}.get(name, 2 * n if n > 2 else n)
    if name == "latin":
        return n * (1 if number is None else number)
    if number is not None:
        return number
    return min(3 * n, math.factorial(n)) if name == "random" else min(3 * n, n * (1 + (n - 1) * (n - 2) // 2))


def _named(spec: str) -> tuple[str, int | None]:
    """Return the name of a design and its number, None without one."""
    name, colon, number = spec.strip().replace("-", "_").partition(":")
    if name in _NAMED and not colon:
        return name, None
    if name in _NAMED_SEEDED and (number.isdecimal() or not colon):
        return name, int(number) if colon else None
    names = f"{', '.join(_NAMED)}, or {', '.join(_NAMED_SEEDED)} with or without a number (random:12)"
    raise InputError(f"permutations: expected one of {names}, got {spec!r}")


def _rotations(orders: IntArray) -> IntArray:
    """Return for each row f of orders [F, N] the N rows ``(k + f(j)) mod N``, k = 0..N-1: [F * N, N]."""
    n = orders.shape[1]
    rows: IntArray = (np.arange(n)[None, :, None] + orders[:, None, :]) % n
    return rows.reshape(-1, n)


def _distinct(n: int, count: int, rng: np.random.Generator) -> IntArray:
    """Draw distinct permutations of range(n), uniformly at random: int64 [count, n]."""
    found: dict[tuple[int, ...], None] = {}
    if 2 * count <= math.factorial(n):
        while len(found) < count:
            found[tuple(rng.permutation(n).tolist())] = None
        return np.array(list(found), dtype=np.int64)
    every = np.zeros((1, 0), dtype=np.int64)
    for size in range(n):
        every = np.concatenate([np.insert(every, place, size, axis=1) for place in range(size + 1)])
    return rng.permutation(every)[:count]
