"""Distractors that are hard by construction, for pools with few or easy distracting passages.

A gold passage with its answer replaced by another question's answer is as close to the question as a passage can be,
but wrong; a passage of the same title is about the same subject.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fastreader.core.checked import checked
from fastreader.data.types import Example, Passage
from fastreader.noise.labels import has_answer, same_text
from fastreader.noise.sources import question_generator
from fastreader.statistics.measures.answers import contained, normalise

_GAP = rf"[\s{re.escape(string.punctuation)}]"
_MONTH = re.compile(
    r"\b(january|february|march|april|may|june|july|august|september|october|november|december)\b", re.IGNORECASE
)


@checked
def swap_answer(passage: Passage, answers: Sequence[str], replacement: str) -> Passage | None:
    """Replace every occurrence of an answer in a passage.

    Occurrences in title and text are matched in normal form, as whole words, the longest answer first.

    Args:
        passage: usually the gold passage.
        answers: texts to replace.
        replacement: another question's answer.

    Returns:
        A passage without flags and score, with the replacement in `metadata` under "swapped"; None if nothing was
        replaced, or the result still holds an answer (inside another word, or in the replacement).
    """
    text, title = passage.text, passage.title
    for answer in sorted(answers, key=len, reverse=True):
        if (pattern := _occurrence(answer)) is not None:
            text, title = (pattern.sub(lambda _: replacement, part) for part in (text, title))
    swapped = replace(
        passage,
        text=text,
        title=title,
        id=None if passage.id is None else f"{passage.id}:{replacement}",
        score=None,
        is_gold=None,
        has_answer=None,
        metadata={**passage.metadata, "swapped": replacement},
    )
    return None if same_text(swapped) == same_text(passage) or has_answer(swapped, answers) else swapped


def shape(answer: str) -> str:
    """Return the form of an answer, as only equal forms are swapped: "year", "date", "number", "name" or "phrase"."""
    if re.fullmatch(r"\s*\d{4}\W*", answer):
        return "year"
    if any(c.isdigit() for c in answer):
        return "date" if _MONTH.search(answer) else "number"
    return "name" if any(word[:1].isupper() for word in answer.split()) else "phrase"


def question_word(question: str) -> str:
    """Return the first of who, when, where, which, what, why and how (with its next word) in a question, or ""."""
    words = normalise(question).split()
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word in ("who", "whom", "whose"):
            return "who"
        if word == "how":
            return f"how {following}"
        if word in ("when", "where", "which", "what", "why"):
            return word
    return ""


@checked
def swapped_passages(
    passage: Passage, question: str, answers: Sequence[str], others: Sequence[Example], *, key: str, seed: int = 0
) -> Iterator[Passage]:
    """Yield the passage with its answer replaced by the first answer of each other question of the same shape.

    Answers of questions with the same `question_word` come first; both groups are in random order. An answer is skipped
    if it holds an answer of this question, or if one of them or the passage holds it.

    Args:
        passage: the gold passage.
        question: text of the question.
        answers: answers of the question.
        others: other questions with their answers.
        key: key of the question.
        seed: seed of the order, together with `key`.
    """
    word, shapes = question_word(question), {shape(answer) for answer in answers}
    alike = {o.answers[0]: False for o in others if o.answers}
    alike |= {o.answers[0]: True for o in others if o.answers and question_word(o.question) == word}
    distinct = sorted(alike)
    shuffled = [distinct[i] for i in question_generator(seed, key).permutation(len(distinct))]
    for other in sorted(shuffled, key=lambda answer: not alike[answer]):
        if shape(other) not in shapes or not normalise(other):
            continue
        if contained(other, answers) or contained("\n".join([passage.title, passage.text, *answers]), [other]):
            continue
        if (swapped := swap_answer(passage, answers, other)) is not None:
            yield swapped


def _occurrence(answer: str) -> re.Pattern[str] | None:
    """Return a pattern of the answer's normal form: any punctuation inside words, any article between them."""
    words = normalise(answer).split()
    if not words:
        return None
    inside = rf"[{re.escape(string.punctuation)}]*"
    spelled = [inside.join(re.escape(c) for c in word) for word in words]
    between = rf"{_GAP}+(?:(?:a|an|the){_GAP}+)?"
    return re.compile(rf"(?<!\w){between.join(spelled)}(?!\w)", re.IGNORECASE)
