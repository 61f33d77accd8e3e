"""sensitivity: what the order of the passages alone does to an answer."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import require
from fastreader.core.protocol import ScoringReader
from fastreader.core.tree import TreeStats
from fastreader.data.arguments import make_example
from fastreader.data.documents import PassageLike
from fastreader.data.record import SavedRecord
from fastreader.data.types import Example
from fastreader.permutations import Spec, explicit, resolve
from fastreader.reader.prompts.template import Template
from fastreader.scoring.api import score_permutations
from fastreader.scoring.marginal_answer import STOP, distinct
from fastreader.scoring.reading import reading_prompts
from fastreader.statistics.measures.answers import normalise

FloatArray = npt.NDArray[np.float64]
ReaderLike = ScoringReader | str | os.PathLike[str]
NOTHING_WRITTEN = "the reader generated no answer under any ordering"


@checked_methods
@dataclass(frozen=True, eq=False)
class Sensitivity(SavedRecord):
    """K answers to one question under M orderings of its N passages.

    Attributes:
        question: its text.
        candidates: K answers, given, or generated and distinct in SQuAD's normal form.
        permutations: int64 [M, N], passage indices in reading order; the first row is the retriever's order.
        logprobs: float64 [M, K], nats, log P(candidate and its end | passages in order m, question).
        answers: M indices of the answer under each ordering: of the candidate that was generated, or of the most
            probable one if candidates were given; None where the reader generated nothing.
        generated: whether the candidates were generated.
        stats: tokens.
        reader: name, device, dtype and precision of the reader.
        id: the question's identifier.
        note: a caution; empty without one.
    """

    question: str
    candidates: list[str]
    permutations: npt.NDArray[np.int64]
    logprobs: FloatArray
    answers: list[int | None]
    generated: bool
    stats: TreeStats
    reader: dict[str, str]
    id: str | None = None
    note: str = ""

    @property
    def ranges(self) -> FloatArray:
        """float64 [K], nats: largest less smallest log-probability of each candidate over the orderings."""
        return np.ptp(self.logprobs, axis=0) if self.candidates else np.zeros(0)

    @property
    def changed(self) -> float:
        """Share of the other orderings whose answer is not that of the retriever's order, 0 without others."""
        others = self.answers[1:]
        return sum(answer != self.answers[0] for answer in others) / len(others) if others else 0.0

    @property
    def agreement(self) -> float:
        """Share of the orderings that give the most frequent answer."""
        return Counter(self.answers).most_common(1)[0][1] / len(self.answers)

    def __repr__(self) -> str:
        """Return each candidate with its range, the retriever's answer first."""
        head = (
            f"Sensitivity to {len(self.permutations)} orderings: the answer changes in {self.changed:.2f} of the "
            f"others; {self.stats.computed_tokens:,} tokens computed"
        )
        rows = [
            f"  {text}: answer of {self.answers.count(k)} orderings; log P {low:.2f} to {high:.2f}"
            for k, (text, low, high) in enumerate(
                zip(self.candidates, self.logprobs.min(axis=0), self.logprobs.max(axis=0), strict=True)
            )
        ]
        return "\n".join([head, *rows, *filter(None, [self.note])])


@checked
def sensitivity(
    reader: ReaderLike,
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    candidates: Sequence[str] | None = None,
    *,
    permutations: Spec = "cyclic",
    seed: int = 0,
    template: Template | None = None,
    max_new_tokens: int = 32,
    max_batch_tokens: int | None = None,
) -> Sensitivity:
    """Measure how much the order of the passages changes an answer, with everything else equal.

    Each candidate is scored after each ordering in one packed pass. Without candidates, the reader answers greedily
    after each ordering first, and its answers are the candidates.

    Args:
        reader: a `Reader`, a session of one, or anything `Reader.load` takes.
        question: a question; or an `Example`, which brings its passages and candidates.
        passages: the passages in the retriever's order, `Passage` objects or texts.
        candidates: K answers to score; None takes an `Example`'s, or generates them.
        permutations, seed: the orderings, see `score_permutations`. The retriever's order is put first, and added if
            it is not among them. They are whole orderings.
        template: the prompt's texts.
        max_new_tokens: of a generated answer.
        max_batch_tokens: maximum number of tokens computed in one pass; None decides by free memory.

    Returns:
        The answers and their log-probabilities. `ranges` and `changed` sum them up.

    Raises:
        InputError: if there is no passage, an ordering leaves out passages, or a candidate has no token.
        ContextOverflowError: if a prompt is longer than the model's context.
        OutOfBudgetError: if one prompt alone does not fit in memory.
    """
    example = make_example(question, passages, candidates)
    count = len(example.passages)
    drawn: list[list[int]] = resolve(permutations, count, seed).permutations.tolist()
    whole = f"permutations: expected orderings of all {count} passages, got {len(drawn[0])} places"
    require(len(drawn[0]) == count, whole)
    retrieved = list(range(count))
    orders = [retrieved, *[order for order in drawn if order != retrieved]]
    if not isinstance(reader, ScoringReader):
        from fastreader.reader.reader import Reader

        reader = Reader.load(reader)
    own, stats, written = list(example.candidates), TreeStats(0, 0, 0, 0), []
    generated = not own
    if generated:
        prompts = reading_prompts(reader, example.question, example.passages, orders, template)
        replies = reader.generate(prompts, max_new_tokens=max_new_tokens, stop=STOP, max_batch_tokens=max_batch_tokens)
        written, stats = [normalise(texts[0].text) for texts in replies], replies.stats
        own = distinct([texts[0].text for texts in replies])[0]
    logprobs = np.zeros((len(orders), 0))
    if own:
        scores = score_permutations(
            reader,
            example.question,
            example.passages,
            own,
            explicit(orders, count),
            template=template,
            max_batch_tokens=max_batch_tokens,
        )
        logprobs, stats = scores.logprobs, stats + scores.stats
    places = {normalise(text): k for k, text in enumerate(own)}
    answers: list[int | None] = [int(row.argmax()) for row in logprobs] if own else [None] * len(orders)
    if generated:
        answers = [places.get(text) for text in written]
    return Sensitivity(
        question=example.question,
        candidates=own,
        permutations=np.array(orders, dtype=np.int64),
        logprobs=logprobs,
        answers=answers,
        generated=generated,
        stats=stats,
        reader=reader.describe(),
        id=example.id,
        note="" if own else NOTHING_WRITTEN,
    )
