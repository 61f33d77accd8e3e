"""Distractors that are hard by construction, for pools whose retrieved passages without an answer are few or easy.

A gold passage whose answer is replaced by another question's answer is as close to the question as a passage gets and
says something wrong; a passage of the same title is about the same thing.
"""

from __future__ import annotations

import re
import string
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fastreader.data.types import Example, Passage
from fastreader.noise.labels import has_answer, same_text
from fastreader.statistics.answers import contained, normalise

_GAP = rf"[\s{re.escape(string.punctuation)}]"
_MONTH = re.compile(
    r"\b(january|february|march|april|may|june|july|august|september|october|november|december)\b", re.IGNORECASE
)


def swap_answer(passage: Passage, answers: Sequence[str], replacement: str) -> Passage | None:
    """The passage with every occurrence of an answer replaced.

    Occurrences are found in title and text by their normal form, as whole words, the longest answer first.

    Args:
        passage: as a rule the gold one.
        answers: what to replace.
        replacement: another question's answer.

    Returns:
        A passage without flags and score, whose `metadata` tells the replacement under "swapped"; None where nothing
        was replaced, or where the result still holds an answer (inside another word, or in the replacement).
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
    """What an answer looks like: "year", "date", "number", "name" or "phrase"; only like replaces like."""
    if re.fullmatch(r"\s*\d{4}\W*", answer):
        return "year"
    if any(c.isdigit() for c in answer):
        return "date" if _MONTH.search(answer) else "number"
    return "name" if any(word[:1].isupper() for word in answer.split()) else "phrase"


def question_word(question: str) -> str:
    """What is asked for: the first of who, when, where, which, what, why and how (with its next word) in a question."""
    words = normalise(question).split()
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in ("who", "whom", "whose"):
            return "who"
        if word == "how":
            return f"how {following}"
        if word in ("when", "where", "which", "what", "why"):
            return word
    return ""


def swapped_passages(
    passage: Passage, question: str, answers: Sequence[str], others: Sequence[Example], *, key: str, seed: int = 0
) -> Iterator[Passage]:
    """The passage with its answer replaced by the first answer of each of `others` that has the same shape.

    Answers of questions with the same `question_word` come first, each group in random order. Those that hold an
    answer of this question, or are held by one or by the passage, are passed over.

    Args:
        passage: the gold one.
        question, answers: of the question.
        others: other questions with their answers.
        key: identifies the question.
        seed: with `key` it determines the order.
    """
    word, shapes = question_word(question), {shape(answer) for answer in answers}
    alike = {o.answers[0]: False for o in others if o.answers}
    alike |= {o.answers[0]: True for o in others if o.answers and question_word(o.question) == word}
    generator = np.random.default_rng([seed, zlib.crc32(key.encode("utf-8"))])
    distinct = sorted(alike)
    shuffled = [distinct[i] for i in generator.permutation(len(distinct))]
    for other in sorted(shuffled, key=lambda answer: not alike[answer]):
        if shape(other) not in shapes or not normalise(other):
            continue
        if contained(other, answers) or contained("\n".join([passage.title, passage.text, *answers]), [other]):
            continue
        if (swapped := swap_answer(passage, answers, other)) is not None:
            yield swapped


def _occurrence(answer: str) -> re.Pattern[str] | None:
    """Matches what has the answer's normal form: any punctuation inside, any article between."""
    words = normalise(answer).split()
    if not words:
        return None
    inside = rf"[{re.escape(string.punctuation)}]*"
    spelled = [inside.join(re.escape(c) for c in word) for word in words]
    between = rf"{_GAP}+(?:(?:a|an|the){_GAP}+)?"
    return re.compile(rf"(?<!\w){between.join(spelled)}(?!\w)", re.IGNORECASE)
