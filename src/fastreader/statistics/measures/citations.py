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
