"""marginal_answer: generate an answer under each ordering, score all under all, average over the orderings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked, checked_methods
from fastreader.core.tree import TreeStats
from fastreader.data.arguments import make_example
from fastreader.data.documents import PassageLike
from fastreader.data.types import Example
from fastreader.permutations import Spec, resolve
from fastreader.scoring.reading import reading_prompts
from fastreader.statistics.measures.answers import normalise

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.reader.prompts.template import Template
    from fastreader.scoring.results import PermutationScores

FloatArray = npt.NDArray[np.float64]
STOP = ("\n",)


@checked_methods
@dataclass(frozen=True, eq=False)
class MarginalAnswer:
    """The answer of the largest mean probability over orderings.

    Attributes:
        text: one of `candidates`; "" if the reader generated no answer under any ordering.
        candidates: K texts, distinct in SQuAD's normal form, each as it was generated most often.
        probabilities: float64 [K], mean over the orderings of the candidate's share of the probability of all K. They
            are relative: with one candidate it is 1, however unlikely the reader finds it.
        written: int64 [K], number of orderings after which the reader generated this candidate.
        scores: of the candidates under each ordering, nats; None without candidates.
        stats: tokens of generating and scoring.
        id: the question's identifier.
    """

    text: str
    candidates: list[str]
    probabilities: FloatArray
    written: npt.NDArray[np.int64]
    scores: PermutationScores | None
    stats: TreeStats
    id: str | None = None

    @property
    def confidence(self) -> float:
        """The mean probability of the answer, 0 without one."""
        return float(self.probabilities.max()) if self.candidates else 0.0

    def __repr__(self) -> str:
        shares = zip(self.candidates, self.probabilities, self.written, strict=True)
        lines = [f"  {text}: {share:.2f}, written {count} times" for text, share, count in shares]
        return "\n".join([f"MarginalAnswer({self.text!r}, {self.confidence:.2f})", *lines])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "id": self.id,
            "method": "marginal",
            "answer": self.text,
            "confidence": self.confidence,
            "candidates": self.candidates,
            "probabilities": self.probabilities.tolist(),
            "written": self.written.tolist(),
            "scores": None if self.scores is None else self.scores.to_dict(),
            "stats": asdict(self.stats),
        }


@checked
def marginal_answer(
    reader: ScoringReader,
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    permutations: Spec = "cyclic",
    *,
    seed: int = 0,
    template: Template | None = None,
    max_new_tokens: int = 32,
    max_batch_tokens: int | None = None,
) -> MarginalAnswer:
    """Answer by the mean probability over orderings of the candidates that the reader generates under them.

    The reader answers greedily after each ordering, all in one call. Answers equal in SQuAD's normal form are one
    candidate. All candidates are scored after all orderings in one packed pass, and the probabilities are averaged,
    ``mean over m of P(a | ordering m) / sum over k of P(a_k | ordering m)``, which a vote over the orderings is a
    coarse version of.

    Args:
        reader: generates and scores; may be a session of a reader.
        question: a question; or an `Example` with its passages, whose candidates are not used.
        passages: the passages in the retriever's order, `Passage` objects or texts.
        permutations, seed: the orderings, see `score_permutations`.
        template: the prompt's texts.
        max_new_tokens: maximum number of tokens of an answer.
        max_batch_tokens: maximum number of tokens computed in one pass; None decides by free memory.

    Raises:
        InputError: if there is no passage, a text is empty, or the orderings are invalid.
        ContextOverflowError: if a prompt is longer than the model's context.
    """
    from fastreader.scoring.api import score_permutations

    example = make_example(question, passages, [])
    design = resolve(permutations, len(example.passages), seed)
    orders: list[list[int]] = design.permutations.tolist()
    prompts = reading_prompts(reader, example.question, example.passages, orders, template)
    replies = reader.generate(prompts, max_new_tokens=max_new_tokens, stop=STOP, max_batch_tokens=max_batch_tokens)
    candidates, written = distinct([texts[0].text for texts in replies])
    scores = None
    if candidates:
        options: dict[str, Any] = {"template": template, "max_batch_tokens": max_batch_tokens}
        scores = score_permutations(reader, example, candidates=candidates, permutations=design, **options)
    return marginal(candidates, written, scores, replies.stats)


def marginal(
    candidates: list[str], written: Sequence[int], scores: PermutationScores | None, stats: TreeStats
) -> MarginalAnswer:
    """Return the answer from generated and scored candidates, given the stats of generating them."""
    counts = np.asarray(written, dtype=np.int64)
    if scores is None:
        return MarginalAnswer("", candidates, np.zeros(0), counts, None, stats)
    shares = scores.consensus()
    text = candidates[int(shares.argmax())]
    return MarginalAnswer(text, candidates, shares, counts, scores, stats + scores.stats, scores.id)


def distinct(texts: Iterable[str]) -> tuple[list[str], list[int]]:
    """Return answers that differ in SQuAD's normal form, in order of appearance, and how often each was generated.

    Each keeps its most frequent spelling, the first of equals. Answers of empty normal form are left out.
    """
    spellings: dict[str, Counter[str]] = {}
    for text in map(str.strip, texts):
        if normal := normalise(text):
            spellings.setdefault(normal, Counter())[text] += 1
    return [c.most_common(1)[0][0] for c in spellings.values()], [c.total() for c in spellings.values()]
