"""Bad bodies, keys, a full queue, clients that leave, and the end of the process."""

import http.client
import json
import re
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from helpers.forks import Forked
from helpers.serve_support import serving
from typer.testing import CliRunner

from fastreader.cli.commands import app as command
from fastreader.errors import InputError
from fastreader.integrations.serve.settings import ServerSettings
from fastreader.reader.base import ReaderBase

RERANK = {"query": "Which river?", "documents": ["The Nile.", "Bread."]}


def error_of(response):
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error["code"] == response.status_code and set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/rerank", {"documents": []}, 422, "query: expected, but missing"),
        ("/rerank", {"query": " ", "documents": []}, 422, "query: expected text that is not blank, got the string ' '"),
        ("/rerank", {**RERANK, "top_n": -1}, 422, "top_n: expected greater than or equal to 0"),
        (
            "/rerank",
            {**RERANK, "documents": [3]},
            422,
            r"documents\[0\]: expected a string or an object, got .*3",
        ),
        ("/rerank", {**RERANK, "documents": [{"x": "y"}]}, 422, r"documents\[0\]: expected a text"),
        ("/rerank", {**RERANK, "method": "magic"}, 422, "method: expected one of"),
        ("/rerank", {**RERANK, "model": "gpt-9"}, 404, "model: expected .*tiny"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, 422, "documents: expected one, or one for each"),
        ("/score", {"text_1": "a", "text_2": []}, 422, "documents"),
        ("/v1/completions", {"prompt": "a", "logprobs": 21}, 422, "logprobs: expected less than or equal to 20"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 422, "max_tokens: expected at least 1"),
        (
            "/v1/completions",
            {"prompt": "a", "max_tokens": 10**12},
            422,
            "max_tokens: expected less than",
        ),
        ("/v1/completions", {"prompt": [5, -1]}, 422, r"prompt\[0\]: .*from 0, .*got -1"),
        ("/v1/completions", {"prompt": []}, 422, "prompt: expected at least one"),
        ("/v1/completions", {"prompt": [10**9], "echo": True, "logprobs": 0, "max_tokens": 0}, 422, "below the voc"),
        ("/v1/completions", {"prompt": [5] * 3000, "max_tokens": 1, "temperature": 0}, 422, "3000 tokens long"),
        ("/v1/read", {"question": "a", "passages": []}, 422, "passages"),
        ("/v1/read", {"question": "a", "passages": ["b", " "]}, 422, r"passages\[1\]: text"),
        ("/v1/read", {"question": "a", "passages": ["b"], "permutations": "spiral"}, 422, "permutations"),
        ("/v1/read", {"question": "a", "passages": ["b", "c"] * 4, "permutations": "random:101"}, 422, "at most 100"),
        ("/v1/read", {"question": "a", "passages": ["word " * 3000], "candidates": ["x"]}, 422, "context"),
    ],
)
def test_bad_bodies(client, path, body, status, message):
    response = client.post(path, json=body)
    error = error_of(response)
    assert response.status_code == status
    assert re.search(message, error["message"]), error["message"]
    if ":" in message and not message.startswith("bias"):
        assert error["param"] == error["message"].partition(":")[0].partition("[")[0]


def test_what_is_no_json(client):
    kind = {"content-type": "application/json"}
    for content in (b"{", b"\xff\xfe", b"[" * 100_000, b'"text"', b""):
        assert error_of(client.post("/rerank", content=content, headers=kind))["type"] == "invalid_request_error"
    assert error_of(client.post("/rerank", content=b"{", headers=kind))["code"] == 400
    assert error_of(client.get("/nothing"))["code"] == 404
    assert error_of(client.get("/rerank"))["code"] == 405


def test_json_that_is_not_announced_as_such(client):
    body = json.dumps(RERANK)
    for kind in ("application/x-www-form-urlencoded", "text/plain"):  # the first is what curl -d sends
        error = error_of(client.post("/rerank", content=body, headers={"content-type": kind}))
        assert error["code"] == 415 and "Content-Type: application/json" in error["message"]
    assert client.post("/rerank", content=body, headers={"content-type": "application/json"}).status_code == 200


def test_bodies_that_are_too_large(client):
    large = b'{"query": "' + b"x" * (2 << 20) + b'"}'
    assert error_of(client.post("/rerank", content=large))["code"] == 413
    pieces = (large[i : i + 65536] for i in range(0, len(large), 65536))  # its length is not announced
    assert error_of(client.post("/rerank", content=pieces))["code"] == 413
    assert client.post("/rerank", json=RERANK).status_code == 200


def test_many_values_are_refused_before_they_are_parsed_and_commas_of_texts_are_none(tiny_reader):
    with serving(tiny_reader) as client:
        error = error_of(client.post("/v1/completions", json={"prompt": [7] * 600_002}))
        assert error["code"] == 413 and "more than 600,000 values" in error["message"]
        assert client.post("/rerank", json={**RERANK, "query": "," * 700_000}).status_code != 413


def test_a_client_that_sends_all_before_it_reads_sees_why(tiny_reader):
    with serving(tiny_reader) as client:
        plain = http.client.HTTPConnection(client.base_url.host, client.base_url.port)
        plain.request("POST", "/rerank", b"x" * (9 << 20), {"Content-Type": "application/json"})
        answer = plain.getresponse()
        assert answer.status == 413 and "9,437,184 bytes, expected at most 2,097,152" in answer.read().decode()


def test_a_body_that_does_not_come(tiny_reader):
    with serving(tiny_reader, timeout=0.3) as client:
        with socket.create_connection((client.base_url.host, client.base_url.port)) as slow:
            slow.sendall(b"POST /rerank HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            slow.settimeout(10)
            assert b"408" in slow.recv(4096)
        assert client.get("/health").status_code == 200


def test_refused_requests_are_counted_by_their_path(tiny_reader):
    key = {"Authorization": "Bearer key"}
    with serving(tiny_reader, keys=("key",), max_body_bytes=1000) as client:
        assert client.post("/rerank", content=b"x" * 2000, headers=key).status_code == 413
        assert client.post("/rerank", json=RERANK).status_code == 401
        assert (
            client.post("/score", content=b"{", headers={**key, "content-type": "application/json"}).status_code == 400
        )
        assert client.get("/score", headers=key).status_code == 405
        for path in ("/nothing", "/rerank/nothing"):
            assert client.get(path, headers=key).status_code == 404
        told = client.get("/metrics", headers=key).text
    for path, status, count in (
        ("/rerank", 413, 1),
        ("/rerank", 401, 1),
        ("/score", 400, 1),
        ("/score", 405, 1),
        ("other", 404, 2),
    ):
        assert f'fastreader_requests_total{{path="{path}",status="{status}"}} {count}.0' in told, (path, status)
    assert 'path="/nothing"' not in told  # a path for each guess would grow without end


def test_keys(tiny_reader):
    with serving(tiny_reader, keys=("first", "second")) as client:
        assert error_of(client.post("/rerank", json=RERANK))["type"] == "authentication_error"
        for key in ("wrong", "firs", "first2", "first second"):
            response = client.post("/rerank", json=RERANK, headers={"Authorization": f"Bearer {key}"})
            assert error_of(response)["code"] == 401
        for key in ("first", "second"):
            assert client.post("/rerank", json=RERANK, headers={"Authorization": f"Bearer {key}"}).status_code == 200
        assert client.get("/health").status_code == 200 and client.get("/").status_code == 200
        assert client.get("/metrics").status_code == 401


@pytest.fixture
def slow_reader(tiny_reader, monkeypatch):
    """Passes wait for `go`."""
    go, score = threading.Event(), ReaderBase._score

    def waits(*arguments):
        assert go.wait(30)
        return score(*arguments)

    monkeypatch.setattr(ReaderBase, "_score", waits)  # also with a cache of passages
    yield tiny_reader, go
    go.set()


def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_full_queue_and_one_that_has_room_again(slow_reader):
    reader, go = slow_reader
    with serving(reader, max_requests=2) as client, ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(client.post, "/rerank", json=RERANK) for _ in range(2)]
        until(lambda: client.get("/health").json()["active_requests"] == 2)
        full = client.post("/rerank", json=RERANK)
        assert error_of(full)["code"] == 429 and full.headers["retry-after"] == "1"
        go.set()
        assert [one.result().status_code for one in waiting] == [200, 200]
        assert client.post("/rerank", json=RERANK).status_code == 200


def test_a_request_that_takes_too_long(slow_reader):
    reader, go = slow_reader
    with serving(reader, timeout=0.3) as client:
        assert error_of(client.post("/rerank", json=RERANK))["type"] == "timeout_error"
        go.set()
        until(lambda: client.get("/health").json()["active_requests"] == 0)
        until(lambda: client.post("/rerank", json=RERANK).status_code == 200)  # on a busy machine it may be late again


def test_a_client_that_leaves_is_not_worked_for(slow_reader):
    reader, go = slow_reader
    with serving(reader) as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/rerank", json=RERANK)
        until(lambda: client.get("/health").json()["active_requests"] == 1)
        body = json.dumps(RERANK).encode()
        with socket.create_connection((client.base_url.host, client.base_url.port)) as leaver:
            head = b"POST /rerank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            leaver.sendall(head % len(body) + body)
            until(lambda: client.get("/health").json()["active_requests"] == 2)
        until(lambda: client.get("/health").json()["active_requests"] == 1)
        go.set()
        assert first.result().status_code == 200


def test_an_error_of_ours_is_logged_and_not_shown(tiny_reader, monkeypatch, caplog):
    def fails(*arguments, **options):
        raise RuntimeError("secret details")

    with serving(tiny_reader) as client:
        monkeypatch.setattr(ReaderBase, "_score", fails)
        error = error_of(client.post("/rerank", json=RERANK))
        assert error["code"] == 500 and "secret" not in error["message"]
        assert "secret details" in caplog.text
        monkeypatch.undo()
        assert client.post("/rerank", json=RERANK).status_code == 200


@pytest.mark.parametrize(
    "settings", [{"keys": ["a"]}, {"keys": ("",)}, {"timeout": 0}, {"max_requests": 0}, {"max_body_bytes": 0}]
)
def test_settings(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        ServerSettings(**settings)


def test_the_command_listens_beyond_this_machine_only_with_a_key():
    found = CliRunner().invoke(command, ["serve", "--host", "0.0.0.0"])
    assert isinstance(found.exception, InputError) and "--host" in str(found.exception)
    assert "--api-key" in CliRunner().invoke(command, ["serve", "--help"]).output


@pytest.mark.skipif(sys.platform == "win32", reason="SIGTERM")
def test_sigterm_answers_what_runs_and_ends(model):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = Forked(("serve", "--model", model, "--port", port))
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client, ThreadPoolExecutor(1) as pool:
            end = time.monotonic() + 60
            while True:
                try:
                    assert client.get("/health").status_code == 200
                    break
                except httpx.TransportError:
                    assert time.monotonic() < end and not process.ended(), process.stderr
                    time.sleep(0.1)
            body = {"prompt": "The Nile", "max_tokens": 400, "temperature": 0}
            running = pool.submit(client.post, "/v1/completions", json=body)
            time.sleep(0.1)
            process.kill(signal.SIGTERM)
            assert running.result().json()["usage"]["completion_tokens"] > 0
    except BaseException:
        process.kill(signal.SIGKILL)
        raise
    finally:
        ended = process.wait()
    assert ended == 0
