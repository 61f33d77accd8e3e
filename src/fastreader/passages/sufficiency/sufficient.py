"""sufficient: do the passages hold an answer to the question?"""

from __future__ import annotations

import os
from collections.abc import Iterable

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, check_int, require
from fastreader.core.protocol import ScoringReader
from fastreader.data.arguments import make_example
from fastreader.data.documents import PassageLike
from fastreader.data.types import Example
from fastreader.passages.conflicts.statements import statements
from fastreader.passages.sufficiency.model import features, probability
from fastreader.passages.sufficiency.results import Sufficiency
from fastreader.reader.prompts.template import Template, as_template
from fastreader.scoring.query_likelihood import query_likelihoods
from fastreader.scoring.reading import POLICIES, truncation_note

ReaderLike = ScoringReader | str | os.PathLike[str]


@checked
def sufficient(
    reader: ReaderLike,
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    *,
    template: Template | None = None,
    on_overflow: str = "error",
    max_batch_tokens: int | None = None,
) -> Sufficiency:
    """Return the probability that one of the passages holds an answer to the question.

    The evidence is how much more probable the question is after the best passage than without one, and the largest
    share of the question's words in a passage. A logistic model with three parameters, fitted on questions of
    NQ-open with the packaged readers, turns it into a probability; with another reader or other questions it is a
    score. It tells passages about the question from others: a passage on its topic that lacks the answer gets a high
    one nearly as often as a passage that has it (docs/attribution.md). No answer is generated. The question is scored
    after each passage alone, in one packed pass.

    Args:
        reader: a `Reader`, a session of one, or anything `Reader.load` takes.
        question: a question; or an `Example`, which brings its passages.
        passages: the passages, `Passage` objects or texts.
        template: the prompt's texts.
        on_overflow: "truncate" cuts the end of a passage that does not fit; "error" raises.
        max_batch_tokens: maximum number of tokens computed in one pass; None decides by free memory.

    Returns:
        The probability and its evidence. A `note` says if passages were cut.

    Raises:
        InputError: if there is no passage, or the template puts the question before the passages.
        ContextOverflowError: if a question leaves no room for a passage, or (with "error") a passage does not fit.
        OutOfBudgetError: if one prompt alone does not fit in memory.
    """
    check_choice("on_overflow", on_overflow, POLICIES)
    check_int("max_batch_tokens", max_batch_tokens, optional=True)
    prompts = as_template(template)
    require(not prompts.question_first, "template: expected the question after the passages, which it is scored after")
    example = make_example(question, passages)
    if not isinstance(reader, ScoringReader):
        from fastreader.reader.reader import Reader

        reader = Reader.load(reader)
    (found,) = query_likelihoods(
        reader,
        [(example.question, example.passages, "question")],
        prompts,
        without=True,
        on_overflow=on_overflow,
        max_batch_tokens=max_batch_tokens,
    )
    assert found.without is not None
    gains = found.logprobs - found.without
    about = statements(example.question, example.passages, [], {}).about
    cut = {place: tokens for place, tokens in enumerate(found.truncated) if tokens}
    return Sufficiency(
        question=example.question,
        probability=float(probability(features(gains, about))),
        gains=gains,
        about=about,
        stats=found.stats,
        reader=reader.describe(),
        id=example.id,
        note=truncation_note("read alone", cut),
    )
