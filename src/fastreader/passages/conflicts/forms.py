"""Forms of texts in which equal answers are equal: words without case, marks and hyphens, numbers, and dates."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import NamedTuple

from fastreader.passages.conflicts.stems import LIGHT, stem
from fastreader.statistics.measures.answers import normalise

# Scripts whose words follow each other without a space, or with endings attached to them: Thai to Myanmar, Hangul,
# Khmer, kana to Han, their compatibility forms, and Han beyond 16 bits.
_UNSPACED = (
    "\u0e00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\uff66-\uffdc\U00020000-\U0003ffff"
)
_LETTER = f"(?:[^\\W_{_UNSPACED}]|[\u0300-\u036f])"
_WORD = re.compile(
    rf"[$£€]?(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+|[0-9]+)(?:\.[0-9]+)?%?(?!,?[0-9])(?!{_LETTER})"
    rf"|{_LETTER}+(?:['’&]{_LETTER}+)*|&|[{_UNSPACED}]+"
)
_NUMBER = re.compile(r"([$£€]?)([0-9,]+(?:\.[0-9]+)?)(%?)")
# A candidate with another sign, such as "C++", is compared as it is written.
_OTHER_SIGN = re.compile(rf"[^\w\s.,'’‘\"“”‐‑–—/()\[\]:;!?&%$£€\-\u0300-\u036f]|[{_UNSPACED}]")
_SENTENCE_ENDS = re.compile(r"[!?;|]|\n\s*\n|(?P<stop>\.\s)")
_split = re.compile(r"\w+").findall
_MONTHS = {
    name[:size]: number
    for number, name in enumerate(
        _split("january february march april may june july august september october november december"), 1
    )
    for size in (3, len(name))
} | {"sept": 9}
_DAYS = frozenset(_split("monday tuesday wednesday thursday friday saturday sunday on in"))
_SMALL = {
    word: number
    for number, word in enumerate(
        _split(
            "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
            "seventeen eighteen nineteen"
        ),
        1,
    )
} | {"zero": 0}
_TENS = {
    word: 10 * number for number, word in enumerate(_split("twenty thirty forty fifty sixty seventy eighty ninety"), 2)
}
_LARGE = {"thousand": 10**3, "million": 10**6, "billion": 10**9}
_ORDINALS = {
    word: f"{number}{'st' if number == 1 else 'nd' if number == 2 else 'rd' if number == 3 else 'th'}"
    for number, word in enumerate(
        _split(
            "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth "
            "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
        ),
        1,
    )
} | {"thirtieth": "30th"}
_UNIT = re.compile(r"([1-9])(st|nd|rd|th)")  # of "twenty-first"
# Of a number in words or digits: what is written before or behind the number instead, by the words after it.
_SIGNS = {
    ("percent",): ("", "%"),
    ("per", "cent"): ("", "%"),
    ("dollars",): ("$", ""),
    ("us", "dollars"): ("$", ""),
    ("euros",): ("€", ""),
}
_PRONOUN = frozenset(_split("no this that any every each which another"))  # before a "one" that is no number


class Word(NamedTuple):
    """A word's form and its place in the text."""

    form: str
    start: int
    end: int


class Date(NamedTuple):
    """A date and its place in the text. The year or the day may be missing."""

    year: int | None
    month: int
    day: int | None
    start: int
    end: int


@dataclass(frozen=True)
class Form:
    """What is looked for in a passage.

    Attributes:
        words: forms of the words.
        date: the date that the text consists of, or None.
        literal: the pattern of a text that is compared as it is written; None for all others.
        capital: whether a match needs a capital letter, as for "US" and "WHO".
    """

    words: tuple[str, ...]
    date: Date | None
    literal: re.Pattern[str] | None
    capital: bool


class FormText:
    """A text with the forms of its words and dates.

    Attributes:
        text: as it is written.
        words: its words and numbers, without "the".
        dates: its dates.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = _numbers(text, _words(text))
        self.dates = _dates(text, self.words)
        self._cased = any(map(str.isupper, text))
        self._places: dict[str, list[int]] = {}
        for place, word in enumerate(self.words):
            self._places.setdefault(word.form, []).append(place)

    def find(self, form: Form) -> list[tuple[int, int]]:
        """Return where the text has the form: start and end of each place."""
        if form.literal is not None:
            return [found.span() for found in form.literal.finditer(self.text)]
        if form.date is not None:
            return [(date.start, date.end) for date in self.dates if _agree(form.date, date)]
        size, found = len(form.words), []
        for first in self._places.get(form.words[0], ()):
            own = self.words[first : first + size]
            if tuple(word.form for word in own) != form.words:
                continue
            start, end = own[0].start, own[-1].end
            small = form.capital and self._cased and not any(map(str.isupper, self.text[start:end]))
            if not small and not any(self._ends(a, b) for a, b in pairwise(own)):
                found.append((start, end))
        return found

    def _ends(self, first: Word, second: Word) -> bool:
        """Return whether a sentence ends between two words. The full stop of an abbreviation ends none."""
        found = _SENTENCE_ENDS.search(self.text, first.end, second.start)
        return found is not None and (found["stop"] is None or len(first.form) > 3)


def form_of(text: str) -> Form:
    """Return the form of a candidate."""
    read = FormText(text)
    words = [word.form for word in read.words]
    if len(words) > 1 and words[0] in ("a", "an"):
        del words[0]
    literal = _pattern(text) if not words or _OTHER_SIGN.search(text) else None
    date = None
    if len(read.dates) == 1:
        start, end = read.dates[0].start, read.dates[0].end
        outside = {word.form for word in read.words if word.end <= start or word.start >= end}
        date = read.dates[0] if outside <= _DAYS else None
    letters = text.strip()
    capital = len(words) == 1 and letters.isupper() and sum(map(str.isalpha, letters)) in range(2, 5)
    return Form(tuple(words), date, literal, capital)


def key_of(text: str) -> str:
    """Return a key that is equal for texts of the same answer: SQuAD's normal form, with numbers and dates in one form.

    >>> key_of("July 4, 1776") == key_of("1776-07-04") and key_of("1,000") == key_of("one thousand")
    True
    """
    form = form_of(text)
    if form.literal is not None:
        return normalise(text)
    return " ".join(form.words) if form.date is None else f"date {form.date[:3]}"


def different(texts: Iterable[str]) -> list[str]:
    """Return the texts without those that say the same as an earlier one, as `conflicts` requires of candidates.

    >>> different(["4 July 1776", "Nile", "July 4, 1776"])
    ['4 July 1776', 'Nile']
    """
    found: dict[str, str] = {}
    for text in texts:
        found.setdefault(key_of(text), text)
    return list(found.values())


def content_words(words: Sequence[Word], stop: frozenset[str]) -> set[str]:
    """Return the stems of the words that are no function words and no verbs of little meaning."""
    return {stem(word.form) for word in words if word.form not in stop} - LIGHT


def _words(text: str) -> list[Word]:
    found: list[Word] = []
    for match in _WORD.finditer(text):
        form = _folded(match.group())
        initial = len(form) == 1 and form.isalpha() and text[match.end() : match.end() + 1] == "."
        if initial and found and re.fullmatch(r"\.\s?", text[found[-1].end : match.start()]) and _initials(found[-1]):
            found[-1] = Word(found[-1].form + form, found[-1].start, match.end())
        elif form and form != "the":  # marks alone have no form
            found.append(Word(form, match.start(), match.end()))
    return found


def _initials(word: Word) -> bool:
    """Return whether the word is initials as in "J. R.": every letter is followed by a full stop."""
    return word.form.isalpha() and word.end - word.start >= 2 * len(word.form) - 1 and len(word.form) < 5


def _folded(word: str) -> str:
    if word == "&":
        return "and"
    number = _NUMBER.fullmatch(word)
    if number:
        value = Decimal(number[2].replace(",", ""))
        plain = f"{value:f}"
        plain = plain.rstrip("0").rstrip(".") if "." in plain else plain
        return f"{number[1]}{plain.lstrip('0') or '0'}{number[3]}"
    marked = unicodedata.normalize("NFKD", word).casefold()
    plain = unicodedata.normalize("NFC", re.sub("[\u0300-\u036f]", "", marked))
    plain = re.sub(r"['’]s$", "", plain)
    plain = re.sub(r"['’]", "", plain)
    return _ORDINALS.get(plain, plain)


def _numbers(text: str, words: list[Word]) -> list[Word]:
    """Return the words with each number in words as digits: "one thousand" as "1000"."""
    found: list[Word] = []
    at = 0
    while at < len(words):
        value, end = _number(text, words, at)
        if value is None:
            found.append(words[at])
            at += 1
        else:
            found.append(Word(value, words[at].start, words[end - 1].end))
            at = end
    return found


def _number(text: str, words: list[Word], at: int) -> tuple[str | None, int]:
    """Return the number with its sign, or the ordinal, that begins at a word, and where it ends, or None."""
    first = words[at].form
    sign = first[0] if first[0] in "$£€" and len(first) > 1 else ""
    plain = first[len(sign) :]
    if not (plain in _SMALL or plain in _TENS or plain == "a" or plain[0].isdecimal()):
        return None, at
    if plain in _TENS and at + 1 < len(words) and _adjacent(text, words, at + 1):
        unit = _UNIT.fullmatch(words[at + 1].form)
        if unit:
            return f"{_TENS[plain] + int(unit[1])}{unit[2]}", at + 2
    stripped = [*words[:at], words[at]._replace(form=plain), *words[at + 1 : at + 12]] if sign else words
    value, end = _spelled(text, stripped, at)
    if value is None and re.fullmatch(r"[0-9]+(\.[0-9]+)?", plain):
        value, end = plain, at + 1
    if end == at + 1 and first == "one" and _is_pronoun(words, at):
        return None, at
    year = end == at + 1 and re.fullmatch(r"1[5-9][0-9]{2}|20[0-9]{2}", first)  # "in 2017 dollars"
    if value is None or sign or year:
        return (None if value is None else sign + value), end
    for names, (before, behind) in _SIGNS.items():
        after = words[end : end + len(names)]
        near = all(_adjacent(text, words, place) for place in range(end, end + len(after)))
        if tuple(word.form for word in after) == names and near:
            return before + value + behind, end + len(names)
    return value, end


def _adjacent(text: str, words: list[Word], place: int) -> bool:
    """Return whether only blanks or a hyphen are between a word and the one before it."""
    return not text[words[place - 1].end : words[place].start].strip(" \t\n-‐‑")


def _is_pronoun(words: list[Word], at: int) -> bool:
    before = words[at - 1].form if at else ""
    after = words[at + 1].form if at + 1 < len(words) else ""
    return before in _PRONOUN or after in ("of", "another", "who", "day")


def _spelled(text: str, words: list[Word], at: int) -> tuple[str | None, int]:
    """Return the number, in words or of digits and a word, that begins at a word, and where it ends."""

    def form(place: int) -> str:
        near = place == at or (place < len(words) and _adjacent(text, words, place))
        return words[place].form if place < len(words) and near else ""

    total, place, least = Decimal(0), at, 10**12
    while True:
        part, end = _below_thousand(form, place)
        if part is None and place == at and re.fullmatch(r"[0-9]+(\.[0-9]+)?", form(at)) and form(at + 1) in _LARGE:
            part, end = Decimal(form(at)), at + 1
        if part is None:
            break
        size = _LARGE.get(form(end), 1)
        if size >= least:
            break
        total, place, least = total + part * size, end + (size > 1), size
        if size == 1:
            break
    if place == at:
        return None, at
    plain = f"{total:f}"
    return plain.rstrip("0").rstrip(".") if "." in plain else plain, place


def _below_thousand(form: Callable[[int], str], place: int) -> tuple[Decimal | None, int]:
    value, end = _below_hundred(form, place)
    if value is None and form(place) == "a" and form(place + 1) in ("hundred", *_LARGE):
        value, end = 1, place + 1
    if value is not None and value < 10 and form(end) == "hundred":
        rest, after = _below_hundred(form, end + 1 + (form(end + 1) == "and"))
        value, end = (100 * value, end + 1) if rest is None else (100 * value + rest, after)
    return (None, place) if value is None else (Decimal(value), end)


def _below_hundred(form: Callable[[int], str], place: int) -> tuple[int | None, int]:
    word = form(place)
    if word in _TENS:
        unit = _SMALL.get(form(place + 1), 0)
        return (_TENS[word] + unit, place + 2) if 0 < unit < 10 else (_TENS[word], place + 1)
    return (_SMALL[word], place + 1) if word in _SMALL else (None, place)


def _dates(text: str, words: list[Word]) -> list[Date]:
    found: list[Date] = []
    at = 0
    while at < len(words):
        if slashed := _slashed(text, words[at : at + 3]):
            found += slashed
            at += 3
            continue
        date, end = _date(text, words, at) if _parts(words[at].form) else (None, at)
        if date is not None:
            found.append(date)
        at = max(end, at + 1)
    return found


def _slashed(text: str, words: list[Word]) -> list[Date]:
    """Return the dates that numbers with slashes may be: of 4/7/1776 two, since countries differ in the order."""
    if len(words) < 3 or any(text[a.end : b.start] != "/" for a, b in pairwise(words)):
        return []
    kinds, found = [_parts(word.form) if word.form.isdecimal() else {} for word in words], set()
    for names in ("d m y", "m d y", "y m d"):
        if all(name in kind for name, kind in zip(names.split(), kinds, strict=True)):
            values = {name: kind[name] for name, kind in zip(names.split(), kinds, strict=True)}
            found.add(Date(values["y"], values["m"], values["d"], words[0].start, words[-1].end))
    return sorted(found)


def _date(text: str, words: list[Word], at: int) -> tuple[Date | None, int]:
    """Return the date that begins at a word, and the index of the word after it."""
    near = [words[at]]
    for before, word in pairwise(words[at : at + 5]):
        if text[before.end : word.start].strip(" \t\n,.-"):
            break
        if word.form != "of":
            near.append(word)
    kinds = [_parts(word.form) for word in near[:3]]
    kinds += [{}] * (3 - len(kinds))
    for order in ("d m y", "m d y", "y m d", "d m", "m d", "m y"):
        names = order.split()
        if not all(name in kind for name, kind in zip(names, kinds, strict=False)):
            continue
        if names == ["y", "m", "d"] and not near[1].form.isalpha() and not _dashed(text, near):
            continue
        if names != ["y", "m", "d"] and not near[names.index("m")].form.isalpha():
            continue
        values = {name: kind[name] for name, kind in zip(names, kinds, strict=False)}
        last = near[len(names) - 1]
        date = Date(values.get("y"), values["m"], values.get("d"), near[0].start, last.end)
        return date, words.index(last, at) + 1
    return None, at


def _dashed(text: str, near: list[Word]) -> bool:
    return all(text[a.end : b.start] == "-" for a, b in pairwise(near[:3]))


def _parts(form: str) -> dict[str, int]:
    """Return what a word can be in a date: d, m or y."""
    if form in _MONTHS:
        return {"m": _MONTHS[form]}
    if not form[0].isdecimal():
        return {}
    number = re.fullmatch(r"([0-9]{1,4})(st|nd|rd|th)?", form)
    if number is None:
        return {}
    value = int(number[1])
    found = {"d": value} if 1 <= value <= 31 else {}
    if not number[2]:
        found |= {"m": value} if 1 <= value <= 12 else {}
        found |= {"y": value} if 1000 <= value <= 2999 else {}
    return found


def _agree(wanted: Date, found: Date) -> bool:
    """Return whether a date says all that the wanted one says. A year alone is no date."""
    return wanted.month == found.month and wanted.day in (None, found.day) and wanted.year in (None, found.year)


def _pattern(text: str) -> re.Pattern[str]:
    words = r"\s+".join(map(re.escape, text.split()))
    spaced = rf"[^\W{_UNSPACED}]"
    before = rf"(?<!{spaced})" if re.match(rf"\s*[^{_UNSPACED}]", text) else ""
    after = rf"(?!{spaced})" if re.search(rf"[^{_UNSPACED}]\s*$", text) else ""
    return re.compile(before + words + after, re.IGNORECASE)
