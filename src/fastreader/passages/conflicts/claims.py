"""Claims: which candidates a passage states, what it could state instead, and spans that may be answers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fastreader.data.types import Passage
from fastreader.statistics.measures.answers import normalise

_WORD = re.compile(r"[^\W_]+(?:['’.\-–/][^\W_]+)*%?")
_BREAK = re.compile(r"[.,;:()\[\]\"“”!?|]")
_DATE = re.compile(r"\d{1,2}, \d{4}")  # whose comma is no break
_JOINS = frozenset(("of", "de", "du", "la", "van", "von"))  # inside a name
_STOP = frozenset(
    re.findall(
        r"\w+",
        "a about after all also an and any are as at be been before being between both but by can could did do does "
        "during each for from had has have he her his how however i if in into is it its itself later many more most "
        "much no not of on one only or other our over s same several she should since so some such than that the their "
        "them then there these they this those through to under until up was we were what when where which while who "
        "whose will with would you",
    )
)
# Scripts whose words follow each other without a space, or with endings attached to them: Thai to Myanmar, Hangul,
# Khmer, kana to Han, their compatibility forms, and Han beyond 16 bits.
_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff"
)
_PHRASE = 3  # words of a phrase in lower case


def spans(text: str) -> list[str]:
    """Return what may answer a question: names, dates, numbers, and phrases without function words, each once."""
    words = [(m.group(), m.start(), m.end()) for m in _WORD.finditer(text)]
    found: dict[str, str] = {}
    start = 0
    while start < len(words):
        if words[start][0].lower() in _STOP:
            start += 1
            continue
        named = _is_name(words[start][0])
        end = last = start + 1
        while end < len(words) and not _breaks(text, words[end - 1], words[end]):
            word = words[end][0]
            if _is_name(word) == named and word.lower() not in _STOP:
                last = end + 1
            elif not (named and (word in _JOINS or (word == "the" and words[end - 1][0] == "of"))):
                break
            end += 1
        first = start if named else max(start, last - _PHRASE)
        span = text[words[first][1] : words[last - 1][2]]
        found.setdefault(normalise(span), span)
        start = last
    found.pop("", None)
    return list(found.values())


def stated(candidate: str, passage: Passage) -> bool:
    """Return whether the passage's text has the candidate as whole words, whatever the case.

    A word may begin or end anywhere in scripts without spaces between words.
    """
    return bool(_pattern(candidate).search(passage.text))


def instead(passage: Passage, claim: str, others: Sequence[str], after: int = 160) -> list[Passage]:
    """Return the passage up to some characters after its first claim, with each of `others` instead of the claim."""
    pattern = _pattern(claim)
    found = pattern.search(passage.text)
    assert found is not None
    cut = passage.text.find(" ", found.end() + after)
    text = passage.text if cut < 0 else passage.text[:cut]
    literal = [new.replace("\\", r"\\") for new in others]  # as a template of re.sub
    return [Passage(pattern.sub(new, text), pattern.sub(new, passage.title)) for new in literal]


def _breaks(text: str, first: tuple[str, int, int], second: tuple[str, int, int]) -> bool:
    if _DATE.fullmatch(text[first[1] : second[2]]):
        return False
    return bool(_BREAK.search(text[first[2] : second[1]]))


def _is_name(word: str) -> bool:
    return word[0].isupper() or word[0].isdigit()


def _pattern(text: str) -> re.Pattern[str]:
    words = r"\s+".join(map(re.escape, text.split()))
    spaced = rf"[^\W{_UNSPACED}]"
    before = rf"(?<!{spaced})" if re.match(rf"\s*[^{_UNSPACED}]", text) else ""
    after = rf"(?!{spaced})" if re.search(rf"[^{_UNSPACED}]\s*$", text) else ""
    return re.compile(before + words + after, re.IGNORECASE)
