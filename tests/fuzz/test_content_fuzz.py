"""Ordinary content in well-formed calls: texts of all lengths and languages, equal ones, and none.

A call may refuse a content by an error of ours, but no other exception may leave it, and no result may lose an item.
The default suite makes some hundred calls from a fixed seed. The long form, `make fuzz`, makes 5,000; the variables
FASTREADER_FUZZ_CONTENTS and FASTREADER_FUZZ_SEED change both.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import random
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from api_rows import ROWS, World
from public import callables, parameters
from test_api_fuzz import arguments, run

import fastreader as fr
from fastreader import moi, sure
from fastreader.errors import FastreaderError
from fastreader.passages.conflicts.forms import different
from fastreader.passages.ranking import RERANKERS
from fastreader.statistics.measures.answers import normalise

CALLS = int(os.environ.get("FASTREADER_FUZZ_CONTENTS", "5000" if os.environ.get("FASTREADER_FUZZ") else "250"))
SEED = int(os.environ.get("FASTREADER_FUZZ_SEED", "0"))
SENTENCES = (
    "The Nile flows through Cairo.",
    "Le Nil traverse le Caire, où il est très large.",
    "Нил течёт через Каир.",
    "ナイル川はカイロを流れています。",
    "尼罗河流经开罗。",
    "แม่น้ำไนล์ไหลผ่านกรุงไคโร",
    "나일강은 카이로를 흐른다.",
    "نهر النيل يمر عبر القاهرة",
    "नील नदी काहिरा से होकर बहती है।",
    "In 1908, 3.5 % of 1,000 km² (f(x) = x²) were lost.",
    "🐫🏳️\u200d🌈 e\u0301 = é ﬁ",
    "a\tb\n\nc  d ",
    "{question} {0} %s \\1 $x <|eot|> </s>",
    "C++ (or C#?) costs $5.00",
    *("...", "?!", "A", "7", "the of and", "nile NILE Nile"),
)
SHORT = (
    *("Nile", "the Nile", "THE NILE", "1908", "a b", "no", "the", "..."),
    *("東京", "ナイル川", "Каир", "กรุงไคโร", "e\u0301", "é", "🐫"),
)


class Contents:
    """Draw texts, passages and candidates."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def text(self, empty: float = 0.05) -> str:
        """Return a text of any length and language."""
        d = self.draw
        if d.random() < empty:
            return d.choice(["", " ", "\n", "\u3000"])
        kind = d.random()
        if kind < 0.3:
            return d.choice(SHORT)
        count = 1 if kind < 0.8 else d.randint(2, 6) if kind < 0.99 else 100
        text = " ".join(d.choice(SENTENCES) for _ in range(count))
        return text[: d.randint(1, len(text))] if d.random() < 0.2 else text

    def texts(self, most: int = 5, least: int = 0, empty: float = 0.05) -> list[str]:
        """Return texts, some of them equal."""
        found = [self.text(empty) for _ in range(self.draw.randint(least, most))]
        if len(found) > 1 and self.draw.random() < 0.3:
            found[-1] = self.draw.choice([found[0], found[0].upper(), f" {found[0]}"])
        return found

    def passage(self) -> fr.Passage:
        """Return a passage, with or without its optional values."""
        d = self.draw
        return fr.Passage(
            self.text(),
            d.choice(["", "", d.choice(SENTENCES), " "]),
            d.choice([None, "a", "a b", "東", str(d.randint(0, 99))]),
            d.choice([None, 0.0, -1.5, 1.0, 1e300]),
            d.choice([None, True, False]),
            d.choice([None, True, False]),
            d.choice([{}, {"page": 3}, {"pages": [1, None]}]),
        )

    def passages(self, kinds: str = "PTMSEQ") -> list[Any]:
        """Return passages as objects, texts, mappings, pairs with a score or hits of searches, some of them equal."""
        found: list[Any] = []
        for _ in range(self.draw.choice([0, 1, 1, 2, 3, 3, 4, 6, 12])):
            passage, kind = self.passage(), self.draw.choice(kinds)
            row = {"text": passage.text, "title": passage.title, "id": passage.id, "score": passage.score}
            pair = (passage, self.draw.choice([0.5, np.float32(1), None]))
            hit = {"_index": "i", "_id": "h", "_score": None, "_source": row}
            point = {"id": 3, "score": 1, "payload": {"text": passage.text, **passage.metadata}}
            found.append({"P": passage, "T": passage.text, "M": row, "S": pair, "E": hit, "Q": point}[kind])
        if len(found) > 1 and self.draw.random() < 0.3:
            found[-1] = found[0]
        return found

    def example(self) -> fr.Example:
        """Return a question with all that belongs to it."""
        passages = self.passages("P")
        answers, candidates, id = self.texts(2, empty=0), self.texts(3, empty=0), self.draw.choice([None, "q", "q 1"])
        return fr.Example(self.text(0.02), passages, answers, candidates, id, {"hop": 1, "answer_type": "x"})


Check = Callable[[Any, dict[str, Any]], None]
TEXT = ("question", "text", "title", "first", "second")
LISTS = ("candidates", "answers", "right", "texts", "prompts", "questions", "queries", "documents", "targets")


def content(name: str, base: Any, draw: Contents) -> Any:
    """Return content of the same kind as an argument's base value, or the value itself if it is no content."""
    if name == "question" and isinstance(base, str) and draw.draw.random() < 0.15:
        return draw.text(1.0)
    if isinstance(base, fr.Example):
        return draw.example()
    if isinstance(base, fr.Passage):
        return draw.passage()
    if isinstance(base, str) and name in TEXT:
        return draw.text()
    if isinstance(base, (list, tuple)) and base:
        if all(isinstance(item, fr.Example) for item in base):
            return [draw.example() for _ in range(draw.draw.randint(0, 3))]
        if all(isinstance(item, fr.Passage) for item in base):
            return draw.passages("P")
        if name in LISTS and all(isinstance(item, str) for item in base):
            return draw.texts()
    return base


def no_passage_is_lost(result: Any, values: dict[str, Any]) -> None:
    """A ranking has each passage once, and its example all of them."""
    given = values["question"].passages if isinstance(values["question"], fr.Example) else values["passages"]
    assert sorted(result.indices) == list(range(len(given)))
    example = result.to_example()
    assert len(example.passages) == len(given)
    if isinstance(values["question"], fr.Example):
        own = values["question"]
        assert dataclasses.replace(example, passages=[]) == dataclasses.replace(own, passages=[])
    assert fr.load_examples([json.loads(json.dumps(result.to_dict()))]) == [example]
    assert all(0 <= r.relevance <= 1 for r in result)


def same_items(result: Any, values: dict[str, Any]) -> None:
    """An arrangement has the same objects."""
    assert sorted(map(id, result)) == sorted(map(id, values["passages"]))


def all_scored(result: Any, values: dict[str, Any]) -> None:
    """Every candidate has a finite score in every ordering."""
    assert list(result.candidates) == list(values["candidates"])
    assert result.logprobs.shape[1] == len(values["candidates"]) and np.isfinite(result.logprobs).all()


def all_compared(result: Any, values: dict[str, Any]) -> None:
    """Every passage and candidate is in the result, and the result is JSON."""
    assert result.logprobs.shape == (len(values["passages"]), len(result.candidates))
    assert values["candidates"] is None or list(result.candidates) == values["candidates"]
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.note or result.stated.any() or result.denied.any()


def all_attributed(result: Any, values: dict[str, Any]) -> None:
    """Shapley values sum to what all passages add, and the result is JSON."""
    assert len(result.shapley) == len(values["passages"])
    np.testing.assert_allclose(result.shapley.sum(), result.logprob - result.closed_book_logprob, atol=1e-6)
    json.dumps(result.to_dict(), allow_nan=False)


def all_placed(result: Any, values: dict[str, Any]) -> None:
    """MoI's order has each passage once."""
    assert sorted(p.index for p in result) == list(range(len(values["passages"])))


def one_each(result: Any, values: dict[str, Any]) -> None:
    """There is one result for each request."""
    [given] = [values[name] for name in ("prompts", "requests") if name in values]
    assert len(result) == len(given)


def calls_of(world: World, draw: Contents) -> tuple[str, Any, dict[str, Any], Check | None]:
    """Return a call with drawn content, and what must hold of its result."""
    d = draw.draw
    reader, question, candidates = world.reader, draw.text(0.03), draw.texts(4, 1)
    passages = draw.passages()
    own = {
        "rerank": (fr.rerank, {"reader": reader, "question": question, "passages": passages}, no_passage_is_lost),
        "rerank an example": (fr.rerank, {"reader": reader, "question": draw.example()}, no_passage_is_lost),
        "rerank by a method": (
            fr.rerank,
            {"reader": reader, "question": question, "passages": passages, "method": d.choice(METHODS)}
            | {"uncalibrated": True},
            no_passage_is_lost,
        ),
        "arrange": (fr.arrange, {"passages": passages, "bias": fr.Arranger({3: [0.8, -0.3, -0.5]})}, same_items),
        "score_permutations": (
            fr.score_permutations,
            {"reader": reader, "question": question, "passages": passages, "candidates": candidates},
            all_scored,
        ),
        "attribute": (
            fr.attribute,
            {"reader": reader, "question": question, "passages": passages}
            | {"answer": d.choice([None, *candidates]), "orders": 1, "subsets": 2, "max_new_tokens": 2},
            all_attributed,
        ),
        "conflicts": (
            fr.conflicts,
            {"reader": reader, "question": question, "passages": passages}
            | {"candidates": d.choice([None, different({normalise(c): c for c in candidates}.values())])},
            all_compared,
        ),
        "moi.rerank": (moi.rerank, {"reader": reader, "question": question, "passages": passages}, all_placed),
        "sure.answer": (
            sure.answer,
            {"reader": reader, "question": question, "passages": passages}
            | {"max_summary_tokens": 2, "max_candidate_tokens": 2, "on_overflow": "drop_passages"},
            None,
        ),
        "save_trec_run": (
            trec_round_trip,
            {"reader": reader, "examples": [draw.example() for _ in range(2)], "path": world.path("out.trec")},
            None,
        ),
        "generate": (reader.generate, {"prompts": draw.texts(3), "max_new_tokens": 2}, one_each),
        "loglikelihood": (
            reader.loglikelihood,
            {"requests": [(draw.text(), draw.text()) for _ in range(d.randint(0, 3))]},
            one_each,
        ),
        "files": (round_trip, {"examples": [draw.example() for _ in range(2)], "folder": world.folder}, None),
    }
    if d.random() < 0.6:
        name = d.choice(sorted(own))
        return name, *own[name]
    name = d.choice(NAMES)
    call, base = arguments(world, name, CALLABLES[name])
    return name, call, {key: content(key, value, draw) for key, value in base.items()}, None


def trec_round_trip(reader: Any, examples: list[fr.Example], path: Any) -> None:
    """Save rankings as a run, which has a line for each passage."""
    plain = [
        dataclasses.replace(e, id=f"q{i}", passages=[dataclasses.replace(p, id=None) for p in e.passages])
        for i, e in enumerate(examples)
    ]
    fr.save_trec_run(fr.rerank(reader, plain), path)
    assert len(path.read_text().splitlines()) == sum(len(example.passages) for example in examples)


def round_trip(examples: list[fr.Example], folder: Any) -> None:
    """Save and load examples in both formats, and compare all but passages without text, whose title becomes it."""
    for format in ("dpr", "flashrag"):
        path = folder / f"{format}.jsonl"
        fr.save_examples(examples, path, format)
        for found, wanted in zip(fr.load_examples(path), examples, strict=True):
            assert dataclasses.replace(found, passages=[]) == dataclasses.replace(wanted, passages=[])
            assert len(found.passages) == len(wanted.passages)
            for a, b in zip(found.passages, wanted.passages, strict=True):
                assert a == b or not b.text.strip()


METHODS = [name for name in RERANKERS if not name.endswith("-matched") and name not in ("cross-encoder", "oracle")]
CALLABLES = callables()
CONTENT = {*TEXT, *LISTS, "passages", "passage", "examples", "example", "gold", "others"}
NAMES = sorted(name for name, call in CALLABLES.items() if name in ROWS and CONTENT & {*parameters(call)})


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield World(tmp_path_factory.mktemp("contents"))


@pytest.mark.long
def test_ordinary_content(world):
    draw = Contents(SEED)
    ended: collections.Counter[str] = collections.Counter()
    wrong: dict[str, str] = {}
    for number in range(CALLS):
        name, call, values, check = calls_of(world, draw)
        try:
            result = run(name, call, values)
            if check is not None:
                check(result, values)
            ended["result"] += 1
        except FastreaderError:
            ended["refused"] += 1
        except Exception as error:
            ended["wrong"] += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            wrong.setdefault(
                f"{name}: {type(error).__name__} at {where.name}:{where.lineno}",
                f"call {number}: {str(error)[:200]} of {str(values)[:600]}",
            )
    print(dict(ended))
    assert not wrong, "\n".join(f"{key}: {value}" for key, value in wrong.items())
    assert ended["result"] > CALLS / 2
