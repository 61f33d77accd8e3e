import json
import sys
import threading

import pytest
from helpers.support import byte_tokenizer

from fastreader.errors import InputError, UnsupportedModelError
from fastreader.reader.prompts.encoder import TextEncoder


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
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


REGEXES = {
    "qwen": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}


def regex_tokenizer(kind: str):
    """A byte-level BPE trained here behind the pre-tokenizer of Llama-3 or Qwen, which joins line breaks."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(REGEXES[kind]), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|bos|>", "<|end|>"],
        show_progress=False,
    )
    inner.train_from_iterator(["a\n\n\nb.\n\nc\n\n\nd.\n the answer is 12\n\n"] * 50, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<|bos|>", eos_token="<|end|>")


@pytest.mark.parametrize("kind", list(REGEXES))
def test_tokenizers_that_join_line_breaks_give_pieces_as_they_are(kind):
    tokenizer = regex_tokenizer(kind)
    assert len(tokenizer.tokenize("\n\n")) == 1 and len(tokenizer.tokenize(".\n")) == 1
    encoder = TextEncoder(tokenizer)
    for text in ("a", " answer", "\na", "\n\n", ".\n", "12"):
        assert encoder.piece(text) == tokenizer(text, add_special_tokens=False)["input_ids"]


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
    assert end not in encoder.piece("the text <|end|> continues")


def test_added_tokens_that_the_chat_writes_count_as_special():
    from tokenizers import AddedToken

    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([AddedToken("<|turn|>", special=False), AddedToken("    ", special=False)])
    tokenizer.chat_template = "{{ '<|turn|>    ' + messages[0]['content'] }}"
    turn, spaces = tokenizer.convert_tokens_to_ids(["<|turn|>", "    "])
    encoder = TextEncoder(tokenizer)
    assert turn not in encoder.piece("the text <|turn|> continues")
    assert encoder.piece("<|turn|>", trusted=True) == [turn]
    assert spaces in encoder.piece("if a:\n    b")
    assert not tokenizer.added_tokens_decoder[turn].special


def test_the_tokenizer_given_is_left_as_it_was():
    tokenizer = byte_tokenizer(chat=True)
    encoder = TextEncoder(tokenizer)
    before = tokenizer.backend_tokenizer.encode("a<|end|>b").ids
    encoder.piece("a<|end|>b")
    encoder.pair("a", "b")
    assert tokenizer.backend_tokenizer.encode_special_tokens is False
    assert tokenizer.backend_tokenizer.encode("a<|end|>b").ids == before
    tokenizer.backend_tokenizer.encode_special_tokens = True  # nor does a change of it reach the encoder
    assert encoder.piece("<|end|>", trusted=True) == [tokenizer.convert_tokens_to_ids("<|end|>")]


@pytest.mark.parametrize("make", [lambda: byte_tokenizer(chat=True), lambda: spaced_tokenizer("first")])
def test_later_changes_of_the_tokenizer_do_not_reach_the_encoder(make):
    tokenizer = make()
    tokenizer.add_tokens(["one", "two"])
    encoder, text = TextEncoder(tokenizer), "one hello two three " * 20
    before = encoder.piece(text)
    assert tokenizer.convert_tokens_to_ids("two") in before
    backend = tokenizer.backend_tokenizer
    tokenizer.add_tokens(["three"])
    backend.enable_truncation(3)
    if hasattr(backend.pre_tokenizer, "replacement"):
        backend.pre_tokenizer.replacement = "x"
    else:
        backend.pre_tokenizer.add_prefix_space = True
    assert tokenizer(text)["input_ids"] != before
    assert encoder.piece(text) == before


def test_added_tokens_whose_ids_a_copy_would_change_are_refused():
    """The tokenizer's vocabulary was replaced after they were added."""
    from tokenizers import models

    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["one"])
    inner = tokenizer.backend_tokenizer
    words = json.loads(inner.to_str())["model"]["vocab"]
    inner.model = models.BPE(vocab={**words, "ÿÿ": len(words), "þþ": len(words) + 1}, merges=[])
    with pytest.raises(UnsupportedModelError, match=r"gives added tokens other ids: \[\(261, .*one"):
        TextEncoder(tokenizer)


def test_threads_get_the_tokens_they_asked_for():
    tokenizer = byte_tokenizer()
    encoder = TextEncoder(tokenizer)
    end = tokenizer.convert_tokens_to_ids("<|end|>")
    wrong = []

    def ask(trusted):
        got = [end in encoder.piece("ab<|end|>", trusted=trusted) for _ in range(1000)]
        wrong.extend(answer for answer in got if answer != trusted)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=ask, args=(trusted,)) for trusted in (True, False, True, False)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


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


def chat_template(answer="<|assistant|>\n", given="<|assistant|>\n", end="<|end|>"):
    """A template that opens an answer with one text, and writes another before an answer given."""
    return (
        "{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>' + m.content + '<|end|>' }}"
        "{% elif m.role == 'system' %}{{ raise_exception('no system message here') }}"
        f"{{% else %}}{{{{ '{given}' + m.content + '{end}' }}}}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{answer}{{% endif %}}"
    )


THINKS = chat_template(
    "<|assistant|>\n{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}",
    "<|assistant|>\n<think></think>",
)


@pytest.mark.parametrize(
    "template",
    [
        pytest.param(THINKS, id="thinks by default"),
        pytest.param(chat_template("<|assistant|>\n<think>\n"), id="opens its thinking"),
        pytest.param(chat_template(""), id="no generation prompt"),
    ],
)
def test_a_chat_template_that_opens_an_answer_otherwise_is_refused(template):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    encoder = TextEncoder(tokenizer)
    with pytest.raises(UnsupportedModelError, match=r"enable_thinking.*Template\.answer_lead.*chat=False"):
        encoder.chat_frame(None, {})
    opening = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=1)
    frame = encoder.chat_frame(None, {}, own_lead=True)
    assert frame.before + "x" + frame.between == opening and frame.space == ""


def test_thinking_switched_off():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = THINKS
    frame = TextEncoder(tokenizer).chat_frame(None, {"enable_thinking": False})
    assert frame.between == "<|end|><|assistant|>\n<think></think>"


def test_a_space_before_the_answer_belongs_to_the_answer():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = chat_template("<|assistant|>", "<|assistant|> ")
    frame = TextEncoder(tokenizer).chat_frame(None, {})
    assert (frame.between, frame.space) == ("<|end|><|assistant|>", " ")


@pytest.mark.parametrize(
    ("template", "system", "options", "message"),
    [
        (chat_template(), "Be brief.", {}, r"Template\.system.*a system message.*no system message here"),
        ("{% for m in messages %}{{ m.content }", None, {}, "chat_template.*TemplateSyntaxError"),
        (chat_template(), None, {"tokenize": True}, r"Template\.chat_options.*tokenize"),
        ("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", None, {}, "chat_template.*RecursionError"),
        ("{{ 1 / 0 }}", None, {}, "chat_template.*ZeroDivisionError"),
        ("{{ messages[7]['content']['x'] }}", None, {}, "chat_template.*UndefinedError"),
    ],
)
def test_a_chat_template_that_fails_is_an_input_error(template, system, options, message):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(InputError, match=message):
        TextEncoder(tokenizer).chat_frame(system, options)


def test_a_tokenizer_without_beginning_and_end_of_text():
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = tokenizer.eos_token = None
    encoder = TextEncoder(tokenizer)
    assert encoder.pair("ab", "cd") == (encoder.piece("ab"), encoder.piece("cd"))
    with pytest.raises(UnsupportedModelError, match="neither"):
        encoder.pair("", "cd")


def test_an_end_of_text_added_by_the_tokenizer_is_not_scored():
    from tokenizers import processors

    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A <|end|>", special_tokens=[("<|bos|>", 0), ("<|end|>", 1)]
    )
    encoder = TextEncoder(tokenizer)
    assert encoder.pair("ab", "cd") == ([0, *encoder.piece("ab")], encoder.piece("cd"))


def test_pairs_follow_the_harness():
    encoder = TextEncoder(byte_tokenizer())
    piece = encoder.piece
    assert encoder.pair("ab ", "cd") == (piece("ab"), piece(" cd"))
    assert encoder.pair("", "cd") == ([0], piece("cd"))
    assert encoder.pair("  ", "cd") == ([0], piece("  cd"))
    with pytest.raises(InputError, match="expected text"):
        encoder.pair("ab", "")


@pytest.mark.parametrize("other", [None, "gpt2", {"a": 1}])
def test_what_is_no_tokenizer_is_refused(other):
    with pytest.raises(InputError, match="expected a transformers tokenizer"):
        TextEncoder(other)


JOINS = [
    ("Question?\nAnswer:", "Paris and London"),
    ("hello he", "llo"),
    ("hello hel", "lo hello"),
    ("1", "2 3"),
    ("12", "12\n\nand"),
    ("the answer is", " 12"),
    ("a.", "\n\nc"),
    ("a", "\n\n\nb"),
    ("a\n", "\n\nb"),
    ("caf", "é au lait"),
    ("a", "<|end|>b"),
    ("a<|end", "|> b"),
]


@pytest.mark.parametrize("special_tokens", [True, False])
@pytest.mark.parametrize(("context", "continuation"), JOINS)
@pytest.mark.parametrize(
    "make",
    [
        byte_tokenizer,
        *(lambda k=k: regex_tokenizer(k) for k in REGEXES),
        *(lambda s=s: spaced_tokenizer(s) for s in ("first", "always")),
    ],
    ids=["bytes", *REGEXES, "first", "always"],
)
def test_the_tokens_of_a_continuation_are_all_of_it(make, context, continuation, special_tokens):
    """As by the harness's rule, but for a token that spans the join: then the two are encoded apart."""
    tokenizer = make()
    encoder = TextEncoder(tokenizer)
    head, tail = encoder.pair(context, continuation, special_tokens=special_tokens)
    moved = context[len(context.rstrip()) :]
    # Decoding a first token drops its space, hence the token before it.
    text = tokenizer.decode([*head[-1:], *tail]).removeprefix(tokenizer.decode(head[-1:]))
    assert text == moved + continuation
    assert head == encoder.start(context.rstrip(), trusted=special_tokens)
    joint = encoder.start(context + continuation, trusted=special_tokens)
    assert head + tail == joint or joint[: len(head)] != head


def test_a_continuation_that_the_tokenizer_drops_is_an_error():
    from tokenizers import normalizers

    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("z", "")
    with pytest.raises(InputError, match="continuation: 'zz' has no token"):
        TextEncoder(tokenizer).pair("hello", "zz")


def with_draws(kind):
    """A tokenizer whose model draws how it splits a text, as in training."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    if kind == "dropout":
        tokenizer = regex_tokenizer("llama3")
        tokenizer.backend_tokenizer.model.dropout = 0.5
        return tokenizer
    words = [(w, -float(len(w))) for w in ("<unk>", "a", "b", "n", "ab", "an", "ban", "ana", "nab")]
    inner = Tokenizer(models.Unigram(words, unk_id=0))
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")
    tokenizer.backend_tokenizer.model.alpha = 0.1
    return tokenizer


@pytest.mark.parametrize("kind", ["dropout", "alpha"])
def test_a_tokenizer_that_draws_its_splits_is_read_without(kind):
    tokenizer = with_draws(kind)
    text = "bananabananab the answer is 12" * 3
    assert len({tuple(tokenizer(text)["input_ids"]) for _ in range(30)}) > 1
    encoder = TextEncoder(tokenizer)
    assert len({tuple(encoder.piece(text)) for _ in range(30)}) == 1
    model = tokenizer.backend_tokenizer.model
    assert getattr(model, kind) is not None  # the given one is left as it was
    setattr(model, kind, None)
    assert encoder.piece(text) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_a_tokenizer_that_panics_is_an_error_of_ours():
    from tokenizers import Regex, pre_tokenizers

    tokenizer = byte_tokenizer()
    slow = pre_tokenizers.Split(Regex("(?:x+x+)+y"), "isolated")
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([slow, pre_tokenizers.ByteLevel()])
    encoder = TextEncoder(tokenizer)
    with pytest.raises(UnsupportedModelError, match=r"tokenizer failed.*tokenizer\.json may be damaged"):
        encoder.piece("x" * 200 + "!")
    assert encoder.piece("ab")  # other texts are still read


def test_mistral_commons_tokenizer_is_refused_with_what_to_use():
    class MistralCommonBackend:
        bos_token_id = 1

        def __call__(self, text):
            return text

    with pytest.raises(UnsupportedModelError, match=r"mistral-common.*mistral_format=False"):
        TextEncoder(MistralCommonBackend())
