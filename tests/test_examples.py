"""The bundled questions keep what they promise."""

import itertools
import re
import unicodedata
from pathlib import Path

import pytest

from fastreader.data import load_examples, save_examples

PATH = Path(__file__).parent.parent / "examples" / "questions.jsonl"
EXAMPLES = load_examples(PATH)


def words(text):
    """Lower-case words without accents, with a space at both ends."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(c))
    return f" {' '.join(re.findall(r'[a-z0-9]+', plain))} "


def holds(passage, phrases):
    return any(words(phrase) in words(f"{passage.title}. {passage.text}") for phrase in phrases)


def test_counts():
    assert len(EXAMPLES) >= 12
    ids = [e.id for e in EXAMPLES] + [p.id for e in EXAMPLES for p in e.passages]
    assert None not in ids
    assert len(set(ids)) == len(ids)
    texts = [p.text for e in EXAMPLES for p in e.passages]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.id)
def test_example(example):
    assert 6 <= len(example.passages) <= 8
    assert len(set(example.candidates)) == 4
    right = [c for c in example.candidates if words(c) in map(words, example.answers)]
    assert len(right) == 1
    gold = [p for p in example.passages if p.is_gold]
    others = [p for p in example.passages if not p.is_gold]
    assert gold
    assert len(others) >= 4
    for passage in example.passages:
        assert passage.title
        assert 40 <= len(passage.text.split()) <= 90, passage.title
        assert passage.is_gold == passage.has_answer == holds(passage, example.answers), passage.title
    wrong = [c for c in example.candidates if c not in right]
    for candidate in wrong:
        assert any(holds(p, [candidate]) for p in others), candidate
    assert sum(holds(p, wrong) for p in others) >= 4
    scores = [p.score for p in example.passages]
    assert all(a > b for a, b in itertools.pairwise(scores))


def test_gold_and_right_candidate_have_no_fixed_place():
    ranks = [next(i for i, p in enumerate(e.passages) if p.is_gold) for e in EXAMPLES]
    assert len(set(ranks)) >= 5
    assert max(ranks.count(rank) for rank in ranks) <= len(EXAMPLES) / 3
    places = [next(i for i, c in enumerate(e.candidates) if words(c) in map(words, e.answers)) for e in EXAMPLES]
    assert set(places) == {0, 1, 2, 3}


def test_round_trip(tmp_path):
    save_examples(EXAMPLES, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_text("utf-8") == PATH.read_text("utf-8")
