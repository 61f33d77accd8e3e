"""Listwise re-ranking by one token, as in FIRST (Gangi Reddy et al. 2024): by the identifiers' probabilities."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_int
from fastreader.core.tree import TreeStats
from fastreader.data.types import Passage
from fastreader.moi.baselines.consistency import shuffles
from fastreader.moi.baselines.listwise import cut_to_words, rank_scores
from fastreader.moi.baselines.ordering import NOTHING_READ, Ordering, by_score, check_passages, show
from fastreader.moi.quantities.observations import FloatArray
from fastreader.reader.prompts.texts import PromptTexts
from fastreader.scoring.labels import label_logprobs

if TYPE_CHECKING:
    from fastreader.core.protocol import ReaderProtocol

IDENTIFIERS = string.ascii_uppercase


@checked
@dataclass(frozen=True)
class FirstTokenPrompt(PromptTexts):
    """The texts of a request for the best passage, in the order of the prompt.

    Attributes:
        instruction: field {question}, optionally {count}.
        passage: fields {identifier}, a capital letter, and {passage}.
        ask: optional fields {question} and {count}.
        words: show at most this number of words of a passage; None shows all.
    """

    OPTIONAL: ClassVar = {"instruction": {"count"}, "ask": {"question", "count"}}

    instruction: str = (
        "{count} passages follow, each after a letter. Find the one that is most relevant to the query: {question}\n\n"
    )
    passage: str = "{identifier}: {passage}\n\n"
    ask: str = "Query: {question}\nWrite the letter of the most relevant passage, and nothing else."
    words: int | None = 300


@checked
def first_token(
    reader: ReaderProtocol,
    question: str,
    passages: Sequence[Passage],
    *,
    orders: int = 1,
    window: int = 20,
    step: int = 10,
    seed: int = 0,
    prompt: FirstTokenPrompt | None = None,
    max_batch_tokens: int | None = None,
) -> Ordering:
    """Order passages by the log-probability of their identifiers where the answer begins, without generating.

    One prompt holds all passages of a window. A passage's score is its identifier's log-probability among the
    identifiers. Windows slide from the end of the list to its start, as RankGPT's do.

    Args:
        orders: read each window in its given order and in `orders` - 1 random ones, at most as many as there are, in
            one pass, and take the mean of a passage's scores, which cancels part of the effect of the place.
        window: number of passages in one prompt, from 2 to 26.
        step: number of places a window moves, at most `window`; below it, the best passages move along.
        seed: of the random orders.
        prompt: texts of the request.

    Returns:
        With one window, scores are in nats; with several they are places, N - 1 for the first down to 0.

    Raises:
        InputError: if `orders`, `window` or `step` is out of range.
    """
    end = count = check_passages(passages)
    check_int("orders", orders)
    check_int("window", window, 2, len(IDENTIFIERS))
    check_int("step", step, 1, window)
    texts, order, stats = prompt or FirstTokenPrompt(), list(range(count)), NOTHING_READ
    if count == 1:
        return by_score("first-token", [0.0])
    while True:
        start = max(0, end - int(window))
        part = order[start:end]
        given = list(range(len(part)))
        places = [given, *(row for row in shuffles(len(part), orders, seed) if row != given)][:orders]
        scores, spent = _scores(reader, question, [passages[i] for i in part], places, texts, max_batch_tokens)
        stats = stats + spent
        order[start:end] = [part[i] for i in np.argsort(-scores, kind="stable")]
        if start == 0:
            break
        end -= step
    if count <= window:
        return by_score("first-token", scores, stats, {"orders": len(places)})
    return Ordering(order, "first-token", rank_scores(order), stats, {"orders": len(places)})


def _scores(
    reader: ReaderProtocol,
    question: str,
    passages: Sequence[Passage],
    orders: Sequence[Sequence[int]],
    texts: FirstTokenPrompt,
    max_batch_tokens: int | None,
) -> tuple[FloatArray, TreeStats]:
    """Return each passage's mean log-probability over orders, float64 [n], and the tokens."""
    about = {"question": question.strip(), "count": len(passages)}
    shown = [cut_to_words(show(passage), texts.words) for passage in passages]
    contexts = []
    for order in orders:
        listed = [texts.passage.format(identifier=IDENTIFIERS[at], passage=shown[i]) for at, i in enumerate(order)]
        contexts.append(reader.prompt([texts.instruction.format(**about), *listed, texts.ask.format(**about)]))
    labels = [reader.continuation(letter) for letter in IDENTIFIERS[: len(passages)]]
    values, stats = label_logprobs(reader, contexts, labels, max_batch_tokens)
    values -= np.logaddexp.reduce(values, axis=1, keepdims=True)
    found = np.zeros((len(orders), len(passages)))
    for row, order in enumerate(orders):
        found[row, list(order)] = values[row]
    mean: FloatArray = found.mean(axis=0)
    return mean, stats
