"""answer: re-rank, then read once more in the order found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastreader.data.arguments import PassageLike, make_example
from fastreader.data.types import Example
from fastreader.moi.cost import Cost
from fastreader.moi.options import RerankOptions, Stopping
from fastreader.moi.overflow import told
from fastreader.moi.planning import plan_example
from fastreader.moi.ranked import Ranked
from fastreader.moi.reading import Reading, chosen_candidates, fit_reading, read_pieces, reading_pieces
from fastreader.moi.rerank import rerank_planned
from fastreader.moi.smaller import own_calibration, placed_for
from fastreader.moi.types import PositionBias
from fastreader.permutations import Spec

if TYPE_CHECKING:
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader


@dataclass(frozen=True, eq=False)
class MoiAnswer:
    """An answer, and the order it was read in.

    Attributes:
        text: the answer.
        ranked: the passages in reading order; those that were read come first, its tail was not.
        reading: the last reading.
        cost: tokens of scoring and of the last reading.
        note: cautions, those of `ranked` included; empty where all is well.
    """

    text: str
    ranked: Ranked
    reading: Reading
    cost: Cost
    note: str = ""

    @property
    def id(self) -> str | None:
        """The question's identifier."""
        return self.ranked.id

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "id": self.id,
            "question": self.ranked.question,
            "method": "moi",
            "answer": self.text,
            "reading": self.reading.to_dict(),
            "cost": self.cost.to_dict(),
            "note": self.note,
            "ranked": self.ranked.to_dict(),
        }


def answer(
    reader: Reader,
    question: str | Example,
    passages: Sequence[PassageLike] | None = None,
    bias: PositionBias | None = None,
    order: str = "matched",
    max_passages: int = 10,
    *,
    scorer: Reader | None = None,
    candidates: Sequence[str] | None = None,
    max_new_tokens: int = 32,
    permutations: Spec | None = None,
    prune: int | None = None,
    prune_mass: float | None = None,
    template: Template | None = None,
    stopping: Stopping | None = None,
    seed: int = 0,
    on_overflow: str = "error",
    max_batch_tokens: int | None = None,
) -> MoiAnswer:
    """Answer from the passages in MoI's order: scored by `scorer` (or the reader itself), read once by the reader.

    The reader reads the `max_passages` that were scored, none of the tail: the bias was measured for so many.

    Args:
        reader: answers.
        scorer: scores the orderings, such as a smaller model; the calibration (`bias`) is then that of the scorer.
            Matched order is by the bias of the reader that answers, where a calibration of it is at hand; without
            one the order is descending, and `note` says so.
        candidates: answers to choose from, in place of the example's; none: the answer is written greedily.
        max_new_tokens: tokens written at most.
        question, passages, bias, order, max_passages: as for `rerank`.
        permutations, prune, prune_mass, template, stopping, seed, on_overflow, max_batch_tokens: as for `rerank`.

    Raises:
        InputError, ContextOverflowError: as `rerank`.
    """
    options = RerankOptions(
        order=order,
        max_passages=max_passages,
        permutations=permutations,
        prune=prune,
        prune_mass=prune_mass,
        template=template,
        stopping=stopping,
        seed=seed,
        on_overflow=on_overflow,
        max_batch_tokens=max_batch_tokens,
    )
    asked = make_example(question, passages)
    reads = replace(asked, passages=asked.passages[:max_passages])
    chosen = chosen_candidates(asked, candidates)
    pieces = reading_pieces(reader, reads, chosen, template)
    # Before anything runs: an answer that cannot fit would waste the scoring.
    fit_reading(pieces, range(len(reads.passages)), reader.max_length, max_new_tokens, on_overflow)
    own = None if scorer is None else own_calibration(reader, template, len(reads.passages))
    known = replace(pieces, candidates=[]) if scorer is None else None
    ranked = rerank_planned(scorer or reader, plan_example(scorer or reader, asked, bias, options, known))
    if scorer is not None and order == "matched":
        ranked = placed_for(reader, ranked, scorer, own)
    reading = read_pieces(
        reader,
        pieces,
        ranked.indices[: len(ranked) - ranked.tail],
        chosen,
        max_new_tokens=max_new_tokens,
        on_overflow=on_overflow,
        max_batch_tokens=max_batch_tokens,
    )
    note = "; ".join(filter(None, [ranked.note, told("answering", reading.truncated)]))
    return MoiAnswer(reading.text, ranked, reading, replace(ranked.cost, answer=reading.stats.computed_tokens), note)
