import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastreader.data import Passage
from fastreader.eor.run import Limits, chunks, cut, cut_all, first_words
from fastreader.errors import InputError


def words(count):
    return " ".join(f"w{i}" for i in range(count))


def test_first_words_keeps_the_white_space_between():
    assert first_words("one  two\nthree four", 3) == "one  two\nthree"
    assert first_words("one two ", 5) == "one two "


def test_the_title_counts():
    assert cut(Passage(words(9), title="two words"), 5).text == "w0 w1 w2"
    assert cut(Passage(words(9), title="many more words than there may be"), 3).text == "w0"


@given(st.integers(1, 700), st.integers(1, 120))
def test_chunks_partition_the_words_evenly(count, size):
    found = chunks(Passage(words(count), title="T", id="x", score=2.0), size)
    assert " ".join(c.text for c in found) == words(count)
    lengths = [len(c.text.split()) for c in found]
    assert max(lengths) - min(lengths) <= 1
    assert len(found) == max(round(count / size), 1)
    assert {c.title for c in found} == {"T"} and {c.id for c in found} == {"x"}


def test_chunks_carry_their_index():
    assert [c.metadata for c in chunks(Passage(words(30), metadata={"a": 1}), 10)] == [
        {"a": 1, "chunk": i} for i in range(3)
    ]


def test_all_passages_together_stay_within_the_limit():
    found = cut_all([Passage(words(4), title="t"), Passage(words(9)), Passage(words(3))], 8)
    assert [p.text for p in found] == [words(4), words(3)]
    assert cut_all([Passage(words(8)), Passage(words(2))], 8) == [Passage(words(8))]


def test_long_title_leaves_one_word():
    titled = Passage(words(4), title="three words long")
    assert [p.text for p in cut_all([titled, titled], 3)] == ["w0"]
    assert [p.text for p in cut_all([Passage("a"), titled], 4)] == ["a"]


@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_invalid_limits_raise(value):
    with pytest.raises(InputError, match=r"Limits\.page"):
        Limits(page=value)
