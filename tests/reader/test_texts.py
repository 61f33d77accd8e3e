"""PromptTexts: the base of every prompt template."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from fastreader.errors import InputError
from fastreader.reader.prompts.texts import PromptTexts


@dataclass(frozen=True)
class Letter(PromptTexts):
    greeting: str = "Dear {name},\n"
    closing: str = "Yours"
    chat: bool | None = None
    formal: bool = True
    system: str | None = None
    postscript: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    OPTIONAL: ClassVar[Any] = {"greeting": {"title"}}
    REQUIRED: ClassVar[Any] = {"postscript": {"text"}}


def test_texts_are_read_back_from_their_values():
    letter = Letter(greeting="{title} {name}", options={"a": [1]})
    assert Letter.from_dict(json.loads(json.dumps(letter.to_dict()))) == letter
    assert Letter.from_dict({"formal": False}) == Letter(formal=False)


def test_the_digest_distinguishes_texts():
    assert Letter().digest() == Letter().digest() != Letter(closing="").digest()
    assert len(Letter().digest()) == 16


@pytest.mark.parametrize(
    ("name", "text"),
    [("t.toml", 'greeting = "Hi {name}"\nchat = true\n'), ("t.json", '{"greeting": "Hi {name}", "chat": true}')],
)
def test_a_file_replaces_some_texts(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert Letter.load(tmp_path / name) == Letter(greeting="Hi {name}", chat=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("greeting = 3", r"t\.toml: Letter\.greeting: expected text, got 3"),
        ("salutation = 'Hi'", r"t\.toml: Letter: expected no keys besides greeting, .*, got 'salutation'"),
        ("greeting = ", r"t\.toml: not TOML"),
    ],
)
def test_a_file_with_an_error_is_named(tmp_path, text, message):
    (tmp_path / "t.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        Letter.load(tmp_path / "t.toml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"greeting": "Hello"}, r"Letter\.greeting: the field \{name\} must appear in it, got 'Hello'"),
        (
            {"greeting": "{name} {age}"},
            r"Letter\.greeting: unknown fields \['age'\]; it may use \['name', 'title'\], got",
        ),
        ({"greeting": "{name"}, r"Letter\.greeting: '\{name' is not a format string"),
        (
            {"greeting": "{name:>3}"},
            r"Letter\.greeting: fields must be plain, such as \{question\}, without ':' or '!'",
        ),
        ({"greeting": "{name!r}"}, "without ':' or '!'"),
        ({"postscript": "P.S."}, r"Letter\.postscript: the field \{text\} must appear in it, got 'P\.S\.'"),
        ({"closing": None}, r"Letter\.closing: expected text, got None"),
        ({"chat": "yes"}, r"Letter\.chat: expected True, False or None, got 'yes'"),
        ({"formal": None}, r"Letter\.formal: expected True or False, got None"),
        ({"system": 3}, r"Letter\.system: expected text or None, got 3"),
        ({"options": []}, r"Letter\.options: expected names with values, got \[\]"),
        ({"options": {1: 2}}, r"Letter\.options: expected names as keys"),
        ({"options": {"a": {1}}}, r"Letter\.options: expected JSON values"),
    ],
)
def test_invalid_values_are_named(values, message):
    with pytest.raises(InputError, match=message):
        Letter(**values)


def test_braces():
    """A text with fields doubles its literal braces. A text without fields is used as it is."""
    assert Letter(greeting="{{{name}}}").greeting.format(name="Ada") == "{Ada}"
    assert Letter(closing="{yours}").closing == "{yours}"
