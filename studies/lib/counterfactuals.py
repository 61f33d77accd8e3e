"""Made questions with altered passages: swapped entities, numbers, dates, negations, rewritten passages."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fastreader import Example, Passage
from fastreader.passages.conflicts.forms import FormText, form_of, key_of

KINDS = ("entity", "number", "date", "negation", "rewrite")
WORDS = 60  # of a snippet
WRITTEN = (
    "The answer to the question “{question}” is {answer}.",
    "Most sources answer the question “{question}” with {answer}.",
    "{answer} is given as the answer to the question “{question}”.",
    "Asked “{question}”, the encyclopedia says {answer}.",
)
MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_MONTH = re.compile(rf"\b({MONTHS})\b")
_ASKED = re.compile(r"\b(who|where|when|how many|how much|which|what)\b")
SENTENCE = re.compile(r"(?<=[a-z0-9)\"”][a-z0-9)\"”][.!?])\s+(?=[A-Z0-9\"“])")
_AUXILIARY = re.compile(r"\b(is|was|are|were|has|had|can|will|would|did|does|could|may|have)\b(?!\s+not\b)")
_CLAUSE = re.compile(r"[,;:()—–“”\"]")
_NUMBER_WORDS = "two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905
_NUMBER_WORD = re.compile(rf"\b({'|'.join(_NUMBER_WORDS)})\b", re.IGNORECASE)
_read = lru_cache(maxsize=1 << 16)(FormText)
_form = lru_cache(maxsize=1 << 14)(form_of)


@dataclass
class Made:
    """A question whose passages have a clean and an altered version.

    Attributes:
        id, kind, question: what it is made from.
        number: index of the question in the data.
        answers: the right answer, then one or two replaced ones.
        clean, changed: the passages; `changed` has None where a reader is to write one (`rewrite`).
        altered: indices of the passages that were altered, and the replaced answer of each.
        supporting: number of passages that state the right answer and stay as they are.
        unrelated: number of passages that do not state it.
        mention: whether an unrelated passage states the replaced answer, in both versions.
        form: of the right answer.
    """

    id: str
    kind: str
    number: int
    question: str
    answers: list[str]
    clean: list[Passage]
    changed: list[Passage | None]
    altered: dict[int, str]
    supporting: int
    unrelated: int
    mention: bool
    form: str


def made_of(examples: Sequence[Example], seed: int = 0) -> list[Made]:
    """Return the questions of all kinds, mixed so that each beginning of the list has some of each kind."""
    pool = _pool(examples)
    each = []
    for kind in KINDS:
        found = list(_of_kind(kind, examples, pool, random.Random(f"{kind} {seed}")))
        random.Random(seed).shuffle(found)
        each.append(found)
    longest = max(map(len, each))
    return [found[place] for place in range(longest) for found in each if place < len(found)]


def _of_kind(kind: str, examples: Sequence[Example], pool: dict[Any, Any], rng: random.Random) -> Iterator[Made]:
    for number, example in enumerate(examples):
        answers = [answer for answer in example.answers if usable(answer)]
        if not answers:
            continue
        right = max(answers, key=lambda answer: sum(states(p, [answer]) for p in example.passages))
        shape = form(right)
        wanted = {"number": ("number",), "date": ("date", "year")}.get(kind)
        if wanted is None and kind != "negation":
            wanted = ("name", "phrase")
        if wanted is not None and not shape.startswith(wanted):
            continue
        made = _make(kind, number, example, (right, shape), pool, rng)
        if made is not None:
            yield made


def _make(
    kind: str, number: int, example: Example, own: tuple[str, str], pool: dict[Any, Any], rng: random.Random
) -> Made | None:
    right, shape = own
    supporting, altered = rng.randint(1, 4), 1 if rng.random() < 0.75 else 2
    unrelated, same, mention = rng.randint(0, 5), rng.random() < 0.5, rng.random() < 1 / 3
    units = _units(example, right, supporting + altered, rng)
    replaced = _replaced(kind, example, own, (1 if same or kind == "negation" else altered), pool, rng)
    if len(units) < supporting + altered or replaced is None:
        return None
    names = [right, *(text for text, _ in replaced)]
    others = [
        cut(Passage(p.text, p.title), "")
        for p in example.passages
        if not states(p, [*example.answers, *names]) and not states(Passage(p.title or ""), names)
    ][:unrelated]
    mention = mention and bool(others) and replaced[0][1] is not None
    if mention:
        others[0] = cut(replaced[0][1], replaced[0][0])
    places: list[tuple[Passage, Passage | None, str]] = [(unit, unit, "") for unit in units[altered:]]
    for j, unit in enumerate(units[:altered]):
        new = replaced[min(j, len(replaced) - 1)][0]
        changed = None
        if kind == "negation":
            unit = cut(unit, right, 1)
            changed = negated(unit, right, rng)
            new = right
        elif kind != "rewrite":
            changed = swapped(unit, right, new)
            if states(changed, [right]) or not states(changed, [new]):
                return None
        places.append((unit, changed, new))
    places += [(other, other, "") for other in others]
    rng.shuffle(places)
    return Made(
        f"{kind}:{number}", kind, number, example.question, names,
        [clean for clean, _, _ in places], [changed for _, changed, _ in places],
        {i: new for i, (_, _, new) in enumerate(places) if new}, supporting, len(others), mention, shape,
    )  # fmt: skip


def _units(example: Example, right: str, count: int, rng: random.Random) -> list[Passage]:
    """Return different passages that state the answer: the question's own, then their sentences, then written ones."""
    stating = [Passage(p.text, p.title) for p in example.passages if states(p, [right])]
    found = [cut(passage, right) for passage in stating][:count]
    for passage in stating:
        found += [
            Passage(text, passage.title) for text in SENTENCE.split(passage.text) if states(Passage(text), [right])
        ]
    found = list({(p.text, p.title): p for p in found}.values()) if stating else []
    if not found:
        return []
    texts = [Passage(text.format(question=example.question.rstrip("?"), answer=right)) for text in WRITTEN]
    rng.shuffle(texts)
    found = [*found, *texts][:count]
    rng.shuffle(found)
    return found


def _pool(examples: Sequence[Example]) -> dict[Any, list[tuple[int, str, Passage]]]:
    pool: dict[Any, list[tuple[int, str, Passage]]] = {}
    for i, example in enumerate(examples):
        answer = example.answers[0] if example.answers else ""
        stating = [p for p in example.passages if usable(answer) and states(p, [answer])]
        if stating:
            item = i, answer, Passage(stating[0].text, stating[0].title)
            pool.setdefault(form(answer), []).append(item)
            pool.setdefault((form(answer), asked(example.question)), []).append(item)
    return pool


def _replaced(
    kind: str, example: Example, own: tuple[str, str], count: int, pool: dict[Any, Any], rng: random.Random
) -> list[tuple[str, Passage | None]] | None:
    """Return false answers of the right one's form that no passage states, with a passage of another question."""
    right, shape = own
    options: list[tuple[str, Passage | None]]
    if kind in ("number", "date"):
        change = other_number if kind == "number" else other_date
        options = [(change(right, rng), None) for _ in range(8)]
    else:
        tight = pool.get((shape, asked(example.question)), [])
        options = [(text, passage) for _, text, passage in (tight if len(tight) > 8 else pool.get(shape, []))]
        rng.shuffle(options)
    found: dict[str, tuple[str, Passage | None]] = {}
    for text, passage in options:
        far = not any(overlap(text, answer) for answer in example.answers) and key_of(text) != key_of(right)
        written = passage is not None and states(passage, [right, *example.answers])
        if far and not written and not any(states(p, [text]) for p in example.passages):
            found.setdefault(key_of(text), (text, passage))
        if len(found) == count:
            return list(found.values())
    return None


def swapped(passage: Passage, old: str, new: str) -> Passage:
    """Return the passage with another answer, in the title too."""
    pattern = whole(old)
    return replace(
        passage, text=pattern.sub(lambda _: new, passage.text), title=pattern.sub(lambda _: new, passage.title or "")
    )


def negated(passage: Passage, right: str, rng: random.Random) -> Passage:
    """Return a passage of one sentence with the clause that states the answer negated, or the whole sentence."""
    text = passage.text
    place = whole(right).search(text)
    if place is not None and rng.random() < 0.7:
        start = max([found.end() for found in _CLAUSE.finditer(text, 0, place.start())], default=0)
        stop = _CLAUSE.search(text, place.end())
        before = list(_AUXILIARY.finditer(text, start, place.start()))
        after = _AUXILIARY.search(text, place.end(), stop.start() if stop else len(text))
        auxiliary = before[-1] if before else after
        if auxiliary is not None:
            cue = rng.choice(("not", "never", "no longer"))
            return replace(passage, text=f"{text[: auxiliary.end()]} {cue}{text[auxiliary.end() :]}")
    small = text[0].lower() + text[1:] if text.split()[0].lower() in ("the", "it", "he", "she", "in", "a") else text
    return replace(passage, text=rng.choice(("It is not true that {}", "It is false that {}")).format(small))


def cut(passage: Passage, answer: str, most: int = 9) -> Passage:
    """Return the passage's sentences around the first one that states the answer, up to `WORDS` words."""
    sentences = SENTENCE.split(passage.text)
    first = next((i for i, text in enumerate(sentences) if answer and states(Passage(text), [answer])), 0)
    kept = [first]
    while len(kept) < min(most, len(sentences)):
        place = kept[0] - 1 if kept[-1] + 1 == len(sentences) else kept[-1] + 1
        if sum(len(sentences[i].split()) for i in [*kept, place]) > WORDS:
            break
        kept = sorted([*kept, place])
    return replace(passage, text=" ".join(sentences[i] for i in kept))


def other_number(text: str, rng: random.Random) -> str:
    """Return the text with other numbers of as many digits, or other number words."""

    def digits(found: re.Match[str]) -> str:
        size = len(found.group())
        low = 10 ** (size - 1) if size > 1 else 1
        most = 21 if "century" in text else 10**size - 1
        return str(rng.randint(min(low, most), most))

    if re.search("[0-9]", text):
        return re.sub("[0-9]+", digits, text)
    return _NUMBER_WORD.sub(lambda _: rng.choice(_NUMBER_WORDS), text)


def other_date(text: str, rng: random.Random) -> str:
    """Return the text with another month, day and year."""
    text = _MONTH.sub(lambda _: rng.choice(MONTHS.split("|")), text)
    text = re.sub(r"\b[0-9]{1,2}\b", lambda _: str(rng.randint(1, 28)), text)
    return re.sub(r"\b[0-9]{4}\b", lambda found: str(int(found.group()) - rng.randint(1, 40)), text)


def states(passage: Passage, answers: Sequence[str]) -> bool:
    text = _read(passage.text)
    return any(text.find(_form(answer)) for answer in answers)


def whole(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(text)}(?!\w)")


def overlap(a: str, b: str) -> bool:
    return a.lower() in b.lower() or b.lower() in a.lower()


def usable(answer: str) -> bool:
    return len(answer) > 1 and len(answer.split()) <= 6


def asked(question: str) -> str:
    found = _ASKED.search(question.lower())
    return found[1] if found else ""


def form(answer: str) -> str:
    if re.fullmatch(r"(1[5-9]|20)\d\d", answer):
        return "year"
    if re.search(r"\d", answer):
        return "date" if _MONTH.search(answer) else "number"
    if _NUMBER_WORD.fullmatch(answer.split()[0]):
        return "number"
    return f"name of {min(len(answer.split()), 3)}" if answer[0].isupper() else "phrase"
