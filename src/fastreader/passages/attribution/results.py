"""Attribution: how much each passage contributes to an answer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked_methods
from fastreader.core.drawing import COLOURS, new_figure
from fastreader.core.frames import data_frame, listing
from fastreader.core.tree import TreeStats
from fastreader.core.words import counted
from fastreader.data.record import SavedRecord
from fastreader.data.types import Passage

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FloatArray = npt.NDArray[np.float64]
_MEASURES = ("alone", "left_out", "shapley", "shapley_error", "surrogate")
_FRAME = ("id", "passage", "passage_id", "title", "text", *_MEASURES)


@checked_methods
@dataclass(frozen=True, eq=False)
class Attribution(SavedRecord):
    """What each of N passages contributes to an answer, in nats.

    v(S) is log P(answer and its end | the passages in S in their order, question).

    Attributes:
        question: its text.
        passages: as they were given.
        answer: the text whose probability is attributed.
        generated: whether the reader generated the answer from all passages.
        logprob: v of all passages.
        closed_book_logprob: v of none.
        alone: float64 [N], v of each passage alone less v of none.
        left_out: float64 [N], v of all less v of all but each.
        shapley: float64 [N], Shapley values; their sum is `logprob - closed_book_logprob`.
        shapley_error: float64 [N], standard errors, of few orders widened by Student's distribution; 0 if all subsets
            were read.
        surrogate: float64 [N], weights of a sparse linear model of the answer's log-odds, as ContextCite fits it.
        surrogate_fit: R^2 of that model on subsets left out of its fit; None with fewer than 10 subsets.
        pairs: float64 [N, N], what two passages add together beyond what each adds alone; None if two at a time were
            not read.
        exact: whether all subsets were read.
        subsets: number of subsets that were read.
        stats: tokens.
        reader: name, device, dtype and precision of the reader.
        id: the question's identifier.
        note: cautions; empty without one.
    """

    question: str
    passages: list[Passage]
    answer: str
    generated: bool
    logprob: float
    closed_book_logprob: float
    alone: FloatArray
    left_out: FloatArray
    shapley: FloatArray
    shapley_error: FloatArray
    surrogate: FloatArray
    surrogate_fit: float | None
    pairs: FloatArray | None
    exact: bool
    subsets: int
    stats: TreeStats
    reader: dict[str, str]
    id: str | None = None
    note: str = ""

    _nulls: ClassVar = {"shapley_error": np.nan}
    _shapes: ClassVar = {"passages": "N", **dict.fromkeys(_MEASURES, "N"), "pairs": "N N"}

    @property
    def best(self) -> int | None:
        """Index of the passage of the largest Shapley value, or None if no value is above 0."""
        return int(self.shapley.argmax()) if self.shapley.max() > 0 else None

    @property
    def order(self) -> list[int]:
        """Indices of the passages by falling Shapley value."""
        found: list[int] = np.argsort(-self.shapley, kind="stable").tolist()
        return found

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each passage, in their order.

        Its columns: id (of the question), passage (from 0), passage_id, title, text, alone, left_out, shapley,
        shapley_error and surrogate.

        Raises:
            MissingExtraError: if pandas is not installed (the extra "pandas").
        """
        rows = [
            {
                "id": self.id,
                "passage": i,
                "passage_id": passage.id,
                "title": passage.title,
                "text": passage.text,
                **{name: float(getattr(self, name)[i]) for name in _MEASURES},
            }
            for i, passage in enumerate(self.passages)
        ]
        return data_frame(rows, _FRAME)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw the Shapley values with two standard errors, and what each passage adds alone and last.

        Args:
            path: also write the figure to this file.

        Raises:
            MissingExtraError: if matplotlib is not installed (the extra "plot").
        """
        figure = new_figure(6.0, 1.4 + 0.32 * len(self.passages))
        axes = figure.subplots()
        places = np.arange(len(self.passages))
        axes.barh(places, self.shapley, xerr=2 * np.nan_to_num(self.shapley_error), color=COLOURS[0], label="Shapley")
        axes.plot(self.alone, places, "o", color=COLOURS[1], label="alone")
        axes.plot(self.left_out, places, "s", color=COLOURS[2], label="left out")
        axes.axvline(0.0, color="0.7", linewidth=0.8)
        names = [(passage.title or passage.text)[:30] for passage in self.passages]
        axes.set_yticks(places, [f"{i}: {name}" for i, name in enumerate(names)])
        axes.invert_yaxis()
        axes.set_xlabel(f"log P({self.answer[:40]}), nats")
        axes.set_title(self.question[:80], fontsize=9)
        axes.legend(fontsize=7)
        if path is not None:
            figure.savefig(path)
        return figure

    def __repr__(self) -> str:
        """Return the passages by falling Shapley value, on at most 16 lines."""
        head = [
            f"Attribution of {self.answer!r} to {counted(len(self.passages), 'passage')}; {self.subsets} subsets, "
            f"{self.stats.computed_tokens:,} tokens computed",
            f"question: {self.question}",
            f"passage  Shapley  {'' if self.exact else 'error  '}alone  left out  surrogate",
        ]
        errors = [""] * len(self.passages) if self.exact else [f"{error:5.2f}  " for error in self.shapley_error]
        cells = zip(self.shapley, errors, self.alone, self.left_out, self.surrogate, self.passages, strict=True)
        rows = [
            f"{i:7}  {value:+7.2f}  {error}{alone:+5.2f}  {left_out:+8.2f}  {weight:+9.2f}  "
            f"{passage.title} {passage.text}"
            for i, (value, error, alone, left_out, weight, passage) in enumerate(cells)
        ]
        return listing(head, (rows[i] for i in self.order), len(rows), self.note)
