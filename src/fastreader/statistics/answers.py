"""Measures of an answer against the right ones: exact match, token F1, containment.

Normalisation is SQuAD's (Rajpurkar et al. 2016): lower case, no punctuation, no articles, single spaces. With several
right answers the best score counts.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from fastreader.core.checks import check_list

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Return SQuAD's normal form of `text`, which may be empty, as for "The" or "...".

    >>> normalise("The  Eiffel Tower!")
    'eiffel tower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


cached_normalise = lru_cache(maxsize=1 << 16)(normalise)


def exact_match(answer: str, right: Sequence[str]) -> float:
    """Return 1.0 if the normal form of `answer` is not empty and equals that of one of `right`, else 0.0."""
    check_list("right", right)
    normal = normalise(answer)
    return float(bool(normal) and any(normal == normalise(r) for r in right))


def f1(answer: str, right: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall over the normalised words, the best over `right`."""
    check_list("right", right)
    return max((_f1(normalise(answer).split(), normalise(r).split()) for r in right), default=0.0)


def contained(answer: str, right: Sequence[str]) -> float:
    """Return 1.0 if the normal form of one of `right` is not empty and a substring of that of `answer`, else 0.0."""
    check_list("right", right)
    normal = normalise(answer)
    return float(any(n in normal for r in right if (n := normalise(r))))


def _f1(answer: list[str], right: list[str]) -> float:
    common = sum((Counter(answer) & Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(answer), common / len(right)
    return 2 * precision * recall / (precision + recall)
