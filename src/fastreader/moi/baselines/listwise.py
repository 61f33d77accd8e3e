"""Listwise re-ranking as in RankGPT (Sun et al. 2023): the model generates the permutation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_int
from fastreader.core.tree import TreeStats
from fastreader.data.types import Passage
from fastreader.moi.baselines.ordering import NOTHING_READ, Ordering, check_passages, show
from fastreader.moi.quantities.observations import FloatArray
from fastreader.reader.prompts.texts import PromptTexts

if TYPE_CHECKING:
    from fastreader.core.protocol import ReaderProtocol


@checked
@dataclass(frozen=True)
class ListwisePrompt(PromptTexts):
    """The texts of a re-ranking request, in the order of the prompt.

    Attributes:
        instruction: field {question}, optionally {count}.
        passage: fields {number}, from 1, and {passage}.
        ask: optional fields {question} and {count}.
        words: show at most this number of words of a passage; RankGPT shows 300; None shows all.
    """

    OPTIONAL: ClassVar = {"instruction": {"count"}, "ask": {"question", "count"}}

    instruction: str = (
        "{count} passages follow, each with a number in brackets. Rank them by how relevant they are to the query: "
        "{question}\n\n"
    )
    passage: str = "[{number}] {passage}\n\n"
    ask: str = (
        "Query: {question}\nRank all {count} passages, the most relevant first. Write their numbers only, in the form "
        "[2] > [1], and no explanation."
    )
    words: int | None = 300


@dataclass(frozen=True)
class Parsed:
    """A generated permutation of n items.

    Attributes:
        named: items in the order written, from 0, each once.
        repeated: number of repetitions, which are ignored.
        unknown: number of numbers outside 1..n, which are ignored.
    """

    named: list[int]
    repeated: int
    unknown: int

    def complete(self, n: int) -> list[int]:
        """Return all n items: the named ones, then the others in their given order."""
        return self.named + [i for i in range(n) if i not in self.named]


def parse_permutation(text: str, n: int) -> Parsed:
    """Read a generated permutation: the numbers in brackets, or all numbers if none is in brackets.

    >>> parse_permutation("[3] > [1] > [3] > [9]", 3)
    Parsed(named=[2, 0], repeated=1, unknown=1)
    """
    written = re.findall(r"\[\s*(\d+)\s*\]", text) or re.findall(r"\d+", text)
    numbers = [int(x) - 1 if len(x) < 20 else n for x in written]  # int() rejects thousands of digits
    known = [number for number in numbers if 0 <= number < n]
    named = list(dict.fromkeys(known))
    return Parsed(named, len(known) - len(named), len(numbers) - len(known))


def rank_lists(
    reader: ReaderProtocol,
    question: str,
    passages: Sequence[Passage],
    orders: Sequence[Sequence[int]],
    *,
    prompt: ListwisePrompt | None = None,
    max_new_tokens: int | None = None,
    max_batch_tokens: int | None = None,
) -> tuple[list[Parsed], TreeStats]:
    """Ask for a ranking of each list of passages, greedily, all in one call.

    Args:
        orders: lists of indices into them; the prompt numbers passages by their place in the list.
        prompt: texts of a request.
        max_new_tokens: at most this number of tokens in an answer; None allows eight a passage, enough for "[12] > ".

    Returns:
        (for each list its parsed permutation, in places of the list; tokens given and computed)
    """
    texts = prompt or ListwisePrompt()
    shown = [cut_to_words(show(p), texts.words) for p in passages]
    prompts = []
    for order in orders:
        fields = {"question": question.strip(), "count": len(order)}
        numbered = [texts.passage.format(number=i + 1, passage=shown[p]) for i, p in enumerate(order)]
        prompts.append(reader.prompt([texts.instruction.format(**fields), *numbered, texts.ask.format(**fields)]))
    longest = max(len(order) for order in orders)
    results = reader.generate(prompts, max_new_tokens=max_new_tokens or 8 * longest, max_batch_tokens=max_batch_tokens)
    parsed = [parse_permutation(texts[0].text, len(order)) for texts, order in zip(results, orders, strict=True)]
    return parsed, results.stats


@checked
def listwise(
    reader: ReaderProtocol,
    question: str,
    passages: Sequence[Passage],
    *,
    prompt: ListwisePrompt | None = None,
    window: int = 20,
    step: int = 10,
    max_new_tokens: int | None = None,
    max_batch_tokens: int | None = None,
) -> Ordering:
    """Rank as RankGPT: one request for up to `window` passages, else windows that slide from the end to the start.

    Passages whose numbers the model does not generate follow in their order. `details` counts the numbers that
    it named, repeated or made up.

    Args:
        window: number of passages in one request, at least 2.
        step: number of places a window moves, at most `window`; below it, the best passages move along.
        prompt, max_new_tokens: same as `rank_lists`.

    Raises:
        InputError: if `window` < 2, or `step` is outside 1..window.
    """
    end = count = check_passages(passages)
    check_int("window", window, 2)
    check_int("step", step, 1, window)
    limits: dict[str, Any] = {"max_new_tokens": max_new_tokens, "max_batch_tokens": max_batch_tokens}
    order, stats = list(range(count)), NOTHING_READ
    details = {"asked": 0, "named": 0, "repeated": 0, "unknown": 0}
    while count > 1:
        start = max(0, end - int(window))
        part = order[start:end]
        (parsed,), spent = rank_lists(reader, question, passages, [part], prompt=prompt, **limits)
        order[start:end] = [part[i] for i in parsed.complete(len(part))]
        stats = stats + spent
        details["asked"] += len(part)
        details["named"] += len(parsed.named)
        details["repeated"] += parsed.repeated
        details["unknown"] += parsed.unknown
        if start == 0:
            break
        end -= step
    return Ordering(order, "rankgpt", rank_scores(order), stats, details)


def rank_scores(order: Sequence[int]) -> FloatArray:
    """Return scores from N - 1 for the first of an order down to 0 for the last: float64 [N]."""
    scores = np.empty(len(order))
    scores[list(order)] = np.arange(len(order))[::-1]
    return scores


def cut_to_words(text: str, words: int | None) -> str:
    """Return the first words of a text, all of it for None."""
    return text if words is None else " ".join(text.split()[:words])
