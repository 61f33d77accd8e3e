import pytest
from support import byte_tokenizer

from fastreader.errors import InputError, UnsupportedModelError
from fastreader.models.text import TextEncoder


def spaced_tokenizer(scheme: str):
    """A tokenizer that, like SentencePiece's, puts a space before a text, with byte fallback for line breaks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = [chr(c) for c in range(33, 127)]
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)]
    words = ["▁", "▁a", "▁hello", "hello", "llo", "he"]
    vocabulary = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", *byte_tokens, *letters, *words])}
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo"), ("▁", "a"), ("▁", "hello")]
    vocabulary["ll"] = len(vocabulary)
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    inner.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.mark.parametrize("scheme", ["always", "first"])
def test_no_extra_prefix_space_inside_a_text(scheme):
    tokenizer = spaced_tokenizer(scheme)
    encoder = TextEncoder(tokenizer)
    tokens = lambda ids: tokenizer.convert_ids_to_tokens(ids)  # noqa: E731
    assert tokens(encoder.piece("hello", first=True)) == ["▁hello"]
    assert tokens(encoder.piece("hello")) == ["hello"]
    assert tokens(encoder.piece(" hello")) == ["▁hello"]
    assert tokens(encoder.piece("\na")) == ["<0x0A>", "a"]


@pytest.mark.parametrize("make", [byte_tokenizer, lambda: spaced_tokenizer("always")])
def test_equal_text_gives_equal_tokens_wherever_it_stands(make):
    encoder = TextEncoder(make())
    assert encoder.piece("x y\n") + encoder.piece("z") == encoder.piece("x y\n") + encoder.piece("z")
    assert encoder.piece("") == []


def test_text_from_outside_cannot_end_the_turn():
    tokenizer = byte_tokenizer()
    encoder = TextEncoder(tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    assert encoder.piece("<|end|>", trusted=True) == [end]
    assert end not in encoder.piece("the text <|end|> goes on")


def test_beginning_of_text_is_there_once():
    with_bos, without = TextEncoder(byte_tokenizer(bos=True)), TextEncoder(byte_tokenizer())
    assert with_bos.bos == [0] and without.bos == []
    assert with_bos.start("ab") == [0, *without.start("ab")]
    assert with_bos.start("<|bos|>ab", trusted=True) == with_bos.start("ab")


def test_chat_frame():
    encoder = TextEncoder(byte_tokenizer(chat=True))
    frame = encoder.chat_frame(None, {})
    assert (frame.before, frame.between, frame.after) == ("<|user|>\n", "<|end|>\n<|assistant|>\n", "<|end|>")
    assert encoder.chat_frame("Be brief.", {}).before == "<|system|>\nBe brief.<|end|>\n<|user|>\n"
    assert TextEncoder(byte_tokenizer()).chat_frame(None, {}) is None


def test_a_chat_template_that_changes_the_message_is_refused():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0]['content'] | upper }}"
    with pytest.raises(UnsupportedModelError, match="chat=False"):
        TextEncoder(tokenizer).chat_frame(None, {})


def test_pairs_follow_the_harness():
    encoder = TextEncoder(byte_tokenizer())
    piece = encoder.piece
    assert encoder.pair("ab ", "cd") == (piece("ab"), piece(" cd"))
    assert encoder.pair("", "cd") == ([0], piece("cd"))
    assert encoder.pair("  ", "cd") == ([0], piece("  cd"))
    with pytest.raises(InputError, match="expected text"):
        encoder.pair("ab", "")


def test_a_continuation_that_vanishes_is_an_error():
    tokenizer = spaced_tokenizer("first")
    encoder = TextEncoder(tokenizer)
    # "he" + "llo" is one token, as is "he" alone: nothing of the continuation is left.
    with pytest.raises(InputError, match="no token of its own"):
        encoder.pair("hello he", "llo")
