"""answer: re-rank the passages, then read once more in the order found, by the same reader or another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fastreader.core.checked import checked, checked_methods
from fastreader.data.arguments import make_example
from fastreader.data.documents import PassageLike
from fastreader.data.types import Example
from fastreader.moi.calibration.store import find
from fastreader.moi.quantities.position_bias import PositionBias, differing
from fastreader.moi.quantities.utilities import matched
from fastreader.moi.reorder.planning import Cost, RerankOptions, plan_example
from fastreader.moi.reorder.ranked import Ranked
from fastreader.moi.reorder.rerank import rerank_planned
from fastreader.scoring.reading import (
    Reading,
    chosen_candidates,
    fit_reading,
    read_pieces,
    reading_pieces,
    truncation_note,
)

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader


@checked_methods
@dataclass(frozen=True, eq=False)
class MoiAnswer:
    """An answer, and the order it was read in.

    Attributes:
        text: the answer.
        ranked: the passages in reading order; the reader reads all but the tail.
        reading: the last reading.
        cost: tokens of scoring and of the last reading.
        note: cautions, including `ranked.note`; empty if there is nothing to report.
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
        """Return everything as JSON values."""
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


@checked
def answer(
    reader: ScoringReader,
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    bias: PositionBias | None = None,
    *,
    scorer: ScoringReader | None = None,
    candidates: Sequence[str] | None = None,
    max_new_tokens: int = 32,
    **options: Any,
) -> MoiAnswer:
    """Answer from the passages in MoI's order: scored by `scorer` (or the reader itself), read once by the reader.

    The reader reads the `max_passages` that were scored and not the tail, since the bias holds for that number.

    Args:
        reader: answers.
        question, passages, bias, **options: same as `rerank`.
        scorer: scores the orderings, such as a smaller model; `bias` is then a calibration of the scorer. Matched
            order uses an available calibration of the reader that answers; without one the order is descending, or
            the retriever's if the scorer has none either, and `note` reports it.
        candidates: answers to choose from, instead of the example's; an empty list generates the answer greedily.
        max_new_tokens: maximum number of tokens to generate.

    Raises:
        InputError, ContextOverflowError: same as `rerank`.
    """
    from fastreader.reader.prompts.template import as_template

    settings = RerankOptions(**options)
    example = make_example(question, passages)
    reads = replace(example, passages=example.passages[: settings.max_passages])
    chosen = chosen_candidates(example, candidates)
    pieces = reading_pieces(reader, reads, chosen, settings.template)
    # Before anything runs: an answer that cannot fit would waste the scoring.
    fit_reading(pieces, range(len(reads.passages)), reader.max_length, max_new_tokens, settings.on_overflow)
    if scorer is None:
        known = replace(pieces, candidates=[])
        ranked = rerank_planned(reader, plan_example(reader, example, bias, settings, known))
    else:
        own = find(reader.describe(), as_template(settings.template).digest(), len(reads.passages))
        ranked = rerank_planned(scorer, plan_example(scorer, example, bias, settings))
        if settings.order == "matched":
            ranked = placed_for(reader, ranked, scorer, own)
    reading = read_pieces(
        reader,
        pieces,
        ranked.indices[: len(ranked) - ranked.tail],
        chosen,
        max_new_tokens=max_new_tokens,
        on_overflow=settings.on_overflow,
        max_batch_tokens=settings.max_batch_tokens,
    )
    note = "; ".join(filter(None, [ranked.note, truncation_note("answering", reading.truncated)]))
    return MoiAnswer(reading.text, ranked, reading, replace(ranked.cost, answer=reading.stats.computed_tokens), note)


def placed_for(
    reader: ScoringReader, ranked: Ranked, scorer: ScoringReader, own: tuple[PositionBias, str] | None
) -> Ranked:
    """Return the passages that `scorer` ranked, in matched order for the reader that answers, with a `note`.

    The largest utility goes to the place of the answering reader's largest bias. Utilities and bias then come from
    two measurements, so the signs of both must be decided. Without a usable calibration the order is descending; if
    the sign of the scorer's bias is undetermined, its own matched order is kept.

    Args:
        reader: answers.
        ranked: in matched order of the scorer's bias, or in the retriever's if the scorer has none.
        scorer: gave the utilities.
        own: the available calibration of `reader`, and its source.
    """
    about = reader.describe(), scorer.describe()
    if ranked.utilities is None or not differing("", about[0], "", "", about[1], ""):
        return ranked
    name, other = about[0]["name"], about[1]["name"]
    if ranked.utilities.sign == "undetermined":
        return _noted(ranked, f"placed by the bias of {other}, its sign undetermined, and not of {name}")
    unusable = _unusable(own)
    if unusable and ranked.order == "given":
        return _noted(ranked, f"{name}, which answers, has {unusable} for this template and N")
    if unusable:
        note = f"descending order: {name}, which answers, has {unusable} for this template and N"
        order, indices = "descending", ranked.utilities.order("descending")
    else:
        assert own is not None
        note = f"placed by the {own[1]} calibration of {name}, which answers"
        order, indices = "matched", matched(ranked.utilities.utility, own[0].bias)
    by_index = {p.index: p for p in ranked}
    passages = [by_index[i] for i in indices.tolist()] + ranked.passages[len(ranked) - ranked.tail :]
    return _noted(replace(ranked, passages=passages, order=order), note)


def _unusable(found: tuple[PositionBias, str] | None) -> str:
    """Return why a calibration cannot place passages, or "" if it can."""
    if found is None:
        return "no calibration"
    if found[0].flat:
        return "a calibration that found no bias to place by"
    if not found[0].identified:
        return "a calibration that does not identify its bias"
    return "a calibration of undetermined sign" if found[0].sign == "undetermined" else ""


def _noted(ranked: Ranked, note: str) -> Ranked:
    return replace(ranked, note="; ".join(filter(None, [ranked.note, note])))
