"""/tokenize and /detokenize against transformers, and the paths of other servers."""

import pytest
from helpers.serve_support import serving
from helpers.support import byte_tokenizer, tiny_llama

pytest.importorskip("fastapi", reason="needs the extra serve")

from fastreader import Reader

TEXTS = ["", "a", " two  words\n", "Cairo \U0001f42b 東京 é", "<|user|>hi<|end|> x", "<|bos|>a", "a" * 3000]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "bos"])
def reader(request):
    tokenizer = byte_tokenizer(chat=True, bos=request.param)
    return Reader.load((tiny_llama(), tokenizer), device="cpu", check="off")


@pytest.fixture(scope="module")
def served(reader):
    with serving(reader) as client:
        yield client


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("special", [True, False, None])
def test_tokens_are_those_of_the_tokenizer(served, reader, text, special):
    tokenizer = reader.encoder.tokenizer
    expected = tokenizer(text, add_special_tokens=special is not False)["input_ids"]
    if text.startswith("<|bos|>") and expected[:2] == [0, 0]:
        expected = expected[1:]  # as /v1/completions reads it
    body = {"prompt": text, "add_special_tokens": special, "return_token_strs": True}
    found = served.post("/tokenize", json=body).json()
    assert found == {
        "count": len(expected),
        "max_model_len": 2048,
        "tokens": expected,
        "token_strs": tokenizer.convert_ids_to_tokens(expected),
    }
    back = served.post("/detokenize", json={"tokens": expected}).json()
    assert back == {"prompt": tokenizer.decode(expected, clean_up_tokenization_spaces=False)}
    if special is not False and 0 < len(expected) <= 2000:
        usage = served.post("/v1/completions", json={"prompt": text, "max_tokens": 1}).json()["usage"]
        assert text == "" or usage["prompt_tokens"] == len(expected)


def test_tokens_of_a_chat(served, reader):
    messages = [{"role": "user", "content": "Which river?"}, {"role": "assistant", "content": "x"}] * 2
    messages.append({"role": "user", "content": "why"})
    tokenizer = reader.encoder.tokenizer
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    found = served.post("/tokenize", json={"messages": messages}).json()
    assert found["tokens"] == expected and found["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/tokenize", {}, 422, "prompt: expected a prompt or messages"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, 422, "not both"),
        ("/tokenize", {"messages": [{"role": "user"}], "add_special_tokens": True}, 422, "add_special_tokens"),
        ("/tokenize", {"messages": []}, 422, "messages"),
        ("/tokenize", {"prompt": "a" * 40_000}, 422, "prompt: expected at most 32,768 bytes"),
        ("/tokenize", {"prompt": "a\ud800"}, 422, "prompt: expected text that UTF-8 can hold"),
        ("/tokenize", {"inputs": "a"}, 400, "inputs"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model"),
        ("/detokenize", {}, 422, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, 422, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 422, "from 0"),
        ("/detokenize", {"tokens": [261]}, 422, "vocabulary"),
        ("/detokenize", {"tokens": [5] * 600_000}, 422, "at most 500,000"),
        ("/v1/embeddings", {"input": "a"}, 404, "/v1/rerank and /score"),
        ("/embed", {"inputs": "a"}, 404, "/v1/rerank and /score"),
        ("/embed_sparse", {"inputs": "a"}, 404, "/v1/rerank and /score"),
        ("/pooling", {"input": "a"}, 404, "/v1/rerank and /score"),
        ("/similarity", {"inputs": {}}, 404, "/v1/rerank and /score"),
        ("/classify", {"input": "a"}, 404, "logprobs of labels"),
        ("/predict", {"inputs": "a"}, 404, "logprobs of labels"),
        ("/v1/responses", {"input": "a"}, 404, "by /v1/chat/completions"),
        ("/v1/messages", {"messages": []}, 404, "by /v1/chat/completions"),
        ("/generate", {"inputs": "a"}, 404, "by /v1/chat/completions"),
        ("/api/chat", {"messages": []}, 404, "by /v1/chat/completions"),
        ("/api/rerank", {"query": "a"}, 404, "by /v1/rerank"),
        ("/v1/tokenize", {"prompt": "a"}, 404, "by /tokenize"),
        ("/info", {}, 404, "/health"),
        ("/nothing", {}, 404, "no such path"),
    ],
)
def test_what_is_refused_names_what_there_is(served, path, body, status, message):
    import json

    headers = {"content-type": "application/json"}
    response = served.post(path, content=json.dumps(body).encode(), headers=headers)
    assert response.status_code == status, response.text[:300]
    assert message in response.json()["error"]["message"]
