"""Stop strings in a text that grows, however its tokens cut them."""

import pytest
from helpers.support import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from fastreader.core.options import GenerateOptions
from fastreader.errors import InputError
from fastreader.reader.generation.text_so_far import StopStrings, cut
from fastreader.reader.prompts.encoder import TextEncoder

ENCODER = TextEncoder(byte_tokenizer())


def first_found(decode, tokens, stop) -> int | None:
    """After how many tokens the watch speaks up."""
    watch = StopStrings(decode, stop)
    return next((n for n in range(1, len(tokens) + 1) if watch.found(tokens[:n])), None)


@settings(deadline=None, max_examples=300)
@given(
    st.text("abé→\U0001f600\n", max_size=12), st.lists(st.text("abé→\U0001f600\n", min_size=1, max_size=3), max_size=3)
)
def test_found_with_the_token_that_completes_it(text, stop):
    """Byte tokens: characters of up to four tokens. Compared with decoding the whole text after every token."""
    tokens = ENCODER.piece(text)
    want = next((n for n in range(1, len(tokens) + 1) if any(s in ENCODER.text(tokens[:n]) for s in stop)), None)
    assert first_found(ENCODER.text, tokens, stop) == want


def test_tokens_that_depend_on_the_one_before():
    """SentencePiece's leading space: a text loses the space it starts with, but keeps those inside."""
    words = {1: "▁Hello", 2: "▁wor", 3: "ld", 4: "▁\n\n"}

    def decode(tokens):
        return "".join(words[t] for t in tokens).replace("▁", " ").removeprefix(" ")

    assert first_found(decode, [1, 2, 3, 4], ["o world"]) == 3
    assert first_found(decode, [1, 2, 3, 4], ["oworld"]) is None
    assert first_found(decode, [1, 2, 3, 4], ["d \n\n"]) == 4
    assert first_found(decode, [1, 2, 3, 4], [" Hello"]) is None


def test_a_hint_that_the_whole_text_does_not_confirm_is_none():
    """A tokenizer whose text changes with what follows."""

    def decode(tokens):
        text = "".join("ab."[t] for t in tokens)
        return text.replace("b.", "B") if len(tokens) == 3 else text

    assert first_found(decode, [0, 1, 2], ["b."]) is None


def test_no_stop_strings_decode_nothing():
    def refuse(tokens):
        raise AssertionError("decoded")

    assert first_found(refuse, [1, 2, 3], ()) is None


def test_cut_takes_the_first_of_several():
    assert cut("one two three", ["three", "two"]) == "one "
    assert cut("one", ["two"]) is None
    assert cut("one", []) is None


def test_an_iterator_is_read_once():
    options = GenerateOptions(stop=(s for s in ["a", "b"]), stop_token_ids=(t for t in [5, 7]))
    assert (options.stop, options.stop_token_ids) == (("a", "b"), (5, 7))
    with pytest.raises(InputError, match=r"got \('a', ''\)"):
        GenerateOptions(stop=(s for s in ["a", ""]))


@pytest.mark.parametrize("tokens", [None, 5, "ab", [True], [1.5]])
def test_bad_stop_tokens_are_rejected(tokens):
    with pytest.raises(InputError, match=r"stop_token_ids(\[\d\])?: expected a(n integer| list of integers)"):
        GenerateOptions(stop_token_ids=tokens)


@pytest.mark.parametrize("stop", ["text", [""], [5], ["a", None], None, 5])
def test_bad_stop_strings_are_rejected(stop):
    with pytest.raises(InputError, match=r"stop(\[\d\])?: expected (a list of |)text"):
        GenerateOptions(stop=stop)
