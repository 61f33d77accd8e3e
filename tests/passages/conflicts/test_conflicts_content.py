"""conflicts over generated ordinary content: no exception but the documented ones, and results that hold together."""

import zlib

import numpy as np
import pytest
from helpers.scripted import ScriptedReader
from helpers.support import LONG_FORMS, byte_tokenizer
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fastreader as fr
from fastreader.core.protocol import ScoringReader, SequenceScores
from fastreader.core.tree import TreeStats
from fastreader.data.types import Passage
from fastreader.errors import InputError
from fastreader.passages.conflicts import Conflicts
from fastreader.passages.conflicts.find import NONE_AGREE, NOTHING_PROPOSED, NOTHING_STATED, ONE_PROPOSED
from fastreader.passages.conflicts.forms import different, key_of
from fastreader.passages.conflicts.judge import Evidence, judge
from fastreader.reader.prompts.encoder import TextEncoder


class HashReader(ScriptedReader):
    """Scores token ids by a hash, as any reader might: finite, and equal for equal pairs."""

    encoder = TextEncoder(byte_tokenizer())
    max_length = None

    def budget(self):
        return 1 << 20

    def prefix(self, pieces, **chat):
        return self.encoder.start("".join(pieces))

    def plan(self, sequences, max_batch_tokens=None, *, new_tokens=0):
        raise AssertionError("conflicts plans nothing")

    def score(self, sequences, *, max_batch_tokens=None, trees=None):
        pairs = list(sequences)
        assert all(len(context) and len(continuation) for context, continuation in pairs)
        values = [-(zlib.crc32(repr(pair).encode()) % 40_000) / 1000 for pair in pairs]
        size = np.array([len(continuation) for _, continuation in pairs])
        stats = TreeStats(len(pairs), int(size.sum()), int(size.sum()), len(pairs))
        return SequenceScores(np.array(values), size, size > 0, [], stats, 1, 0.0)


READER = HashReader()
NAMES = [
    "York", "New York", "Paris", "the Paris", "Darwin", "Charles Darwin", "1776", "4 July 1776", "July 4, 1776",
    "1776-07-04", "July", "1,000", "one thousand", "1000", "7", "seven", "$5", "5%", "C++", "C", "...", "The",
    "A", "an", "東京", "京都", "กรุงเทพ", "J. R. R. Tolkien", "US", "us", "O'Brien", "Jean-Paul", "AT&T", "&",
    "Röntgen", "½", "²", "\u0301", "one", "a hundred", "two million", "-5", "'s", "one of", "two hundred and",
    "1.5.2", "1,2,3", "0", "007", "🙂",
]  # fmt: skip
GLUE = [
    "It is", "not", "was never", "but", ",", ".", "rather than", "“", "”", "\n\n", "in", "and", "until", "the", "(",
    ")",
    "It is not true that", "of", "cats sleep", "-", "?", "thousand", "hundred",
]  # fmt: skip
names = st.sampled_from(NAMES)
parts = st.one_of(names, names, st.sampled_from(GLUE), st.text(max_size=6))
texts = st.lists(parts, min_size=1, max_size=12).map(" ".join)
items = st.builds(Passage, texts, st.one_of(st.just(""), texts))
passages = st.lists(items, min_size=1, max_size=20)
candidates = st.lists(st.one_of(names, names, names, texts), min_size=2, max_size=6)
questions = st.sampled_from(["Who wrote it?", "When was it?", "How many are there?", "where is york", "Which one?"])


def usable(kept):
    return [p for p in kept if p.text.strip()] or [Passage("Cats sleep.")]


def consistent(found, count):
    """Check what holds for every result."""
    n, k = found.ratios.shape
    assert n == count and found.odd_scores.shape == (n,) and found.probabilities.shape == (k,)
    for values in (found.odd_scores, found.probabilities, [found.score]):
        assert np.isfinite(values).all() and np.all(np.asarray(values) >= 0) and np.all(np.asarray(values) <= 1 + 1e-9)
    assert k == 0 or found.probabilities.sum() == pytest.approx(1)
    assert found.odd_scores.max() <= found.score + 1e-9
    assert not (found.stated.astype(bool) & found.denied).any()
    assert all(c is None or found.stated[i, c] == 1 for i, c in enumerate(found.claims))
    if found.note in (NOTHING_STATED, NOTHING_PROPOSED, NONE_AGREE, ONE_PROPOSED):
        assert found.odd is None and found.score == 0
    if not (found.stated.any() or found.denied.any()):
        assert found.odd is None and found.consensus is None and found.score == 0 and found.note
    again = Conflicts.from_dict(found.to_dict())
    assert repr(again) == repr(found) and again.odd == found.odd


@given(questions, passages, candidates)
@example("Who wrote it?", [Passage("Cats sleep.")], ["...", "Paris"])
@example("Who wrote it?", [Passage("York"), Passage("in New York")], ["York", "New York"])
@settings(max_examples=300 if LONG_FORMS else 75, deadline=None)
def test_with_candidates(question, kept, names):
    kept, names = usable(kept), [name for name in names if name.strip()]
    keys = list(map(key_of, names))
    if len(set(keys)) < len(keys) and len(keys) > 1:
        with pytest.raises(InputError, match="two or more that differ") as caught:
            fr.conflicts(READER, question, kept, names)
        second = next(i for i, key in enumerate(keys) if key in keys[:i])
        assert repr(names[keys.index(keys[second])]) in str(caught.value) and repr(names[second]) in str(caught.value)
        names = different(names)
    if len(names) < 2:
        with pytest.raises(InputError, match="two or more that differ"):
            fr.conflicts(READER, question, kept, names or ["Paris"])
        return
    consistent(fr.conflicts(READER, question, kept, names), len(kept))


@given(questions, passages, st.lists(names, min_size=2, max_size=5), st.data())
@settings(max_examples=150 if LONG_FORMS else 37, deadline=None)
def test_with_aliases_given_twice(question, kept, names, data):
    kept, names = usable(kept), different(names)
    free = [name for name in NAMES if key_of(name) not in set(map(key_of, names))]
    alias = data.draw(st.sampled_from(free))
    if len(names) > 1:
        found = fr.conflicts(READER, question, kept, names, aliases={names[0]: [alias, alias, names[0]]})
        consistent(found, len(kept))


@given(questions, passages)
@settings(max_examples=150 if LONG_FORMS else 37, deadline=None)
def test_without_candidates(question, kept):
    kept = usable(kept)
    found = fr.conflicts(READER, question, kept)
    assert found.proposed
    consistent(found, len(kept))


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(2, 8))
@settings(max_examples=100 if LONG_FORMS else 25, deadline=None)
def test_judgement_does_not_depend_on_the_order(seed, n, k):
    rng = np.random.default_rng(seed)
    stated = rng.choice([0, 0, 0.5, 1], (n, k))
    claims = np.where((stated == 1).any(axis=1), (stated == 1).argmax(axis=1), -1)
    denied = (stated == 0) & (rng.random((n, k)) < 0.2)
    own = Evidence(stated, denied, rng.random(n), rng.normal(0, 4, (n, k)), np.full((n, k), np.nan), claims)
    rows, columns = rng.permutation(n), rng.permutation(k)
    place = np.argsort(columns)
    moved = Evidence(
        stated[rows][:, columns], denied[rows][:, columns], own.about[rows], own.ratios[rows][:, columns],
        own.texts, np.where(claims[rows] < 0, -1, place[claims[rows]]),
    )  # fmt: skip
    one, two = judge(own), judge(moved)
    assert two.odd_scores == pytest.approx(one.odd_scores[rows]) and two.probability == pytest.approx(one.probability)
    assert two.probabilities == pytest.approx(one.probabilities[columns])


def test_the_reader_is_one_that_scores():
    assert isinstance(READER, ScoringReader)
