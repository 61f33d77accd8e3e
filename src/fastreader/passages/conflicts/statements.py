"""Statements: which candidates the passages state or deny, where, and what a passage would be with another one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fastreader.data.types import Passage
from fastreader.passages.conflicts.claims import STOP
from fastreader.passages.conflicts.forms import Form, FormText, content_words, form_of

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Span = tuple[int, int]
TITLE = 0.5  # strength of a statement in the title of a passage whose text states nothing
# "And" ends a clause where another verb follows: "he was not well and died in Paris".
_VERB = r"(?:he|she|it|they|who|was|were|is|are|had|has|then|later|never|died|won|became|went)\b"
_CLAUSE = re.compile(
    r"[;:!?()\n—–]|\.(?=\s|$)|,(?=\s)|\s-\s|\b(?:but|although|though|while|whereas|however|when|because|if)\b"
    rf"|\band(?=\s+{_VERB})",
    re.IGNORECASE,
)
_NOT = (
    r"(?:not(?!\s+(?:only|just|merely|simply|long|all|every(?:one|body|thing)?|always|many|much)\b)"
    r"|never|no longer|neither|nor|cannot|[a-z]+n['’]t"
    r"|den(?:y|ie[sd]|ying)|false(?:ly)?|untrue|incorrect(?:ly)?|wrong(?:ly)?|mistaken(?:ly)?|myth|refut\w+|disprov\w+)"
)
_TIMES = r"\b(?:until|before|since)\b"  # "not until 1920" states 1920
_BEFORE = re.compile(rf"\b{_NOT}\b(?!.*{_TIMES})", re.I | re.S)
# These negate what follows them, not the rest of the clause: "without a coach the team from Paris won".
_NEAR = re.compile(
    r"\b(?:without|unlike|rather than|instead of|as opposed to|contrary to)(?:\s+[\w'’-]+){0,4}[^\w.!?]*$", re.I
)
_AFTER = re.compile(rf"(?:\W*\b\w+(?:['’]\w+)?){{0,4}}?\W*\b({_NOT})\b", re.I)
# These negate all clauses up to the end of the sentence.
_WIDE = re.compile(
    r"\b(?:not|isn['’]t|never)\s+(?:true|correct|the case)\b"
    r"|\b(?:false|untrue|incorrect|wrong|myth|denie[sd])\s+that\b",
    re.I,
)
_END = re.compile(r"[!?\n]|(?<=\w\w)\.\s")
_QUOTED = re.compile(r"“[^”]*”|\"[^\"]*\"")


@dataclass(frozen=True, eq=False)
class Statements:
    """What N passages say of K candidates, by their words.

    Attributes:
        stated: float64 [N, K], 1 if the text states the candidate, `TITLE` if only the title does, else 0.
        denied: bool [N, K], whether every place in the text that names the candidate negates it.
        about: float64 [N], share of the question's content words that the passage has.
        places: for each passage and candidate the places in its text that state it.
        in_title: the same in its title.
    """

    stated: FloatArray
    denied: BoolArray
    about: FloatArray
    places: list[list[list[Span]]]
    in_title: list[list[list[Span]]]


def statements(
    question: str, passages: Sequence[Passage], candidates: Sequence[str], aliases: Mapping[str, Sequence[str]]
) -> Statements:
    """Find the candidates in the passages.

    Args:
        question: its text.
        passages: N passages.
        candidates: K texts.
        aliases: other forms of a candidate.
    """
    forms = [[form_of(text) for text in (candidate, *aliases.get(candidate, ()))] for candidate in candidates]
    shape = len(passages), len(candidates)
    stated, denied, about = np.zeros(shape), np.zeros(shape, np.bool_), np.zeros(len(passages))
    asked = content_words(FormText(question).words, STOP)
    places, in_title = [], []
    for i, passage in enumerate(passages):
        text, title = FormText(passage.text), FormText(passage.title or "")
        places.append(_places(text, forms))
        in_title.append(_places(title, forms))
        if asked:
            about[i] = len(asked & content_words([*text.words, *title.words], STOP)) / len(asked)
        for k, spans in enumerate(places[i]):
            if spans:
                denied[i, k] = all(negated(passage.text, *span) for span in spans)
                stated[i, k] = not denied[i, k]
        if not any(places[i]):
            stated[i] = [TITLE * bool(spans) for spans in in_title[i]]
    return Statements(stated, denied, about, places, in_title)


def negated(text: str, start: int, end: int) -> bool:
    """Return whether the clause around a place in a text negates what the place names. Words in quotes negate nothing.

    >>> negated("It was not Paris but London.", 11, 16), negated("It was not Paris but London.", 21, 27)
    (True, False)
    """
    quiet = _QUOTED.sub(_blank, text[:start]), _QUOTED.sub(_blank, text[end:])
    breaks = [found.end() for found in _CLAUSE.finditer(quiet[0])]
    ends = [found.end() for found in _END.finditer(quiet[0])]
    stop = _CLAUSE.search(quiet[1])
    clause, after = quiet[0][breaks[-1] if breaks else 0 :], quiet[1][: stop.start() if stop else None]
    if _WIDE.search(quiet[0][ends[-1] if ends else 0 :]) or _NEAR.search(clause):
        return True
    if any(map(_is_cue, _BEFORE.finditer(clause))):
        return True
    return _AFTER.match(after) is not None


def _blank(found: re.Match[str]) -> str:
    return "_" * len(found.group())


def _is_cue(found: re.Match[str]) -> bool:
    """Return whether a negation is no name, as "Don't" is inside a sentence."""
    name = found.group()[0].isupper() and not found.group().isupper()
    return not (name and found.string[: found.start()].strip())


def instead(
    passage: Passage, spans: tuple[Sequence[Span], Sequence[Span]], others: Sequence[str], after: int = 160
) -> list[Passage]:
    """Return the passage up to some characters after its first claim, with each of `others` instead of the claim.

    Args:
        passage: it states the claim.
        spans: the claim's places in its text, at least one, and in its title.
        others: texts to put there.
        after: characters kept after the first place.
    """
    in_text, in_title = spans
    cut = passage.text.find(" ", in_text[0][1] + after)
    text = passage.text if cut < 0 else passage.text[:cut]
    kept = [span for span in in_text if span[1] <= len(text)]
    return [
        replace(passage, text=_put(text, kept, new), title=_put(passage.title or "", in_title, new)) for new in others
    ]


def _put(text: str, spans: Sequence[Span], new: str) -> str:
    for start, end in reversed(spans):
        text = text[:start] + new + text[end:]
    return text


def _places(text: FormText, forms: Sequence[Sequence[Form]]) -> list[list[Span]]:
    """Return the places of each candidate, without those inside a longer candidate: "York" in "New York"."""
    found = [
        (start, end, _size(form), k)
        for k, own in enumerate(forms)
        for form in own
        for start, end in text.find(form)
        if end > start
    ]
    places: list[set[Span]] = [set() for _ in forms]
    for start, end, size, k in found:
        if not any(s <= start and end <= e and (e - s, other) > (end - start, size) for s, e, other, _ in found):
            places[k].add((start, end))
    return [_apart(sorted(each)) for each in places]


def _apart(spans: list[Span]) -> list[Span]:
    """Return the spans without those that overlap an earlier one."""
    kept: list[Span] = []
    for span in spans:
        if not kept or span[0] >= kept[-1][1]:
            kept.append(span)
    return kept


def _size(form: Form) -> int:
    """Return how much a form says, to choose between two that cover the same place."""
    return len(form.words) if form.date is None else sum(part is not None for part in form.date[:3])
