"""Measures of an answer against the right ones: exact match, token F1, containment, ROUGE-L, short-answer recall.

Normalisation is SQuAD's (Rajpurkar et al. 2016): lower case, no punctuation, no articles, single spaces. With several
right answers the best score counts.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from fastreader.core.checks import check_list, expect

_WORD = re.compile(r"[^\W_]+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Return SQuAD's normal form of `text`, which may be empty, as for "The" or "...".

    >>> normalise("The  River Nile!")
    'river nile'
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


def contained_words(answer: str, right: Sequence[str]) -> float:
    """Return 1.0 if the words of one of `right` follow each other in `answer`, in normal form, else 0.0.

    This is the accuracy ("EM") of Ensemble of Retrievers (arXiv 2405.20680): `contained` without parts of words.

    >>> contained_words("born in 1901", ["1"]), contained("born in 1901", ["1"])
    (0.0, 1.0)
    """
    check_list("right", right)
    words = f" {normalise(answer)} "
    return float(any(f" {n} " in words for r in right if (n := normalise(r))))


def rouge_l(answer: str, right: Sequence[str]) -> float:
    """Return ROUGE-L (Lin 2004): the F measure of the longest common subsequence of words, the best over `right`.

    Precision is its length over the words of `answer`, recall over a right answer's words. Words are runs of letters
    and digits in lower case, as in the package rouge-score without its stemmer, which knows English letters alone and
    cuts other words to pieces. Unlike `f1` it counts articles, and the order of the words matters.

    >>> rouge_l("police kill the gunman", ["police killed the gunman"])
    0.75
    """
    check_list("right", right)
    words = _WORD.findall(answer.lower())
    return max((_lcs_f1(words, _WORD.findall(r.lower())) for r in right), default=0.0)


def short_answer_recall(answer: str, right: Sequence[Sequence[str]]) -> float:
    """Return the share of the required short answers that `answer` contains (ASQA's STR-EM, Stelmakh et al. 2022).

    Args:
        answer: a long answer.
        right: for each required short answer its aliases, of which one is enough.

    Raises:
        InputError: if nothing is required.
    """
    check_list("right", right)
    expect(len(right) > 0, "right", "at least one short answer", right)
    return sum(contained(answer, aliases) for aliases in right) / len(right)


def _lcs_f1(a: list[str], b: list[str]) -> float:
    lengths = [0] * (len(b) + 1)  # of the longest common subsequence of the words of `a` so far and each start of `b`
    for word in a:
        diagonal = 0
        for j, other in enumerate(b, 1):
            above = lengths[j]
            lengths[j] = diagonal + 1 if word == other else max(above, lengths[j - 1])
            diagonal = above
    return 2 * lengths[-1] / (len(a) + len(b)) if lengths[-1] else 0.0


def _f1(answer: list[str], right: list[str]) -> float:
    common = sum((Counter(answer) & Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(answer), common / len(right)
    return 2 * precision * recall / (precision + recall)
