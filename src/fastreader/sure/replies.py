"""Parse replies: short answers, candidates in the form "(a) xx, (b) yy", and choices among labels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from fastreader.core.checked import checked, checked_methods
from fastreader.statistics.measures.answers import normalise
from fastreader.sure.templates import PLACEHOLDERS

DONE = "[DONE]"
_DONE = re.compile(r"\[\s*done\s*\]", re.IGNORECASE)
# Scripts that write words, or a word and its particles, without a space: Thai and Lao, Burmese, Khmer, kana, Han,
# Hangul.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_EDGE = rf"[^\W{_UNSPACED}]"  # a character that may not be next to a word
_STANDS = re.compile(r"(?:^|[,;:\n]|\band|\bor)\s*$")  # before a marker in a list, but not before a letter in a name
_LETTER = re.compile(rf"(?<!{_EDGE})\(([a-zA-Z])\)")
_LISTED = re.compile(r"^[ \t]*(?:[a-z][.):]|\(?\d{1,2}[.):]+|[-*•])[ \t]+(\S.*)$", re.MULTILINE)
_START = r"(?:^|(?<=[,;:\n])|(?<=\band)|(?<=\bor))\s*"
_INLINE = (  # markers that count up from "a" or 1; a letter with a dot or colon after a word may be a name
    re.compile(rf"(?:(?<![\w(])|{_START})([a-zA-Z])\)(?=\s|$)"),
    re.compile(rf"{_START}([a-zA-Z])[.:](?=\s|$)"),
    re.compile(r"(?<![\w.(])\(?(\d{1,2})[.):]+(?=\s|$)"),
)
_LEAD = re.compile(
    r"^\W*(?:(?:the|my|possible|likely|best|correct|short|two|three|four) )*"
    r"(?:answers?|candidates?|predictions?|options?|choices?)\b(?: (?:to|for) (?:the|this|your|that) question\b)?"
    r"\s*(?:(?:is|are|could be|may be|might be)\b\s*:?|:)",
    re.IGNORECASE,
)
_CONJUNCTION = re.compile(r"[\s,;]+(?:and|or)$", re.IGNORECASE)
_EDGES = " \t\r\n,.;:*_"
_QUOTES = (('"', '"'), ("“", "”"), ("'", "'"), ("`", "`"))
_MOST_PARTS = 4  # maximum number of parts between commas for which a reply without markers is split


@checked_methods
@dataclass(frozen=True)
class CandidateReply:
    """The candidates found in one reply.

    Attributes:
        candidates: distinct, not empty, at most k.
        reply: the reader's text.
        form: how the reply separates them: "letters" ("(a) xx, (b) yy"), "list" (a line each), "commas", "whole" (the
            reply is one candidate) or "none" (it is empty).
        notes: one for everything left out, cut or missing.
    """

    candidates: list[str]
    reply: str
    form: str
    notes: list[str] = field(default_factory=list)


@checked
def parse_candidates(reply: str, k: int = 2, *, longest: int = 20) -> CandidateReply:
    """Parse the candidates of a reply.

    Letters in order, "(a)", "(b)", ..., are tried first, then other markers that count up ("a)", "1.", "(1)"), then a
    list with one candidate a line. Without any of them, the first paragraph that does not end in a colon is split at
    commas and line breaks if that gives at most four parts, and is one candidate otherwise. "[DONE]" and the text after
    it are removed, and so is a lead-in ("The answer is"). A piece of more than `longest` words is cut. A piece is left
    out if it is empty, repeats another (after the normalisation of exact match), only repeats its place in the answer
    form ("xx" as the first), or is beyond `k`. Each of these, and fewer than `k` candidates, adds a note.

    Args:
        reply: the reader's text.
        k: number of candidates asked for.
        longest: maximum number of words of a candidate.
    """
    form, pieces = _pieces(without_done(reply))
    notes: list[str] = []
    kept: list[str] = []
    seen: set[str] = set()
    for place, raw in enumerate(pieces):
        words = _clean(raw).split()
        piece = " ".join(words[:longest])
        key = normalise(piece) or piece.casefold()
        if not piece:
            notes.append("an empty candidate was left out")
        elif piece in PLACEHOLDERS[:k][place : place + 1]:
            notes.append(f"{piece!r} only repeats the answer form and was left out")
        elif key in seen:
            notes.append(f"{piece!r} appears twice and counts once")
        elif len(kept) == k:
            notes.append(f"{piece!r} is beyond the {k} asked for and was left out")
        else:
            if len(words) > longest:
                notes.append(f"a candidate of {len(words)} words was cut to {longest}")
            seen.add(key)
            kept.append(piece)
    if len(kept) < k:
        notes.append(f"found {len(kept)} of the {k} candidates asked for")
    return CandidateReply(kept, reply, form if kept else "none", notes)


def without_done(reply: str) -> str:
    """Return the text before "[DONE]", stripped, or the first text after it if that is empty.

    >>> without_done("A passage. [DONE] And more")
    'A passage.'
    """
    for part in _DONE.split(reply):
        if text := part.strip():
            return text
    return ""


def short_answer(reply: str) -> str:
    """Return the first line that is not empty, without a lead-in and without marks at its edges.

    >>> short_answer("\\nThe answer is: Paris.\\nBecause")
    'Paris'
    """
    for line in without_done(reply).splitlines():
        if text := _clean(_LEAD.sub("", line)):
            return text
    return ""


def parse_label(reply: str, labels: Sequence[str]) -> int | None:
    """Return the index of the label that comes first in a reply, as whole words in any case, or None.

    >>> parse_label("The passage is true.", ["True", "False"])
    0
    """
    places = []
    for index, label in enumerate(labels):
        if found := whole_words(label).search(reply):
            places.append((found.start(), index))
    return min(places)[1] if places else None


def whole_words(text: str) -> re.Pattern[str]:
    """Return a pattern that matches a text as whole words, in any case and with any white space.

    In scripts without spaces between words, a match may start and end anywhere.

    >>> [bool(whole_words("Nil").search(reply)) for reply in ("It is the Nil.", "Nile")]
    [True, False]
    """
    words = text.split()
    unspaced = re.compile(f"[{_UNSPACED}]")
    before = "" if unspaced.match(words[0][0]) else f"(?<!{_EDGE})"
    after = "" if unspaced.match(words[-1][-1]) else f"(?!{_EDGE})"
    return re.compile(before + r"\s*".join(re.escape(word) for word in words) + after, re.IGNORECASE)


def _pieces(text: str) -> tuple[str, list[str]]:
    """Return the form of `text`, see `CandidateReply.form`, and its pieces."""
    if pieces := _lettered(text):
        return "letters", pieces
    if pieces := _counted(text):
        return "list", pieces
    if listed := _LISTED.findall(text):
        return "list", listed
    # A paragraph that ends in a colon only announces the next, as does a lead-in with an empty line after it.
    paragraphs = re.split(r"\n\s*\n", _LEAD.sub("", text).strip())
    paragraph = next((p for p in paragraphs if not p.rstrip().endswith(":")), paragraphs[0])
    if not _clean(paragraph):
        return "none", []
    parts = list(filter(_clean, re.split(r"[,\n]", paragraph)))
    if 1 < len(parts) <= _MOST_PARTS:
        return "commas", parts
    return "whole", [" ".join(paragraph.split())]


def _lettered(text: str) -> list[str]:
    """Return the pieces after "(a)", "(b)", ...: letters in order, up to a letter that was there already.

    A text may begin after its "(a)". A letter is skipped if the letter that is due comes after it, in the case of the
    first, so that "Vitamin (c), (b) iron" holds no third candidate. A letter of the other case is also skipped if it is
    not the one that is due, or is not in the place of a marker.
    """
    found = list(_LETTER.finditer(text))
    indices, lower = [], []
    for mark in found:
        indices.append(ord(mark.group(1).lower()) - ord("a"))
        lower.append(mark.group(1).islower())
    markers: list[tuple[int, int]] = []  # start and end of each piece's marker
    last, whole = -1, len(text)
    case = False  # of the first letter, True for lower case
    for i, (mark, index) in enumerate(zip(found, indices, strict=True)):
        like_first = lower[i] == case
        if not markers:
            if index == 1 and _clean(text[: mark.start()]):
                markers.append((0, 0))
                last = 0
            elif index:
                continue
            case = lower[i]
        elif index <= last:
            if not like_first:
                continue
            whole = mark.start()
            break
        elif index > last + 1 or not like_first:
            later = [indices[j] for j in range(i + 1, len(found)) if lower[j] == case]
            stands = index == last + 1 and _STANDS.search(text[: mark.start()])
            if _awaited(last + 1, later) or not (like_first or stands):
                continue
        markers.append(mark.span())
        last = index
    pieces = _between(text, markers, whole)
    if markers and markers[0] == (0, 0):
        pieces[0] = _LEAD.sub("", pieces[0])
    return pieces


def _awaited(due: int, later: list[int]) -> bool:
    """Return whether `due` comes before any letter that was there already."""
    return next((index == due for index in later if index <= due), False)


def _counted(text: str) -> list[str]:
    """Return the pieces after two or more markers that count up from the first, with text between them."""
    for pattern in _INLINE:
        markers: list[tuple[int, int]] = []
        whole = len(text)
        for found in pattern.finditer(text):
            mark = found.group(1).lower()
            index = int(mark) - 1 if mark.isdecimal() else ord(mark) - ord("a")
            if index == len(markers):
                markers.append(found.span())
            elif markers and index == 0:
                whole = found.start()
                break
        pieces = _between(text, markers, whole)
        if len(pieces) > 1 and all(_clean(piece) for piece in pieces[:-1]):
            return pieces
    return []


def _between(text: str, markers: list[tuple[int, int]], whole: int) -> list[str]:
    """Return the first line between each marker (start, end) and the next, or `whole`."""
    pieces = []
    for i, (_, start) in enumerate(markers):
        end = markers[i + 1][0] if i + 1 < len(markers) else whole
        lines = text[start:end].strip().splitlines() or [""]
        pieces.append(_CONJUNCTION.sub("", lines[0].strip()) if end < whole else lines[0])
    return pieces


def _clean(piece: str) -> str:
    """Return a piece on one line, without marks and quotes around it."""
    text = " ".join(piece.split()).strip(_EDGES)
    for opening, closing in _QUOTES:
        if len(text) > 1 and text.startswith(opening) and text.endswith(closing):
            text = text[1:-1].strip(_EDGES)
    return text
