"""yes_no: whether each passage is relevant, by the log-odds of two answers of any reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import require
from fastreader.core.protocol import ScoringReader
from fastreader.data.types import Example, whole_text
from fastreader.moi.baselines.ordering import NOTHING_READ
from fastreader.passages.ranking.results import Reranked, by_value, readable
from fastreader.reader.fitting import prompt_around
from fastreader.reader.prompts.texts import PromptTexts
from fastreader.scoring.labels import label_logprobs, tokens_of

YES_NO = "yes_no"


@checked
@dataclass(frozen=True)
class YesNoPrompt(PromptTexts):
    """The texts of a relevance question, in the order of the prompt.

    All passages share what stands before them.

    Attributes:
        query: fields {instruction} and {question}.
        passage: field {passage}.
        ask: optional field {question}.
        yes, no: the two answers, of any number of tokens.
        instruction: what makes a passage relevant; `instruction=` of a call replaces it.
        system: system message of the chat; None uses the chat template's default.
    """

    OPTIONAL: ClassVar = {"ask": {"question"}, "query": {"instruction"}}

    query: str = "{instruction}\n\nQuery: {question}\n\n"
    passage: str = "Passage: {passage}\n\n"
    ask: str = "Does the passage help to answer the query? Answer Yes or No."
    yes: str = "Yes"
    no: str = "No"
    instruction: str = "Decide whether a passage is relevant to a query."
    system: str | None = None


def by_yes_no(
    reader: ScoringReader,
    questions: Sequence[Example],
    *,
    prompt: YesNoPrompt | None = None,
    instruction: str | None = None,
    calibrate: bool = False,
    on_overflow: str = "truncate",
    max_batch_tokens: int | None = None,
) -> list[Reranked]:
    """Rank the passages of questions by log P(yes) - log P(no), all in one call.

    Args:
        reader: scores the labels.
        questions: with their passages.
        prompt: texts of the question.
        instruction: takes the place of the prompt's.
        calibrate: subtract the log-odds for an empty passage, which are the prompt's own preference.
        on_overflow: "truncate" cuts a passage that does not fit; "error" raises.
        max_batch_tokens: at most this many tokens are computed in one pass.

    Raises:
        InputError: if the two labels have the same tokens.
        ContextOverflowError: if a question leaves no room for a passage, or (with "error") a passage does not fit.
    """
    texts = prompt or YesNoPrompt()
    chat: Any = {"system": texts.system}
    labels: list[Any] = [list(reader.continuation(label, **chat)) for label in (texts.yes, texts.no)]
    require(labels[0] != labels[1], f"YesNoPrompt.yes, YesNoPrompt.no: expected two answers, got {texts.yes!r} twice")
    kept = [readable(example) for example in questions]
    longest = max(map(len, labels))
    contexts: list[list[int]] = []
    cuts: list[list[int]] = []
    for number, (example, places) in enumerate(zip(questions, kept, strict=True)):
        about = {"question": example.question.strip(), "instruction": instruction or texts.instruction}
        before, ask = texts.query.format(**about), texts.ask.format(question=about["question"])
        passages = [(f"passages[{i}]", whole_text(example.passages[i]).strip()) for i in places]
        passages += [("the empty passage", "")] * (calibrate and bool(places))
        cuts.append([])
        for name, text in passages:
            pieces = before, texts.passage.format(passage=text), ask
            tokens, cut = prompt_around(reader, pieces, longest, on_overflow, f"question {number}: {name}", **chat)
            contexts.append(tokens)
            cuts[-1].append(cut)
    pairs = [(context, label) for context in contexts for label in labels]
    values = np.zeros((0, 2))
    if contexts:
        values, spent = label_logprobs(reader, contexts, labels, max_batch_tokens)
    odds, start, rankings = values[:, 0] - values[:, 1], 0, []
    for example, places, own_cuts in zip(questions, kept, cuts, strict=True):
        end, stats = start + len(own_cuts), NOTHING_READ
        own = odds[start:end] - (odds[end - 1] if calibrate and places else 0.0)
        if places:  # tokens that several questions share are counted once, for the whole pass
            alone = len(own_cuts) == len(contexts)
            stats = spent if alone else tokens_of(reader, pairs[2 * start : 2 * end], max_batch_tokens)
        rankings.append(by_value(example, places, own, own_cuts, YES_NO, stats))
        start = end
    return rankings
