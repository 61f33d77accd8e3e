"""Sufficiency: how probable it is that passages hold an answer, and by which of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked_methods
from fastreader.core.tree import TreeStats
from fastreader.core.words import counted
from fastreader.data.record import SavedRecord

FloatArray = npt.NDArray[np.float64]


@checked_methods
@dataclass(frozen=True, eq=False)
class Sufficiency(SavedRecord):
    """Whether N passages hold an answer to a question.

    Attributes:
        question: its text.
        probability: that a passage holds an answer, if that is as often the case as not.
        gains: float64 [N], log P(question | passage alone) - log P(question), nats.
        about: float64 [N], share of the stems of the question's words that each passage has.
        stats: tokens.
        reader: name, device, dtype and precision of the reader.
        id: the question's identifier.
        note: a caution; empty without one.
    """

    question: str
    probability: float
    gains: FloatArray
    about: FloatArray
    stats: TreeStats
    reader: dict[str, str]
    id: str | None = None
    note: str = ""

    _shapes: ClassVar = {"gains": "N", "about": "N"}

    @property
    def best(self) -> int:
        """Index of the passage of the largest gain."""
        return int(self.gains.argmax())

    def __repr__(self) -> str:
        """Return the probability, and each passage's evidence."""
        head = f"Sufficiency({counted(len(self.gains), 'passage')}, probability {self.probability:.2f})"
        cells = zip(self.gains, self.about, strict=True)
        rows = [
            f"  {'>' if i == self.best else ' '} passage {i}: {gain:+.2f} nats, {about:.2f} of the question's words"
            for i, (gain, about) in enumerate(cells)
        ]
        return "\n".join([head, *rows, *([f"note: {self.note}"] if self.note else [])])
