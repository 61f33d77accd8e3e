"""RecurrentStates: states after chosen tokens, and PathStates: the recurrences of a pass that computes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fastreader.ops.causal_conv import causal_conv, rows_at
from fastreader.ops.recurrent import ScanPlan
from fastreader.ops.recurrent.chains import IntArray, nearest_ancestors
from fastreader.ops.upload import Upload

Slot = tuple[int, int]  # a mixer, and its call of a function that has a state


@dataclass(eq=False)
class RecurrentStates:
    """States after K tokens, of every function that has one.

    Attributes:
        tokens: int64 [K], the tokens, ascending, by their place in a tree or among rows.
        tensors: [K, ...] for each slot: the last inputs of a convolution, oldest first, or a recurrent state.
    """

    tokens: IntArray
    tensors: dict[Slot, Tensor] = field(default_factory=dict)

    def select(self, rows: IntArray) -> RecurrentStates:
        """Return the states of these rows, int64 [R], numbered by their place."""
        of = {slot: t[torch.from_numpy(rows).to(t.device)] for slot, t in self.tensors.items()}
        return RecurrentStates(np.arange(len(rows)), of)

    @property
    def most_heads(self) -> int:
        """Largest number of heads of states that are matrices, [K, H, D, Dv], or 0 without such states."""
        return max((t.shape[1] for t in self.tensors.values() if t.dim() == 4), default=0)

    @property
    def nbytes(self) -> int:
        """Memory of the tensors, in bytes."""
        return sum(t.numel() * t.element_size() for t in self.tensors.values())


def joined_states(parts: list[tuple[RecurrentStates, int]], tokens: IntArray) -> RecurrentStates:
    """Return the states after these tokens [K], from one row of a collection for each."""
    if not parts:
        return RecurrentStates(tokens)
    slots = parts[0][0].tensors
    return RecurrentStates(tokens, {slot: torch.stack([p.tensors[slot][row] for p, row in parts]) for slot in slots})


class PathStates:
    """The recurrences of one pass, each from the state of the token before on its path.

    Args:
        parent: [N], the new token that each new token follows, before it in the order; -1 for none, -2 - r for row r
            of `initial`.
        initial: states of texts before the new tokens; None without such texts.
        kept: its `tokens` are the new tokens after which states are needed; its tensors are filled. None for none.

    Attributes:
        calls: number of calls of each mixer.
        kept: the states after those tokens.
    """

    def __init__(
        self,
        parent: IntArray,
        device: torch.device,
        initial: RecurrentStates | None = None,
        kept: RecurrentStates | None = None,
    ) -> None:
        self.kept = RecurrentStates(np.zeros(0, dtype=np.int64)) if kept is None else kept
        self.calls: dict[int, int] = {}
        self._plan = ScanPlan(parent, self.kept.tokens, device)
        self._initial = initial
        self._tables: dict[int, tuple[Tensor, Tensor]] = {}

    def convolve(
        self, mixer: int, input: Tensor, weight: Tensor, bias: Tensor | None, activation: str | None = None
    ) -> Tensor:
        """Return the short convolution of inputs [N, C] over their paths, see `causal_conv`."""
        slot, initial = self._slot(mixer)
        before = weight.shape[1] - 1
        ancestors, last = self._table(before)
        out = causal_conv(
            input, weight, ancestors, bias=bias, initial=initial, activation=activation, check_ancestors=False
        )
        self.kept.tensors[slot] = rows_at(input, initial, last)
        return out

    def scan(self, mixer: int, op: Callable[..., tuple[Tensor, Tensor]], *operands: Tensor) -> Tensor:
        """Return the outputs of an op of `ops.recurrent` over these operands."""
        slot, initial = self._slot(mixer)
        out, self.kept.tensors[slot] = op(*operands, self._plan, initial=initial)
        return out

    def _slot(self, mixer: int) -> tuple[Slot, Tensor | None]:
        slot = (mixer, self.calls.get(mixer, 0))
        self.calls[mixer] = slot[1] + 1
        return slot, None if self._initial is None else self._initial.tensors[slot]

    def _table(self, before: int) -> tuple[Tensor, Tensor]:
        """Return the `before` nearest ancestors of each token, and the last inputs at each kept one, oldest first."""
        if before not in self._tables:
            ancestors = nearest_ancestors(self._plan.parent, before)
            own = self.kept.tokens[:, None]
            last = np.concatenate([own, ancestors[self.kept.tokens]], axis=1)[:, :before][:, ::-1]
            upload = Upload(self._plan.device)
            near, ends = (upload.add(np.ascontiguousarray(table)) for table in (ancestors, last))
            self._tables[before] = near.get(), ends.get()
        return self._tables[before]
