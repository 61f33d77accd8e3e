"""ScanPlan: the order in which a recurrence runs over a packed tree, level by level, as batches of padded chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.lazy import cached_property
from fastreader.ops.recurrent.chains import Chains, IntArray, Walks, chains

_WORKSPACE = 64 * 2**20  # bytes of a batch of chunks
_GROWTH = 4  # chunks are padded to powers of this, so that many short ones do not take the space of a long one


@dataclass(frozen=True, eq=False)
class ChunkBatch:
    """Chunks of a level that are padded to one length.

    Attributes:
        tokens: int64 [N, L], the tokens of each chunk; the first is repeated where it is shorter.
        padding: bool [N, L], the places after a chunk's end; None if all chunks are that long.
        before: int64 [N], place of the state that each chunk starts from, among the states of the level before (level
            0: among the initial ones); -1 for none.
        after: int64 [N], place of the state at each chunk's end among this level's states; -1 if it is not needed.
    """

    tokens: Tensor
    padding: Tensor | None
    before: Tensor
    after: Tensor

    def pieces(self, count: int) -> list[ChunkBatch]:
        """Return batches of at most `count` chunks."""
        if len(self.tokens) <= count:
            return [self]
        parts = [slice(first, first + count) for first in range(0, len(self.tokens), count)]
        padding = self.padding
        return [
            ChunkBatch(self.tokens[p], None if padding is None else padding[p], self.before[p], self.after[p])
            for p in parts
        ]

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows [T, ...] of the chunks' tokens, [N, L, ...], with zeros for padding."""
        found = rows[self.tokens]
        if self.padding is not None:
            found.masked_fill_(self.padding.view(*self.padding.shape, *[1] * (found.dim() - 2)), 0)
        return found

    def scatter(self, out: Tensor, values: Tensor) -> None:
        """Write values [N, L, ...] of the chunks' tokens to the rows of `out` [T, ...]."""
        if self.padding is None:
            out[self.tokens] = values
        else:
            real = ~self.padding
            out[self.tokens[real]] = values[real]


@dataclass(frozen=True, eq=False)
class Level:
    """Chunks that start from states of the level before.

    Attributes:
        batches: the chunks.
        states: number of states at their ends that are needed.
        kept: int64 [2, n], places among those states and rows of the result for the states that the caller keeps.
    """

    batches: list[ChunkBatch]
    states: int
    kept: Tensor


# Computes chunks from the states before them, writes their outputs, and returns the states after them.
Step = Callable[[ChunkBatch, Tensor], Tensor]


class ScanPlan:
    """The order of a scan over a packed tree.

    Args:
        parent: [T], the token that each token follows, before it in the order; -1 for none, -2 - r for a token that
            starts from initial state r.
        keep: int64 [K], tokens after which the state is returned, in any order.
        device: of the operands.
    """

    def __init__(self, parent: npt.NDArray[np.integer], keep: IntArray, device: torch.device) -> None:
        self.parent = np.asarray(parent, dtype=np.int64)
        self.keep = np.asarray(keep, dtype=np.int64)
        self.device = device
        self._levels: dict[int, list[Level]] = {}

    def __len__(self) -> int:
        return len(self.parent)

    @cached_property
    def initial(self) -> int:
        """Number of initial states that a scan needs at least."""
        return max(0, -1 - int(self.parent.min(initial=-1)))

    @cached_property
    def walks(self) -> Walks:
        """The whole chains, for kernels that keep the state of a chain while they follow it."""
        return Walks(self.parent, self.keep, self.device)

    def levels(self, size: int) -> list[Level]:
        """Return the levels of chunks of at most `size` tokens."""
        if size not in self._levels:
            self._levels[size] = self._build(size)
        return self._levels[size]

    def _build(self, size: int) -> list[Level]:
        found = chains(self.parent, size, self.keep)
        needed = np.zeros(len(found), dtype=bool)
        needed[found.parents[found.parents >= 0]] = True
        owner = np.repeat(np.arange(len(found)), found.lengths)[self.keep]
        needed[owner] = True
        order = np.argsort(found.levels, kind="stable")
        bounds = np.searchsorted(found.levels[order], np.arange(int(found.levels.max(initial=-1)) + 2))
        place = np.full(len(found), -1, dtype=np.int64)
        padded = np.minimum(_GROWTH ** np.ceil(np.log(found.lengths) / np.log(_GROWTH) - 1e-9).astype(np.int64), size)
        levels: list[Level] = []
        for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            members = order[first:last]
            ending = members[needed[members]]
            place[ending] = np.arange(len(ending))
            batches = [self._batch(found, members[padded[members] == n], n, place) for n in np.unique(padded[members])]
            rows = np.flatnonzero(found.levels[owner] == len(levels))
            levels.append(Level(batches, len(ending), self._moved(np.stack([place[owner[rows]], rows]))))
        return levels

    def _batch(self, found: Chains, members: IntArray, length: int, place: IntArray) -> ChunkBatch:
        steps = np.arange(length)
        padding = steps >= found.lengths[members, None]
        tokens = found.starts[members, None] + np.where(padding, 0, steps)
        above = found.parents[members]
        before = -2 - above  # initial states, and -1 for none
        before[above >= 0] = place[above[above >= 0]]
        return ChunkBatch(
            self._moved(tokens),
            self._moved(padding) if padding.any() else None,
            self._moved(before),
            self._moved(place[members]),
        )

    def _moved(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def run(
        self,
        size: int,
        step: Step,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        initial: Tensor | None,
        token_values: int,
    ) -> Tensor:
        """Run a scan and return the states after the kept tokens, [K, ...].

        Args:
            size: at most this many tokens in a chunk.
            step: computes a batch of chunks.
            shape: of a state.
            dtype: of states.
            initial: [S, ...], or None.
            token_values: values that a step holds for each token of a chunk.
        """
        kept = torch.zeros(len(self.keep), *shape, dtype=dtype, device=self.device)
        earlier = torch.zeros(0, *shape, dtype=dtype, device=self.device) if initial is None else initial.to(dtype)
        state_values = int(np.prod(shape))
        for level in self.levels(size):
            states = torch.empty(level.states, *shape, dtype=dtype, device=self.device)
            for batch in level.batches:
                values = batch.tokens.shape[1] * token_values + 3 * state_values
                for piece in batch.pieces(max(1, _WORKSPACE // (values * dtype.itemsize))):
                    starts = torch.zeros(len(piece.before), *shape, dtype=dtype, device=self.device)
                    known = piece.before >= 0
                    starts[known] = earlier[piece.before[known]]
                    final = step(piece, starts)
                    needed = piece.after >= 0
                    states[piece.after[needed]] = final[needed]
            places, rows = level.kept
            kept[rows] = states[places]
            earlier = states
        return kept
