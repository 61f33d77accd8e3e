"""Who may ask and by which names: hosts, keys, methods, and the bodies of other servers' clients."""

import json
import socket

import httpx
import pytest
from helpers.serve_support import serving
from helpers.support import byte_tokenizer, tiny_llama
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

import fastreader as fr
from fastreader import Reader
from fastreader.cli.commands import app as command
from fastreader.errors import InputError
from fastreader.integrations.serve.completions import ChoiceTokens, _logprobs
from fastreader.integrations.serve.settings import ServerSettings

RERANK = {"query": "Which river?", "documents": ["The Nile is a river.", "Bread is baked.", "A long river."]}


@pytest.fixture(scope="module")
def keyed(tiny_reader):
    with serving(tiny_reader, keys=("correct horse",), origins=("https://page.example",)) as client:
        yield client


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 400),
        ("evil.example:8000", 400),
        ("127.0.0.1.evil.example", 400),
        ("localhost.evil.example:80", 400),
        ("10.0.0.1", 400),
        ("[2001:db8::1]:8000", 400),
        ("127.0.0.1", 200),
        ("127.0.0.1:8000", 200),
        ("localhost:9", 200),
        ("[::1]:8000", 200),
        ("app.localhost", 200),
        ("known.example:8000", 200),
    ],
)
def test_hosts_of_a_server_without_a_key(hosts_client, host, status):
    for method, path in (("POST", "/rerank"), ("GET", "/"), ("GET", "/health"), ("GET", "/v1/models")):
        body = {"json": RERANK} if method == "POST" else {}
        response = hosts_client.request(method, path, headers={"Host": host}, **body)
        assert response.status_code == status, (host, path)
    assert "location" not in hosts_client.get("/health/", headers={"Host": host}).headers


@pytest.fixture(scope="module")
def hosts_client(tiny_reader):
    with serving(tiny_reader, hosts=("known.example",)) as client:
        yield client


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("Authorization", "Bearer correct horse")], 200),
        ([("Authorization", "bearer correct horse")], 200),
        ([("authorization", "BEARER  correct horse")], 200),
        ([("Authorization", "correct horse")], 401),
        ([("Authorization", "Basic correct horse")], 401),
        ([("Authorization", "Bearer correct")], 401),
        ([("Authorization", "Bearer horse")], 401),
        ([("Authorization", "Bearer")], 401),
        ([("Authorization", "Bearer wrong"), ("Authorization", "Bearer correct horse")], 401),
        ([("Authorization", "Bearer correct horse"), ("Authorization", "Bearer correct horse")], 401),
        ([], 401),
    ],
)
def test_keys(keyed, headers, status):
    assert keyed.post("/rerank", json=RERANK, headers=headers).status_code == status


def test_the_key_of_the_environment_is_one(monkeypatch):
    from fastreader.cli import options
    from fastreader.integrations.serve import app

    seen = []
    monkeypatch.setattr("uvicorn.run", lambda *arguments, **others: None)
    monkeypatch.setattr(options.ReaderArguments, "load", lambda self: "reader")
    monkeypatch.setattr(app, "create_app", lambda reader, settings: seen.append(settings))
    key = "correct horse battery staple"
    for environment, arguments, keys in (
        ({"FASTREADER_SERVE_KEY": key}, [], (key,)),
        ({"FASTREADER_SERVE_KEY": key}, ["--api-key", "a b", "--api-key", "c"], ("a b", "c")),
        ({"FASTREADER_SERVE_KEY": ""}, ["--open"], ()),
    ):
        found = CliRunner().invoke(command, ["serve", "--host", "0.0.0.0", *arguments], env=environment)
        assert found.exit_code == 0, found.output
        assert seen[-1].keys == keys
    for wrong in ("é", " a", "a\n"):
        with pytest.raises(InputError, match="keys"):
            ServerSettings(keys=(wrong,))


def test_methods_and_models(hosts_client, tiny_reader):
    for path in ("/health", "/", "/v1/models", "/metrics"):
        head, get = hosts_client.head(path), hosts_client.get(path)
        assert head.status_code == get.status_code == 200 and not head.content
    wrong = hosts_client.get("/rerank")
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST"
    (model,) = hosts_client.get("/v1/models").json()["data"]
    assert model["created"] > 1e9 and model == hosts_client.get(f"/v1/models/{tiny_reader.name}").json()
    assert hosts_client.get("/v1/models/other").status_code == 404
    nothing = hosts_client.post("/v1/embeddings", json={}).json()["error"]
    assert nothing["code"] == 404 and "/v1/chat/completions" in nothing["message"]
    assert hosts_client.get("/docs").status_code == 404  # nothing is loaded from other hosts


def test_pages_of_allowed_origins_only(keyed, hosts_client):
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    allowed = keyed.options("/v1/chat/completions", headers={"Origin": "https://page.example", **asked})
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://page.example"
    own = {"Origin": "https://page.example", "Authorization": "Bearer correct horse"}
    response = keyed.post("/rerank", json=RERANK, headers=own)
    assert response.headers["access-control-allow-origin"] == "https://page.example"
    for client in (keyed, hosts_client):
        other = client.options("/rerank", headers={"Origin": "https://other.example", **asked})
        assert "access-control-allow-origin" not in other.headers


def test_websockets_are_refused(hosts_client):
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    request = (
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with socket.create_connection((hosts_client.base_url.host, hosts_client.base_url.port)) as one:
        one.sendall(request.encode())
        one.settimeout(10)
        assert b" 101 " not in one.recv(200)


def test_rerank_of_other_clients(hosts_client, tiny_reader):
    direct = fr.rerank(tiny_reader, RERANK["query"], RERANK["documents"])
    body = {"query": RERANK["query"], "texts": RERANK["documents"], "raw_scores": False, "truncate": True}
    listed = hosts_client.post("/rerank", json={**body, "return_text": True}).json()
    assert [row["index"] for row in listed] == direct.indices  # text-embeddings-inference answers with a list
    assert [row["score"] for row in listed] == pytest.approx([result.relevance for result in direct], abs=1e-6)
    assert listed[0]["text"] == direct[0].passage.text
    everything = hosts_client.post("/rerank", json={**RERANK, "top_n": 0, "return_documents": None}).json()
    assert len(everything["results"]) == 3
    pairs = {"data_1": RERANK["query"], "data_2": RERANK["documents"]}
    scores = [row["score"] for row in hosts_client.post("/score", json=pairs).json()["data"]]
    assert [scores[i] for i in direct.indices] == pytest.approx([r.relevance for r in direct], abs=1e-6)
    short = hosts_client.post("/rerank", json={**RERANK, "max_tokens_per_doc": 4, "return_documents": True}).json()
    assert all(len(tiny_reader.encoder.piece(row["document"]["text"])) <= 4 for row in short["results"])
    raw = hosts_client.post("/rerank", json={**body, "raw_scores": True}).json()
    assert [row["score"] for row in raw] == pytest.approx([result.value for result in direct], abs=1e-5)
    error = hosts_client.post("/score", json={"data_1": 3, "data_2": ["a"]}).json()["error"]
    assert error["param"] == "data_1"


@pytest.mark.parametrize(
    ("field", "value", "neutral"),
    [
        ("logit_bias", {"5": -100}, {}),
        ("suffix", "x", ""),
        ("best_of", 3, 1),
        ("frequency_penalty", 0.5, 0),
        ("presence_penalty", 0.5, 0.0),
        ("repetition_penalty", 1.1, 1.0),
        ("min_tokens", 5, 0),
        ("min_p", 0.1, 0),
        ("ignore_eos", True, False),
        ("prompt_logprobs", 1, None),
        ("response_format", {"type": "json_object"}, {"type": "text"}),
        ("guided_choice", ["a"], None),
        ("structured_outputs", {"choice": ["a"]}, None),
        ("truncate_prompt_tokens", 5, None),
        ("a_field_of_tomorrow", 1, None),
        ("skip_special_tokens", False, True),
        ("use_beam_search", True, False),
    ],
)
def test_a_field_is_obeyed_or_named(hosts_client, field, value, neutral):
    body = {"prompt": "a", "max_tokens": 2, "temperature": 0}
    plain = hosts_client.post("/v1/completions", json=body).json()["choices"]
    response = hosts_client.post("/v1/completions", json={**body, field: value})
    assert response.status_code == 400 and response.json()["error"]["param"] == field
    response = hosts_client.post("/v1/completions", json={**body, field: neutral})
    assert response.status_code == 200 and response.json()["choices"] == plain


def test_options_that_are_passed_on(hosts_client, tiny_reader):
    body = {"prompt": "a", "max_tokens": 6, "temperature": 0}
    ((plain,),) = tiny_reader.generate(["a"], max_new_tokens=6)
    stopped = hosts_client.post("/v1/completions", json={**body, "stop_token_ids": [plain.token_ids[2]]}).json()
    assert stopped["usage"]["completion_tokens"] == 2 and stopped["choices"][0]["finish_reason"] == "stop"
    greedy = {**body, "temperature": 3.0, "top_k": 1}
    assert hosts_client.post("/v1/completions", json=greedy).json()["choices"][0]["text"] == plain.text
    nulls = {"max_tokens": None, "temperature": None, "n": None, "echo": None, "stream": None, "stop": None}
    assert hosts_client.post("/v1/completions", json={"prompt": "a", **nulls}).status_code == 200


def test_errors_name_the_clients_fields(hosts_client, tiny_reader):
    for body, param in (
        ({"prompt": [10**9], "max_tokens": 1}, "prompt"),
        ({"prompt": [[5], [10**9]], "max_tokens": 1}, "prompt"),
        ({"prompt": [5] * 5000, "max_tokens": 1}, "prompt"),
        ({"prompt": "word " * 100_000, "max_tokens": 1}, "prompt"),
    ):
        error = hosts_client.post("/v1/completions", json=body).json()["error"]
        assert error["param"] == param, error
    half = '{"query": "q", "documents": [{"text": "a", "title": "\\ud800"}]}'
    kind = {"content-type": "application/json"}
    error = hosts_client.post("/rerank", content=half, headers=kind).json()["error"]
    assert error["code"] == 422 and error["param"] == "documents" and "title" in error["message"]


def sentencepiece_tokenizer():
    """A tokenizer as Llama 2 has it: a space before every text, which decoding takes away, and bytes as tokens."""
    corpus = ["The Nile is in Cairo, where the river is long.", "a cafe and a reader", "here is the river"] * 4
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    trained.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=120, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    base = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    words = [word for word, _ in sorted(learned["vocab"].items(), key=lambda item: item[1]) if word not in base]
    vocabulary = {word: i for i, word in enumerate([*base, *words])}
    merges = [tuple(merge) for merge in learned["merges"]]
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    spaces, start = decoders.Replace("\u2581", " "), decoders.Strip(" ", 1, 0)
    inner.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), start])
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


TEXTS = ["Cairo 🐫 is 東京 ok", "Where is the café, naïve reader? 👩‍👩‍👧 here", " leading and  two spaces ", "a\n\nb"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [byte_tokenizer, sentencepiece_tokenizer])
def test_offsets_are_those_of_the_text(make, text):
    class Encoder:
        tokenizer = make()

    class Of:
        encoder = Encoder

    ids = tuple(Encoder.tokenizer.encode(text, add_special_tokens=False))
    shown = Encoder.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    rows = ChoiceTokens(shown, ids, (0.0,) * len(ids), (None,) * len(ids))
    found = _logprobs(Of, rows)
    assert "".join(found["tokens"]) == shown
    for i, (own, at) in enumerate(zip(found["tokens"], found["text_offset"], strict=True)):
        assert shown[at : at + len(own)] == own
        before = Encoder.tokenizer.decode(ids[:i], clean_up_tokenization_spaces=False).rstrip("\ufffd")
        assert at == len(before) or not own or shown.startswith(before)


def test_a_sentencepiece_readers_completions(tmp_path):
    tokenizer = sentencepiece_tokenizer()
    reader = Reader.load((tiny_llama(vocab_size=len(tokenizer)), tokenizer), device="cpu", precision="exact")
    with serving(reader) as client:
        body = {"prompt": "the river is", "max_tokens": 8, "temperature": 0, "logprobs": 2}
        alone = client.post("/v1/completions", json=body).json()["choices"][0]
        echoed = client.post("/v1/completions", json={**body, "echo": True}).json()["choices"][0]
        stream = client.post("/v1/completions", json={**body, "echo": True, "stream": True}).text
    assert echoed["text"].endswith(alone["text"])
    for choice in (alone, echoed):
        lists = choice["logprobs"]
        assert "".join(lists["tokens"]) == choice["text"]
        for own, at in zip(lists["tokens"], lists["text_offset"], strict=True):
            assert choice["text"][at : at + len(own)] == own
    ids = reader.encoder.prompt_tokens("the river is")
    ((direct,),) = reader.generate([ids], max_new_tokens=8)
    whole = tokenizer.decode([*ids, *direct.token_ids], clean_up_tokenization_spaces=False)
    assert echoed["text"] == whole
    assert httpx.Response(200, text=stream).text.rstrip().endswith("[DONE]")
