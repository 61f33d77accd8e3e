"""Measures of citations: which passages an answer cites, whether they support it, and whether they are the gold ones.

An answer cites passages by their number in the prompt, from 1: "Cairo [2]", "Cairo [1, 3]", "Cairo [1][3]".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from fastreader.core.checks import check_int, check_list, expect
from fastreader.statistics.measures.answers import normalise

_CITATION = re.compile(r"\s*\[\s*(\d{1,6}(?:\s*[,;]\s*\d{1,6})*)\s*\]")
# The citations after a full stop belong to the sentence before.
_SENTENCE = re.compile(r"\S.*?(?:[.!?]+[\"'”’)]*(?:\s*\[\s*\d[\d\s,;]*\])*(?=\s|$)|$)", re.DOTALL)
_SUPPORTS = 0.5


def cited(answer: str, passages: int) -> list[int]:
    """Return the indices, from 0, of the existing passages that an answer cites, each once.

    >>> cited("Cairo [2], on the Nile [1; 2] [9].", 3)
    [1, 0]
    """
    check_int("passages", passages, 0)
    numbers = (int(n) for found in _CITATION.findall(answer) for n in re.split(r"[,;]", found))
    return list(dict.fromkeys(n - 1 for n in numbers if 1 <= n <= passages))


def without_citations(answer: str) -> str:
    """Return an answer without its citations.

    >>> without_citations("Cairo [2], on the Nile [1; 3].")
    'Cairo, on the Nile.'
    """
    return _CITATION.sub("", answer).strip()


def contains(passage: str, answer: str) -> float:
    """Return 1.0 if a passage contains the answer, both in SQuAD's normal form, the answer's not empty, else 0.0."""
    normal = normalise(answer)
    return float(bool(normal) and normal in normalise(passage))


def citation_recall(answer: str, passages: Sequence[str], supports: Callable[[str, str], float] = contains) -> float:
    """Return whether the cited passages, taken together, support the answer (Gao et al. 2023, for one statement).

    Args:
        answer: with its citations.
        passages: as the prompt numbered them.
        supports: from a passage and an answer without citations to a number in [0, 1].

    Returns:
        `supports` of the cited passages, joined in their order in the prompt; 0 if the answer cites none.
    """
    check_list("passages", passages)
    own = cited(answer, len(passages))
    return supports("\n".join(passages[i] for i in sorted(own)), without_citations(answer)) if own else 0.0


def citation_precision(
    answer: str, passages: Sequence[str], supports: Callable[[str, str], float] = contains
) -> float | None:
    """Return the share of the cited passages that support the answer by themselves, or None if it cites none.

    Gao et al. (2023) also count a passage that supports the answer only together with others; this does not.
    Takes the arguments of `citation_recall`.
    """
    check_list("passages", passages)
    own = cited(answer, len(passages))
    text = without_citations(answer)
    return sum(supports(passages[i], text) for i in own) / len(own) if own else None


def sentences(answer: str) -> list[str]:
    """Return the sentences of an answer, each with its citations, also those after its full stop.

    A sentence ends at a full stop, an exclamation mark or a question mark before a space, so that an abbreviation also
    ends one. What holds no word is left out.

    >>> sentences("It is in Egypt. [1] It has 10.2 million people [2, 3]. Why?")
    ['It is in Egypt. [1]', 'It has 10.2 million people [2, 3].', 'Why?']
    """
    found = (each.strip() for each in _SENTENCE.findall(answer))
    return [each for each in found if normalise(without_citations(each))]


def citation_false_positives(
    answer: str, passages: Sequence[str], supports: Callable[[str, str], float] = contains
) -> float | None:
    """Return the share of the sentences that cite a passage which does not support them, or None without a sentence.

    One of the two errors of a sentence that Mixture-of-Intervention counts (arXiv 2412.10684, Table 2). A passage
    supports a sentence if `supports` is at least 0.5. Takes the arguments of `citation_recall`.
    """
    return _sentences_with_error(answer, passages, supports, positive=True)


def citation_false_negatives(
    answer: str, passages: Sequence[str], supports: Callable[[str, str], float] = contains
) -> float | None:
    """Return the share of the sentences that do not cite a passage which supports them, or None without a sentence.

    The other error of a sentence, see `citation_false_positives`.
    """
    return _sentences_with_error(answer, passages, supports, positive=False)


def _sentences_with_error(
    answer: str, passages: Sequence[str], supports: Callable[[str, str], float], *, positive: bool
) -> float | None:
    check_list("passages", passages)
    errors = []
    for sentence in sentences(answer):
        own, text = set(cited(sentence, len(passages))), without_citations(sentence)
        asked = [passage for i, passage in enumerate(passages) if (i in own) == positive]
        # A list, not a generator: a caller collects the pairs, to judge all of them together.
        errors.append(any([(supports(passage, text) >= _SUPPORTS) != positive for passage in asked]))  # noqa: C419
    return sum(errors) / len(errors) if errors else None


@dataclass(frozen=True)
class Support:
    """Chosen passages against the gold ones (HotpotQA's supporting facts, Yang et al. 2018, with passages as facts).

    Attributes:
        em: 1.0 if exactly the gold passages were chosen, else 0.0.
        precision: share of the chosen ones that are gold; 0 if none was chosen.
        recall: share of the gold ones that were chosen.
        f1: harmonic mean of both; 0 if both are 0.
    """

    em: float
    precision: float
    recall: float
    f1: float


def support(chosen: Collection[int], gold: Collection[int]) -> Support:
    """Compare chosen passages, such as those that an answer cites or that were read, with all gold ones.

    Args:
        chosen, gold: indices; repeated ones count once.

    Raises:
        InputError: if no passage is gold.
    """
    ours, theirs = set(chosen), set(gold)
    expect(bool(theirs), "gold", "at least one gold passage", gold)
    both = len(ours & theirs)
    precision, recall = both / len(ours) if ours else 0.0, both / len(theirs)
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    return Support(float(ours == theirs), precision, recall, f1)
