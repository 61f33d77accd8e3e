"""ServerReader before an engine whose replies are no replies: errors of ours, in bounded time and memory."""

import copy
import json
import math
import random
import sys
import threading
import time
import zlib
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from helpers.support import LONG_FORMS, byte_tokenizer

import fastreader as fr
from fastreader.errors import EngineError, FastreaderError, InputError
from fastreader.reader.remote import server_reader

httpx = pytest.importorskip("httpx", reason="needs the extra engines")
MODELS = {"data": [{"id": "m", "max_model_len": 512, "meta": {"n_ctx_train": 512}}]}
MUTANTS = 400 if LONG_FORMS else 100
CONTEXT, CONTINUATION = [65, 66, 67], [68, 69]
TOKENS = CONTEXT + CONTINUATION
ROWS = [[None, 65, "A"], *([-1.0 - i, token, None] for i, token in enumerate(TOKENS[1:]))]
SCORES = {
    "openai": {
        "choices": [
            {
                "index": 0,
                "text": "",
                "logprobs": {
                    "tokens": ["A", "B", "C", "D", "E", "F"],
                    "token_logprobs": [None, -1.0, -2.0, -3.0, -4.0, -0.5],
                    "top_logprobs": [None, *({"x": -0.5} for _ in range(5))],
                },
            }
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}},
    },
    "vllm": {
        "choices": [
            {
                "index": 0,
                "text": "F",
                "prompt_logprobs": [None, *({str(t): {"logprob": -1.0, "rank": 2}} for t in TOKENS[1:])],
            }
        ],
        "usage": {"prompt_tokens": 5},
    },
    "sglang": {
        "text": "F",
        "meta_info": {
            "input_token_logprobs": ROWS[2:],
            "input_top_logprobs": [None, *([[-0.5, 70, None]] for _ in range(2))],
            "cached_tokens": 2,
        },
    },
}
TEXTS = {
    "choices": [
        {
            "index": 0,
            "text": "ab",
            "token_ids": [65, 66],
            "finish_reason": "stop",
            "stop_reason": None,
            "logprobs": {"tokens": ["a", "b"], "token_logprobs": [-1.0, -2.0], "top_logprobs": None},
        }
    ],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}


def reader_of(score=None, text=None, models=MODELS, engine="openai", tokenizer=None):
    def answer(request):
        if request.url.path == "/v1/models":
            return httpx.Response(200, content=encoded(models))
        if request.method == "GET":
            return httpx.Response(404, json={})
        body = json.loads(request.content)
        scored = body.get("echo") or "prompt_logprobs" in body or "input_ids" in body
        return httpx.Response(200, content=encoded(score if scored else text))

    return fr.ServerReader(
        "http://engine/v1/",
        "m",
        tokenizer or byte_tokenizer(),
        engine=engine,
        transport=httpx.MockTransport(answer),
        retries=0,
    )


def encoded(reply):
    return reply if isinstance(reply, bytes) else json.dumps(reply).encode()


def scored(reader):
    return reader.score([(CONTEXT, CONTINUATION)])


def written(reader):
    return reader.generate([CONTEXT], max_new_tokens=3, token_logprobs=True)[0][0]


def mutants(reply, count, seed):
    """Replies with one value replaced, removed or doubled, and cut or misspelt bodies."""
    random_ = random.Random(seed)
    odd = [None, True, 5, -1, 1.5, "x", "-1.0", [], {}, [None], {"x": 1}, math.nan, 10**400, "\ud800", [[[]]]]
    for _ in range(count):
        made = copy.deepcopy(reply)
        places = []

        def visit(value, places=places):
            for key in list(value) if isinstance(value, dict) else range(len(value)):
                places.append((value, key))
                if isinstance(value[key], (dict, list)):
                    visit(value[key])

        visit(made)
        holder, key = random_.choice(places)
        kind = random_.randrange(6)
        if kind < 4:
            holder[key] = random_.choice(odd)
        elif kind == 4:
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, holder[key])
        body = json.dumps(made).encode()
        yield body[: random_.randrange(len(body))] if random_.random() < 0.05 else body


def test_the_replies_before_mutation_are_read():
    for engine, reply in SCORES.items():
        assert scored(reader_of(reply, engine=engine)).token_logprobs[0].tolist() in ([-3.0, -4.0], [-1.0, -1.0])
    text = written(reader_of(text=TEXTS))
    assert (text.text, text.token_logprobs, text.finish_reason) == ("ab", [-1.0, -2.0], "eos")


@pytest.mark.parametrize("engine", SCORES)
def test_mutated_scores_are_numbers_or_errors_of_ours(engine):
    for body in mutants(SCORES[engine], MUTANTS, seed=1):
        try:
            found = scored(reader_of(body, engine=engine))
        except FastreaderError:
            continue
        values = found.token_logprobs[0]
        assert len(values) == 2 and all(-1000 < value <= 1e-3 for value in values), body


def test_mutated_texts_are_texts_or_errors_of_ours():
    for body in mutants(TEXTS, MUTANTS, seed=2):
        try:
            text = written(reader_of(text=body))
        except FastreaderError:
            continue
        assert isinstance(text.text, str) and len(text.token_logprobs) <= 3, body
        assert all(-1000 < value <= 1e-3 for value in text.token_logprobs), body


def test_mutated_models_are_errors_of_ours():
    for body in mutants(MODELS, MUTANTS, seed=3):
        try:
            length = reader_of(models=body).max_length
        except FastreaderError:
            continue
        assert length is None or length > 0, body


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"token_logprobs": [None, -1.0, -2.0, -3.0, 1.0, -0.5]},
            "wrong choices.0.logprobs.token_logprobs.4.*got '1.0'",
        ),
        ({"token_logprobs": True}, "wrong choices.0.logprobs.token_logprobs"),
        ({"token_logprobs": [None, "-1.0"]}, "valid number, got '-1.0'"),
        ({"token_logprobs": [None, -1.0]}, "log-probabilities of 0 of 2 tokens"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    reply = copy.deepcopy(SCORES["openai"])
    reply["choices"][0]["logprobs"] |= change
    with pytest.raises(EngineError, match=message):
        scored(reader_of(reply))


def shifted(engine, counted):
    """The reply of an engine that puts a token before the prompt."""
    reply = copy.deepcopy(SCORES[engine])
    if engine == "openai":
        given = reply["choices"][0]["logprobs"]
        given["tokens"].insert(0, "<s>")
        given["token_logprobs"].insert(1, -9.0)
        given["top_logprobs"].insert(1, {"x": -0.5})
    elif engine == "vllm":
        reply["choices"][0]["prompt_logprobs"].insert(1, {"65": {"logprob": -9.0}})
    if counted:
        reply["usage"] = {"prompt_tokens": 6}
    else:
        reply.pop("usage", None)
    return reply


@pytest.mark.parametrize("counted", [True, False])
@pytest.mark.parametrize("engine", ["openai", "vllm"])
def test_an_engine_that_puts_a_token_before_the_prompt_is_refused(engine, counted):
    with pytest.raises(EngineError, match=r"the engine read 6 tokens of a prompt of 5: it adds"):
        scored(reader_of(shifted(engine, counted), engine=engine))


def test_a_token_before_the_prompt_is_seen_by_its_texts():
    tokenizer = byte_tokenizer()
    reply = shifted("openai", counted=False)
    given = reply["choices"][0]["logprobs"]
    given["tokens"] = ["<s>", *(tokenizer.decode([token]) for token in TOKENS)]
    for name in ("token_logprobs", "top_logprobs"):
        given[name] = given[name][:6]
    with pytest.raises(EngineError, match="puts a token before the prompt"):
        scored(reader_of(reply))
    given["tokens"] = [*given["tokens"][1:], "x"]
    assert scored(reader_of(reply)).logprob[0] == -5.0


def test_texts_of_an_engine_that_adds_a_token_are_refused():
    with pytest.raises(EngineError, match="the engine read 4 tokens of a prompt of 3"):
        written(reader_of(text={**TEXTS, "usage": {"prompt_tokens": 4}}))


@contextmanager
def serving(respond):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_GET(self):
            respond(self)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_timeout_bounds_the_whole_reply():
    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(100):
            try:
                handler.wfile.write(b" ")
                handler.wfile.flush()
            except OSError:
                return
            time.sleep(0.05)

    started = time.monotonic()
    with serving(drip) as url, pytest.raises(EngineError, match=r"not complete after 0\.3 s"):
        fr.ServerReader(url, "m", byte_tokenizer(), timeout=0.3, retries=0)
    assert time.monotonic() - started < 4


@pytest.mark.parametrize("bomb", [True, False])
def test_a_reply_that_does_not_end_is_cut(bomb, monkeypatch):
    monkeypatch.setattr(server_reader, "_MOST_BYTES", 1 << 20)
    seen = []

    class Limited(bytearray):
        def __iadd__(self, part):
            seen.append(len(self) + len(part))
            return super().__iadd__(part)

    monkeypatch.setattr(server_reader, "bytearray", Limited, raising=False)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = b"".join([packer.compress(bytes(1 << 20)) for _ in range(150)]) + packer.flush()

    def flood(handler):
        handler.send_response(200)
        if bomb:
            handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(body) if bomb else 1 << 40))
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(body if bomb else bytes(1 << 16))
                if bomb:
                    return
        except OSError:
            return

    with serving(flood) as url, pytest.raises(EngineError, match="more than 1,048,576 bytes"):
        fr.ServerReader(url, "m", byte_tokenizer(), retries=0)
    assert max(seen) < 80 << 20  # of 150 MiB: what 64 KiB, one read, unpack to


def test_a_reply_that_is_not_compressed_as_it_says():
    def wrong(handler):
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", "4")
        handler.end_headers()
        handler.wfile.write(b"nope")

    with serving(wrong) as url, pytest.raises(EngineError, match="DecodingError"):
        fr.ServerReader(url, "m", byte_tokenizer(), retries=0)


@pytest.mark.parametrize(
    ("url", "variables", "sent"),
    [
        ("https://api.openai.com/v1", {"OPENAI_API_KEY": "o"}, "Bearer o"),
        ("https://api.openai.com", {"OPENAI_API_KEY": "o", "FASTREADER_API_KEY": "f"}, "Bearer f"),
        ("https://api.openai.com.evil.example", {"OPENAI_API_KEY": "o"}, None),
        ("http://127.0.0.1:8000", {"OPENAI_API_KEY": "o"}, None),
        ("http://127.0.0.1:8000/v1", {"FASTREADER_API_KEY": "f"}, "Bearer f"),
    ],
)
def test_openais_key_goes_to_openai_only(url, variables, sent, monkeypatch):
    for name in ("OPENAI_API_KEY", "FASTREADER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    seen = []

    def answer(request):
        seen.append((request.url.path, request.headers.get("authorization")))
        return httpx.Response(200, json=MODELS)

    fr.ServerReader(url, "m", byte_tokenizer(), engine="openai", transport=httpx.MockTransport(answer))
    assert seen == [("/v1/models", sent)]


def test_a_tokenizer_with_code_is_refused_without_a_question(tmp_path, monkeypatch):
    mark = tmp_path / "ran"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "odd", "auto_map": {"AutoConfig": "odd.C"}}))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "T", "auto_map": {"AutoTokenizer": ["odd.T", None]}})
    )
    (tmp_path / "odd.py").write_text(f"open({str(mark)!r}, 'w').write('x')\n")

    def asked(*_):
        raise AssertionError("a question on standard input")

    monkeypatch.setattr("builtins.input", asked)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="tokenizer: expected a transformers tokenizer"):
        reader_of(models={"data": [{"id": "m"}]}, tokenizer=str(tmp_path))
    assert not mark.exists()


def test_a_packaged_readers_name_is_its_tokenizer(packaged_folder):
    served = {"data": [{"id": "smollm2-135m", "max_model_len": 2048}]}
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=served))
    reader = fr.ServerReader("http://engine", engine="openai", transport=transport)
    assert reader.encoder.tokenizer.name_or_path == str(packaged_folder / "model.gguf")
