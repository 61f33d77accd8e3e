"""Claims: spans of a passage that may be answers to a question."""

from __future__ import annotations

import re

from fastreader.statistics.measures.answers import normalise

_WORD = re.compile(r"[^\W_]+(?:['’.\-–/][^\W_]+)*%?")
_BREAK = re.compile(r"[.,;:()\[\]\"“”!?|]")
_DATE = re.compile(r"\d{1,2}, \d{4}")  # whose comma is no break
_JOINS = frozenset(("of", "de", "du", "la", "van", "von"))  # inside a name
STOP = frozenset(
    re.findall(
        r"\w+",
        "a about after all also an and any are as at be been before being between both but by can could did do does "
        "during each for from had has have he her his how however i if in into is it its itself later many more most "
        "much no not of on one only or other our over s same several she should since so some such than that the their "
        "them then there these they this those through to under until up was we were what when where which while who "
        "whose will with would you",
    )
)
_PHRASE = 3  # words of a phrase in lower case
_ASKED = re.compile(r"\b(?:who|whom|whose|where|when|how (?:many|much)|(?:which|what) year)\b", re.IGNORECASE)
_TIME = re.compile(
    r"\b(?:1[0-9]{3}|20[0-9]{2})s?\b|\b(?:January|February|March|April|May|June|July|August|September|October|November"
    r"|December)\b"
)
_YEAR = re.compile("1[0-9]{3}|20[0-9]{2}")
_NUMERAL = re.compile(
    r"[0-9]|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|forty|fifty"
    r"|sixty|seventy|eighty|ninety|hundred|thousand|million|billion)\b",
    re.IGNORECASE,
)


def spans(text: str) -> list[str]:
    """Return what may answer a question: names, dates, numbers, and phrases without function words, each once."""
    words = [(m.group(), m.start(), m.end()) for m in _WORD.finditer(text)]
    found: dict[str, str] = {}
    start = 0
    while start < len(words):
        if words[start][0].lower() in STOP:
            start += 1
            continue
        named = _is_name(words[start][0])
        end = last = start + 1
        while end < len(words) and not _breaks(text, words[end - 1], words[end]):
            word = words[end][0]
            if _is_name(word) == named and word.lower() not in STOP:
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


def proposed(question: str, text: str) -> list[str]:
    """Return the spans that have the form the question asks for and are not part of the question.

    "Who" and "where" ask for a name, "when" for a date or a year, "how many" and "how much" for a number; other
    questions take any span. In a text without capital letters any phrase may be a name.
    """
    own = f" {normalise(question)} "
    others = [span for span in spans(text) if f" {normalise(span)} " not in own]
    found = _ASKED.search(question)
    asked = found[0].lower() if found else ""
    if asked == "when" or asked.endswith("year"):
        return [span for span in others if _TIME.search(span)]
    if asked.startswith("how"):
        return [span for span in others if _NUMERAL.search(span)]
    if asked and any(map(str.isupper, text)):
        return [span for span in others if span[0].isupper() and not _TIME.fullmatch(span)]
    return others


def _breaks(text: str, first: tuple[str, int, int], second: tuple[str, int, int]) -> bool:
    if _DATE.fullmatch(text[first[1] : second[2]]):
        return False
    if _YEAR.fullmatch(first[0]) and second[0][0].isupper() and not _TIME.fullmatch(second[0]):
        return True  # "In 1815 Jane Austen"
    return bool(_BREAK.search(text[first[2] : second[1]]))


def _is_name(word: str) -> bool:
    return word[0].isupper() or word[0].isdigit()
