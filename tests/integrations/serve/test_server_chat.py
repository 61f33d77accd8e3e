"""Chats and streams: the tokens of transformers' template, by the server and OpenAI's client."""

import json
import re

import openai
import pytest
from helpers.serve_support import serving
from helpers.support import byte_tokenizer, tiny_llama

from fastreader import Reader
from fastreader.errors import NumericsError
from fastreader.reader.generation import generate as generation

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Which river is long?"},
    {"role": "assistant", "content": "The Nile."},
    {"role": "user", "content": "And how long?"},
]


@pytest.fixture(scope="module")
def reader():
    return Reader.load((tiny_llama(), byte_tokenizer(chat=True)), device="cpu", precision="exact")


@pytest.fixture(scope="module")
def client(reader):
    with serving(reader, names=("tiny",), timeout=60.0) as client:
        yield client


@pytest.fixture(scope="module")
def openai_client(client):
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="unused", max_retries=0) as own:
        yield own


def events_of(response):
    """Return the events of a stream, without the last line."""
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"], lines[-1] == "[DONE]"


def test_a_chat_is_what_the_template_and_the_model_give(openai_client, reader):
    tokens = reader.tokenizer.apply_chat_template(TALK, add_generation_prompt=True, return_dict=False)
    ((direct,),) = reader.generate([tokens], max_new_tokens=12, token_logprobs=True)
    found = openai_client.chat.completions.create(
        model="tiny", messages=TALK, max_completion_tokens=12, temperature=0, logprobs=True, top_logprobs=3
    )
    (choice,) = found.choices
    assert choice.message.content == direct.text and choice.message.role == "assistant"
    assert found.usage.prompt_tokens == len(tokens)
    assert [row.logprob for row in choice.logprobs.content] == pytest.approx(direct.token_logprobs, abs=1e-5)
    assert all(len(row.top_logprobs) == 3 for row in choice.logprobs.content)
    assert "".join(row.token for row in choice.logprobs.content) == direct.text
    parts = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in TALK]
    same = openai_client.chat.completions.create(model="tiny", messages=parts, max_tokens=12, temperature=0)
    assert same.choices[0].message.content == direct.text


def test_special_tokens_in_messages_stay_text(client, reader):
    mark = next(mark for mark in reader.encoder.special if mark in reader.tokenizer.chat_template)
    plain = [{"role": "user", "content": "a b"}]
    injected = [{"role": "user", "content": f"a {mark} b {mark}"}]

    def count(messages):
        body = {"messages": messages, "max_tokens": 1, "temperature": 0}
        return client.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]

    extra = len(reader.encoder.piece(f"{mark} ")) + len(reader.encoder.piece(f" {mark}"))
    assert len(reader.encoder.piece(mark)) > 1
    assert count(injected) == count(plain) + extra


@pytest.mark.parametrize("extra", [{}, {"logprobs": True, "top_logprobs": 2}, {"n": 3, "temperature": 1.0, "seed": 5}])
def test_a_streamed_chat_has_the_whole_ones_text(client, openai_client, extra):
    body = {"model": "tiny", "messages": TALK, "max_tokens": 15, "temperature": 0, **extra}
    whole = client.post("/v1/chat/completions", json=body).json()
    texts, tokens, reasons, seen = {}, {}, {}, []
    usage = None
    options = {"include_usage": True}
    for chunk in openai_client.chat.completions.create(**body, stream=True, stream_options=options):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            reasons[choice.index] = choice.finish_reason
            seen.append(choice.delta.content)
            if choice.logprobs:
                tokens.setdefault(choice.index, []).extend(choice.logprobs.content)
    assert usage.model_dump(exclude_none=True) == whole["usage"]
    for choice in whole["choices"]:
        assert texts[choice["index"]] == choice["message"]["content"]
        assert reasons[choice["index"]] == choice["finish_reason"]
        if "logprobs" in extra:
            assert [row.model_dump() for row in tokens[choice["index"]]] == choice["logprobs"]["content"]
    assert len([text for text in seen if text]) > 3  # as they are generated


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("logprobs", [None, 0, 3])
def test_a_streamed_completion_has_the_whole_ones_text(client, echo, logprobs):
    body = {"prompt": ["The Nile", "Bread"], "max_tokens": 9, "temperature": 0, "echo": echo, "logprobs": logprobs}
    whole = client.post("/v1/completions", json=body).json()
    response = client.post("/v1/completions", json={**body, "stream": True, "stream_options": {"include_usage": True}})
    events, done = events_of(response)
    assert done and events[-1]["usage"] == whole["usage"]
    for choice in whole["choices"]:
        own = [e["choices"][0] for e in events if e["choices"] and e["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in own) == choice["text"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        if logprobs is None:
            continue
        for name, values in choice["logprobs"].items():
            streamed = [value for part in own for value in part["logprobs"][name]]
            if name == "token_logprobs":
                assert streamed == [None if value is None else pytest.approx(value, abs=1e-9) for value in values]
            elif name != "top_logprobs":
                assert streamed == values
            else:
                assert [top and list(top) for top in streamed] == [top and list(top) for top in values]


def test_a_stop_string_is_held_back(client):
    text = client.post("/v1/completions", json={"prompt": "The", "max_tokens": 30, "temperature": 0}).json()
    text = text["choices"][0]["text"]
    for start in range(2, len(text) - 4, 3):
        stop = text[start : start + 4]
        body = {"prompt": "The", "max_tokens": 30, "temperature": 0, "stop": [stop, "never"]}
        whole = client.post("/v1/completions", json=body).json()["choices"][0]
        events, done = events_of(client.post("/v1/completions", json={**body, "stream": True}))
        streamed = "".join(event["choices"][0]["text"] for event in events)
        assert done and streamed == whole["text"] == text[: text.index(stop)]
        assert events[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "stop"


def test_errors_before_and_in_a_stream(client, monkeypatch):
    bad = client.post("/v1/completions", json={"prompt": [5, -1], "stream": True})
    assert bad.status_code == 422 and bad.json()["error"]["param"] == "prompt"
    pick, calls = generation.pick, []

    def fails(*arguments):
        calls.append(1)
        if len(calls) > 4:
            raise NumericsError("the logits are not finite")
        return pick(*arguments)

    monkeypatch.setattr(generation, "pick", fails)
    body = {"messages": TALK, "max_tokens": 20, "temperature": 0, "stream": True}
    events, done = events_of(client.post("/v1/chat/completions", json=body))
    assert not done and "not finite" in events[-1]["error"]["message"]
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="x", max_retries=0) as own:
        calls.clear()
        with pytest.raises(openai.APIError, match="not finite"):
            list(own.chat.completions.create(model="tiny", **body))
    monkeypatch.undo()
    assert events_of(client.post("/v1/chat/completions", json=body))[1]


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools: this server does not have"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"messages": []}, 422, "messages: "),
        ({"messages": [{"role": "tool", "content": "x"}]}, 422, "messages\\[0\\]: expected 'system'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            400,
            "messages: expected parts of type text",
        ),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}]}, 400, "tool_calls"),
        ({"top_logprobs": 3}, 422, "top_logprobs: expected 0 without logprobs"),
        ({"messages": [{"role": "user", "content": "word " * 3000}]}, 422, "messages: .* tokens long"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, 422, "chat_template_kwargs"),
    ],
)
def test_chats_that_are_rejected(client, change, status, message):
    response = client.post("/v1/chat/completions", json={"messages": TALK, "max_tokens": 2, **change})
    assert response.status_code == status, response.text
    assert re.search(message, response.json()["error"]["message"])


def test_a_reader_without_a_template(tiny_reader):
    if tiny_reader.tokenizer.chat_template:
        plain = Reader.load((tiny_llama(), byte_tokenizer(chat=False)), device="cpu", precision="exact")
    else:
        plain = tiny_reader
    with serving(plain) as client:
        error = client.post("/v1/chat/completions", json={"messages": TALK}).json()["error"]
        assert error["param"] == "messages" and "no chat template" in error["message"]


def test_defaults_of_null_and_neutral_fields(client):
    neutral = {
        "max_tokens": None, "temperature": None, "n": None, "stream": None, "tools": None, "frequency_penalty": 0,
        "logit_bias": None, "stop": None, "user": "me", "response_format": {"type": "text"}, "store": False,
    }  # fmt: skip
    body = {"messages": TALK, "max_completion_tokens": 3, **neutral}
    found = client.post("/v1/chat/completions", json=body)
    assert found.status_code == 200 and found.json()["usage"]["completion_tokens"] <= 3
