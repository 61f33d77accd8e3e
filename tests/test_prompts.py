import json

import pytest
from support import byte_tokenizer

from fastreader import Passage, Template
from fastreader.errors import InputError
from fastreader.models.text import TextEncoder
from fastreader.prompts import encode

PASSAGES = [Passage("It is blue.", title="Sky"), Passage("It is green.")]
CHAT, PLAIN = TextEncoder(byte_tokenizer(chat=True)), TextEncoder(byte_tokenizer(bos=True))


def text(encoder, tokens):
    return encoder.tokenizer.decode(tokens)


def prompt(encoder, template, order=(0, 1)):
    pieces = encode(encoder, template, "What is blue?", PASSAGES, ["the sky", "grass"])
    return text(encoder, pieces.head + pieces.body(order) + pieces.tail()), [
        text(encoder, c) for c in pieces.candidates
    ]


def test_in_a_chat():
    got, candidates = prompt(CHAT, Template(header="Read.\n"), order=(1, 0))
    assert got == (
        "<|user|>\nRead.\nPassage: It is green.\nPassage (Title: Sky) It is blue.\n\nQuestion: What is blue?"
        "<|end|>\n<|assistant|>\n"
    )
    assert candidates == ["the sky<|end|>", "grass<|end|>"]


def test_without_a_chat():
    got, candidates = prompt(PLAIN, Template(header="Read.\n"))
    assert got.startswith("<|bos|>Read.\n") and got.count("<|bos|>") == 1
    assert got.endswith("\nQuestion: What is blue?\nAnswer:")
    assert candidates == [" the sky\n", " grass\n"]


def test_question_first_and_numbered():
    template = Template(
        question_first=True, header="", passage="[{number}] {text}", passage_without_title="[{number}] {text}", end=""
    )
    got, candidates = prompt(CHAT, template, order=(1, 0))
    assert got == ("<|user|>\n\nQuestion: What is blue?[1] It is green.\n[2] It is blue.\n<|end|>\n<|assistant|>\n")
    assert candidates == ["the sky", "grass"]
    pieces = encode(CHAT, template, "What is blue?", PASSAGES, [])
    assert text(CHAT, pieces.head[pieces.question_at :]) == " What is blue?"


def test_system_message_and_refusing_the_chat():
    assert prompt(CHAT, Template(system="Be brief."))[0].startswith("<|system|>\nBe brief.<|end|>\n<|user|>\n")
    assert "<|user|>" not in prompt(CHAT, Template(chat=False))[0]
    with pytest.raises(InputError, match="no chat template"):
        prompt(PLAIN, Template(chat=True))


def test_every_piece_is_the_same_in_every_order():
    pieces = encode(CHAT, Template(), "What is blue?", PASSAGES, [])
    assert sorted(pieces.body((0, 1))) == sorted(pieces.body((1, 0)))
    assert pieces.body((0, 1)) == pieces.passage(0, 0) + pieces.passage(1, 1)


def test_braces_in_user_text_are_just_braces():
    encode(CHAT, Template(), "What is {this}?", [Passage("{text} {0}")], ["{candidate}"])


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_from_a_file(tmp_path, suffix):
    file = tmp_path / f"template{suffix}"
    file.write_text(
        'header = "Read.\\n"\nquestion_first = true\n'
        if suffix == ".toml"
        else '{"header": "Read.\\n", "question_first": true}'
    )
    assert Template.load(file) == Template(header="Read.\n", question_first=True)
    file.write_text(json.dumps(Template(header="x").to_dict())) if suffix == ".json" else None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("header = ", "not a readable template"),
        ('heading = "x"', "unknown keys heading"),
        ('passage = "{text} {author}"', "unknown fields"),
        ('passage = "{title}"', "must appear"),
        ('question = "{question"', "not a format string"),
        ("question = 5", "expected text"),
        ('candidate = "{candidate} {question}"', "unknown fields"),
    ],
)
def test_bad_templates_are_refused(tmp_path, content, message):
    file = tmp_path / "template.toml"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        Template.load(file)


def test_an_absent_template_is_named(tmp_path):
    with pytest.raises(InputError, match=r"absent\.toml"):
        Template.load(tmp_path / "absent.toml")
