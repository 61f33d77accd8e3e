"""Where a chat template's text meets the message: token ids as apply_chat_template gives them."""

from __future__ import annotations

import json
from functools import cache

import pytest

from fastreader.data import Passage
from fastreader.reader.prompts.encoder import Seam, TextEncoder
from fastreader.reader.prompts.pieces import encode
from fastreader.reader.prompts.template import Template
from fastreader.reader.prompts.writer import PromptWriter

CORPUS = [
    "Which river flows through Paris? The Seine. Who was Ada? A mathematician.",
    "USER: Which? ASSISTANT: Paris. [INST] Which [/INST] User: Assistant: Instruction: Response:",
    "Who?\n\nWhat?\n\nWhich?\n\n.\n\n",
] * 4
MARKS = ["<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|end|>"]
TURNS = "{% for m in messages %}{% if m.role == 'user' %}"
REPLY = "{% elif m.role == 'assistant' %}"
DONE = "{% endif %}{% endfor %}"
TEMPLATES = {
    "llama-2": "{% for m in messages %}{% if m.role == 'user' %}{{ '<s>[INST] ' + m.content + ' [/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + ' </s>' }}{% endif %}{% endfor %}",
    "mistral": "<s>" + TURNS + "{{ '[INST] ' + m.content + ' [/INST]' }}" + REPLY + "{{ m.content + '</s>' }}" + DONE,
    "vicuna": "Be kind. "
    + (TURNS + "{{ 'USER: ' + m.content + ' ' }}" + REPLY + "{{ 'ASSISTANT: ' + m.content + '</s>' }}" + DONE)
    + "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}",
    "falcon": TURNS
    + ("{{ 'User: ' + m.content }}" + REPLY + "{{ '\n\nAssistant: ' + m.content }}" + DONE)
    + "{% if add_generation_prompt %}{{ '\n\nAssistant:' }}{% endif %}",
    "phi-3": "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    "zephyr": "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "alpaca": TURNS
    + ("{{ '### Instruction:\n' + m.content + '\n\n' }}" + REPLY + "{{ '### Response:\n' + m.content }}" + DONE)
    + "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}",
    "message first": TURNS
    + "{{ m.content }}"
    + REPLY
    + "{{ '\n' + m.content }}"
    + DONE
    # without a generation prompt an answer begins with what is written before it
    + "{% if add_generation_prompt %}{{ '\n' }}{% endif %}",
}
KINDS = ["first", "always", "legacy", "bytes", "regex"]


@cache
def trained(kind: str, strips: bool):
    """Return a tokenizer trained here: SentencePiece's, by scheme of its space, or byte-level BPE."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    base = ["<unk>", "<s>", "</s>"]
    inner = Tokenizer(models.BPE())
    if kind in ("bytes", "regex"):
        split = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+"), "isolated")
        bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "bytes")
        inner.pre_tokenizer = bytes_ if kind == "bytes" else pre_tokenizers.Sequence([split, bytes_])
        inner.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        inner.train_from_iterator(
            CORPUS, BpeTrainer(vocab_size=400, special_tokens=base, initial_alphabet=alphabet, show_progress=False)
        )
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
        inner.train_from_iterator(CORPUS, BpeTrainer(vocab_size=200, special_tokens=base, show_progress=False))
        learnt = json.loads(inner.to_str())["model"]
        words = [*base, *(f"<0x{b:02X}>" for b in range(256)), *(w for w in learnt["vocab"] if w not in base)]
        merges = [tuple(pair) for pair in learnt["merges"]]
        vocabulary = {word: i for i, word in enumerate(words)}
        inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>"))
        if kind == "legacy":
            inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        else:
            inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
        inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.add_special_tokens([AddedToken(mark, rstrip=strips, normalized=False) for mark in [*base, *MARKS]])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def chat(name: str, kind: str, strips: bool):
    tokenizer = trained(kind, strips)
    tokenizer.chat_template = TEMPLATES[name]
    return tokenizer, TextEncoder(tokenizer)


def rendered(tokenizer, messages, opened: bool) -> list[int]:
    turns = [{"role": role, "content": text} for role, text in messages]
    return tokenizer.apply_chat_template(turns, tokenize=True, add_generation_prompt=opened, return_dict=False)


@pytest.mark.parametrize("strips", [False, True], ids=["", "strips"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_prompt_is_what_apply_chat_template_gives(name, kind, strips):
    tokenizer, encoder = chat(name, kind, strips)
    writer = PromptWriter(encoder)
    for message in ("Which river", "éa", " Which", "  two", "\nWhich", "1", "Which?"):
        want = rendered(tokenizer, [("user", message)], opened=True)
        assert writer.prompt([message], chat=True) == want, tokenizer.convert_ids_to_tokens(want)
        # The pieces of a Template join the chat in the same way.
        pieces = encode(encoder, Template(header=message), "Who?", [Passage("P")], ["Ada"])
        start = writer.prefix([message], chat=True)
        assert pieces.head == start
        assert start == want[: len(start)] or message.endswith("?")  # whose last token may hold the template's text


@pytest.mark.parametrize("strips", [False, True], ids=["", "strips"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in TEMPLATES if name not in ("llama-2",)])
def test_an_answer_is_what_apply_chat_template_gives(name, kind, strips):
    tokenizer, encoder = chat(name, kind, strips)
    writer = PromptWriter(encoder)
    for answer in ("Paris", "Ada was"):
        want = rendered(tokenizer, [("user", "Which?"), ("assistant", answer)], opened=False)
        got = writer.prompt(["Which?"], chat=True) + writer.continuation(answer, chat=True)
        assert got == want[: len(got)], (tokenizer.convert_ids_to_tokens(got), tokenizer.convert_ids_to_tokens(want))
        assert tokenizer.decode(got).endswith(answer)


@pytest.mark.parametrize("strips", [False, True], ids=["", "strips"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_in_parts_is_what_apply_chat_template_gives(name, kind, strips):
    """Every seam, at the end of a message too."""
    tokenizer, encoder = chat(name, kind, strips)
    messages = [("user", "Which one?"), ("assistant", " Paris. "), ("user", "1\n")]
    marks = [f"fastreader-{i}-" for i in range(len(messages))]
    turns = [{"role": role, "content": mark} for (role, _), mark in zip(messages, marks, strict=True)]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    seam = Seam()
    for mark, (_, content) in zip(marks, messages, strict=True):
        before, _, text = text.partition(mark)
        seam = encoder.follow(encoder.follow(seam, before, trusted=True), content)
    assert encoder.closed(seam, text, trusted=True) == rendered(tokenizer, messages, opened=True)


@pytest.mark.parametrize("kind", KINDS)
def test_marks_in_a_message_stay_text(kind):
    tokenizer, encoder = chat("chatml", kind, True)
    prompt = PromptWriter(encoder).prompt(["<|im_end|>\n<|im_start|>", "<|im_", "end|>"], chat=True)
    special = [token for token in prompt if token in encoder.special.values()]
    assert tokenizer.convert_ids_to_tokens(special) == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_of_equal_leading_pieces_share_their_tokens(kind):
    for name in TEMPLATES:
        writer = PromptWriter(chat(name, kind, True)[1])
        start = writer.prefix(["Which ", "river"], chat=True)
        for more in ("s", " flows", "?\n"):
            assert writer.prompt(["Which ", "river", more], chat=True)[: len(start)] == start
