import dataclasses
import json
from datetime import date

import pytest
from helpers.support import byte_tokenizer

from fastreader import Passage, Template
from fastreader.errors import InputError, UnsupportedModelError
from fastreader.reader.prompts.encoder import TextEncoder
from fastreader.reader.prompts.pieces import encode

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
    assert got == ("<|user|>\n\nQuestion: What is blue?\n\n[1] It is green.\n[2] It is blue.\n<|end|>\n<|assistant|>\n")
    assert candidates == ["the sky", "grass"]
    pieces = encode(CHAT, template, "What is blue?", PASSAGES, [])
    assert text(CHAT, pieces.head[pieces.question_at :]) == " What is blue?"


def test_question_first_by_default_keeps_question_and_passages_apart():
    got, _ = prompt(PLAIN, Template(question_first=True, header="Read.\n"))
    assert got == (
        "<|bos|>Read.\n\nQuestion: What is blue?\n\nPassage (Title: Sky) It is blue.\nPassage: It is green.\n\nAnswer:"
    )


def test_a_prompt_starts_with_a_token_to_score_behind():
    plain = TextEncoder(byte_tokenizer())
    for template in (Template(header="", chat=False), Template(header="", question_first=True, question_lead="")):
        pieces = encode(plain, template, "What is blue?", PASSAGES, ["a"])
        assert pieces.head[0] == plain.prefix_token() and pieces.question_at in (None, 1)
    assert encode(plain, Template(header="x"), "What?", PASSAGES, ["a"]).head == plain.piece("x")


def test_the_template_owns_the_space_at_the_edges():
    tidy = encode(PLAIN, Template(), "What is blue?", [Passage("It is.", title="Sky")], ["the sky"])
    loose = encode(PLAIN, Template(), "\n What is blue? ", [Passage("It is.", title=" Sky\n")], [" the sky\n"])
    assert loose == tidy
    assert encode(PLAIN, Template(), "q", [Passage("x", title="  ")], []).passages == [[PLAIN.piece("Passage: x")]]


def test_white_space_is_no_question_and_no_candidate():
    with pytest.raises(InputError, match="question"):
        encode(PLAIN, Template(), " \n", PASSAGES, ["a"])
    with pytest.raises(InputError, match=r"candidates\[1\]"):
        encode(PLAIN, Template(), "q", PASSAGES, ["a", " "])


def test_special_tokens_of_the_template_are_read_and_of_texts_are_not():
    end = CHAT.piece("<|end|>", trusted=True)[0]
    template = Template(
        header="<|end|>",
        separator="<|end|>",
        question_lead="<|end|>",
        answer_lead="<|end|>",
        question_end="<|end|>",
        chat=False,
    )
    outside = ("q <|end|>", [Passage("x <|end|>", title="<|end|>")], ["a <|end|>"])
    pieces = encode(CHAT, template, *outside)
    assert [pieces.head, pieces.separator, pieces.question_lead, pieces.answer] == [[end]] * 4
    assert all(end not in part for part in (pieces.question, pieces.passages[0][0], pieces.candidates[0]))
    assert encode(CHAT, dataclasses.replace(template, question_first=True), *outside).opening == [end]


def test_an_answer_lead_of_ones_own_closes_the_thinking():
    tokenizer = byte_tokenizer(chat=True)
    tokenizer.chat_template = tokenizer.chat_template.replace("<|assistant|>\n", "<|assistant|>\n<think>\n")
    encoder = TextEncoder(tokenizer)
    with pytest.raises(UnsupportedModelError, match="answer_lead"):
        prompt(encoder, Template())
    assert prompt(encoder, Template(answer_lead="</think>\n"))[0].endswith("<|assistant|>\n<think>\n</think>\n")


def test_a_chat_template_with_a_space_before_answers():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
        "{% else %} {{ m.content }} <|end|>{% endif %}{% endfor %}"
    )
    got, candidates = prompt(TextEncoder(tokenizer), Template(header=""))
    assert got.startswith("[INST] ") and got.endswith("What is blue? [/INST]")
    assert candidates == [" the sky <|end|>", " grass <|end|>"]


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
        ("header = ", "not TOML"),
        ('heading = "x"', "no keys besides .*header, .*got 'heading'"),
        ('passage = "{text} {author}"', "unknown fields"),
        ('passage = "{title}"', "must appear"),
        ('question = "{question"', "not a format string"),
        ("question = 5", "expected text"),
        ('question = "{question:d}"', r"Template\.question: fields must be plain"),
        ('question = "{question!r}"', r"Template\.question: fields must be plain"),
        ('question = "{question:{question}}"', r"Template\.question: fields must be plain"),
        ('question = "{question.upper} {question}"', r"Template\.question: unknown fields"),
        ('passage = "{text} {0}"', r"Template\.passage: unknown fields"),
        ('passage = "{text} {}"', r"Template\.passage: unknown fields"),
        ("question_end = 1", r"Template\.question_end: expected text"),
        ("system = 1", r"Template\.system: expected text or None, got 1"),
        ('chat = "yes"', r"Template\.chat: expected True or False or None, got 'yes'"),
        ("question_first = 1", r"Template\.question_first: expected True or False, got 1"),
        ("chat_options = [1]", r"Template\.chat_options: expected a dictionary, got \[1\]"),
        ('candidate = "{candidate} {question}"', "unknown fields"),
    ],
)
def test_bad_templates_are_refused(tmp_path, content, message):
    file = tmp_path / "template.toml"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        Template.load(file)


@pytest.mark.parametrize("content", ["[]", '"passage"', "null", "1"])
def test_a_file_that_is_no_object_is_refused(tmp_path, content):
    file = tmp_path / "template.json"
    file.write_text(content)
    with pytest.raises(InputError, match=r"template\.json: expected an object"):
        Template.load(file)


def test_chat_options_that_no_result_could_name_are_refused():
    with pytest.raises(InputError, match=r"Template\.chat_options: expected JSON values, got .*'day'"):
        Template(chat_options={"enable_thinking": False, "day": date.today()})
    for odd in (float("nan"), {1: 1, "a": 2}):  # neither could be in a digest
        with pytest.raises(InputError, match=r"expected JSON values, got .*'x'"):
            Template(chat_options={"x": odd})


def test_an_absent_template_is_named(tmp_path):
    with pytest.raises(InputError, match=r"absent\.toml"):
        Template.load(tmp_path / "absent.toml")
