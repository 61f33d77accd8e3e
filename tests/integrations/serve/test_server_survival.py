"""What a request may not do to the others: end the thread of the passes, hold it, or take the server's memory."""

import json
import re
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from helpers.serve_support import serving

import fastreader as fr
from fastreader.errors import FastreaderError
from fastreader.integrations.serve.packed_reader import PackedReader
from fastreader.integrations.serve.pass_queue import DeadlineError, Packer
from fastreader.integrations.serve.settings import ServerSettings
from fastreader.moi.calibration import pool as pooling
from fastreader.moi.calibration.pool import Pool
from fastreader.moi.quantities.observations import Observations
from fastreader.permutations import latin
from fastreader.reader.base import ReaderBase

HEAD = "POST /rerank HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
RERANK = {"query": "Which river?", "documents": ["The Nile.", "Bread."]}
ERRORS = (RuntimeError, MemoryError, KeyError, SystemExit, KeyboardInterrupt, RecursionError, StopIteration)


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def packer(tiny_reader):
    own = Packer(tiny_reader, ServerSettings(pack_seconds=0.002))
    yield own
    own.close()


def later(seconds=30):
    return time.monotonic() + seconds


def test_the_thread_survives_whatever_is_raised_in_it(packer, tiny_reader, monkeypatch):
    score, steps, budget = tiny_reader.score, tiny_reader.generate_steps, tiny_reader.budget
    generator = np.random.default_rng(0)
    raised = []

    def injecting(function, rate):
        def called(*arguments, **options):
            if threading.current_thread().name == "fastreader-passes" and generator.random() < rate:
                raised.append(ERRORS[len(raised) % len(ERRORS)]("injected"))
                raise raised[-1]
            return function(*arguments, **options)

        return called

    for name, function in (("score", score), ("generate_steps", steps), ("budget", budget)):
        monkeypatch.setattr(tiny_reader, name, injecting(function, 0.6))

    def ask(i):
        reader = PackedReader(packer, later())
        try:
            if i % 3:
                return reader.score([([5, 6, i % 90 + 5], [7])]).logprob[0]
            return reader.generate([[5, i % 90 + 5]], max_new_tokens=2)[0][0].token_ids
        except Exception as error:  # whatever it is, but not an end of this thread
            return error

    rounds = 0
    while len(raised) < 200:
        rounds += 1
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(ask, range(30)))
        assert rounds < 60
    assert packer._thread.is_alive()
    monkeypatch.undo()
    direct = tiny_reader.score([([5, 6, 7], [8])]).logprob
    assert PackedReader(packer, later()).score([([5, 6, 7], [8])]).logprob == pytest.approx(direct)
    assert packer.trouble(5.0) == ""


def test_empty_calls_at_once(packer):
    with ThreadPoolExecutor(4) as pool:
        empty = [pool.submit(lambda: PackedReader(packer, later()).score([], trees=[])) for _ in range(2)]
        none = pool.submit(lambda: PackedReader(packer, later()).generate([]))
        one = pool.submit(lambda: PackedReader(packer, later()).score([([5], [6])]))
        assert [len(future.result().logprob) for future in empty] == [0, 0] and none.result() == []
        assert len(one.result().logprob) == 1


def test_health_tells_the_truth(tiny_reader, monkeypatch):
    go, score = threading.Event(), ReaderBase._score
    fr.rerank(tiny_reader, RERANK["query"], RERANK["documents"])  # the first call imports what it needs
    with serving(tiny_reader, timeout=1.0) as client, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(ReaderBase, "_score", lambda *a: go.wait(20) and score(*a))
        late = pool.submit(client.post, "/rerank", json=RERANK)
        until(lambda: client.get("/health").status_code == 503)
        assert "one pass has been running" in client.get("/health").json()["status"]
        go.set()
        late.result()
        until(lambda: client.get("/health").status_code == 200)

        def broken(*arguments, **options):
            raise RuntimeError("CUDA error: out of memory")

        monkeypatch.setattr(ReaderBase, "_score", broken)
        for _ in range(8):
            assert client.post("/rerank", json=RERANK).status_code == 500
        assert "passes failed" in client.get("/health").json()["status"]
        monkeypatch.setattr(ReaderBase, "_score", score)
        until(lambda: client.post("/rerank", json=RERANK).status_code == 200)
        assert client.get("/health").json()["status"] == "ok"


def test_a_call_that_is_left_ends_within_a_pass(tiny_reader, monkeypatch):
    packer = Packer(tiny_reader, ServerSettings(pack_seconds=0, max_batch_tokens=30))
    passes, score, begun = [], tiny_reader.score, threading.Event()

    def counted(pairs, **options):
        passes.append(len(pairs))
        begun.set()
        time.sleep(0.01)
        return score(pairs, **options)

    monkeypatch.setattr(tiny_reader, "score", counted)
    pairs = [([5 + i % 80, 6 + i // 80, *range(7, 20)], [8]) for i in range(200)]
    leaver, other = PackedReader(packer, later()), PackedReader(packer, later())
    with ThreadPoolExecutor(2) as pool:
        left = pool.submit(leaver.score, pairs)
        assert begun.wait(20)
        before = len(passes)
        other.score([([5], [6])])  # has its turn between the passes of the first
        assert len(passes) - before <= 3
        leaver.cancel()
        before = len(passes)
        with pytest.raises(DeadlineError):
            left.result(20)
        other.score([([5], [6])])
        assert len(passes) - before <= 2
    packer.close()
    whole = Packer(tiny_reader, ServerSettings(pack_seconds=0, max_batch_tokens=30))
    found, direct = PackedReader(whole, later()).score(pairs[::-1], top_tokens=2), score(pairs[::-1], top_tokens=2)
    whole.close()
    np.testing.assert_allclose(found.logprob, direct.logprob, atol=1e-5)
    assert found.stats.total_tokens == direct.stats.total_tokens and found.passes > 10
    assert [top.tolist() for top in found.top_tokens] == [top.tolist() for top in direct.top_tokens]


def test_a_text_that_is_left_ends_within_a_step(packer, tiny_reader, monkeypatch):
    steps, taken = tiny_reader.generate_steps, []

    def counted(prompts, options):
        found = steps(prompts, options)
        while True:
            try:
                texts = next(found)
            except StopIteration as end:
                return end.value
            taken.append(len(prompts))
            yield texts

    monkeypatch.setattr(tiny_reader, "generate_steps", counted)
    leaver, other = PackedReader(packer, later()), PackedReader(packer, later())
    with ThreadPoolExecutor(1) as pool:
        left = pool.submit(leaver.generate, [[5, 6], [7, 8]], max_new_tokens=2000)
        until(lambda: len(taken) > 3)
        other.score([([5], [6])])  # between two steps
        assert not left.done()
        ((short,),) = other.generate([[9, 10]], max_new_tokens=3)  # next to it
        assert len(short.token_ids) == 3 and not left.done()
        leaver.cancel()
        with pytest.raises(DeadlineError):
            left.result(20)
        until(lambda: not packer._writing)
        assert len(taken) < 1000


def test_texts_in_groups_are_the_direct_ones(packer, tiny_reader):
    packer._most = 12
    prompts = [[5, 6, 7, 8], [9, 10, 11], [5, 6, 7, 8], [12] * 9, [9, 10, 11]]
    for options in ({}, {"n": 2, "temperature": 1.0, "seed": 4}):
        found = PackedReader(packer, later()).generate(prompts, max_new_tokens=5, **options)
        direct = tiny_reader.generate(prompts, max_new_tokens=5, **options)
        assert [[text.token_ids for text in texts] for texts in found] == [
            [text.token_ids for text in texts] for texts in direct
        ]


def test_one_text_that_fails_harms_no_other_it_was_packed_with(packer, tiny_reader, monkeypatch):
    steps = tiny_reader.generate_steps

    def failing(prompts, options):
        if any(99 in prompt for prompt in prompts):
            raise FastreaderError("this prompt fails")
        return steps(prompts, options)

    monkeypatch.setattr(tiny_reader, "generate_steps", failing)
    packer._pause = 0.2

    def ask(token):
        return PackedReader(packer, later()).generate([[5, token]], max_new_tokens=3)

    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(ask, token) for token in (6, 99, 8)]
        assert [len(futures[i].result()[0][0].token_ids) for i in (0, 2)] == [3, 3]
        with pytest.raises(FastreaderError, match="this prompt fails"):
            futures[1].result()


def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/rerank", {"query": "q", "documents": [0] * 400_000}, "documents"),
        ("/rerank", {"query": "q", "documents": ["a"] * 400_000}, "at most 10,000"),
        ("/v1/completions", {"prompt": [1, None] * 200_000}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 100_000}, "prompt"),
        ("/v1/completions", {"prompt": "a", "stop": [1] * 300_000}, "stop"),
        ("/v1/chat/completions", {"messages": [{}] * 50_000}, "messages"),
        ("/score", {"text_1": [0] * 300_000, "text_2": "a"}, "text_1"),
        ("/v1/read", {"question": "q", "passages": ["a"], "candidates": [0] * 300_000}, "candidates"),
        ("/rerank", {**RERANK, **{f"field{i}": 1 for i in range(50_000)}}, "field0"),
        (
            "/v1/read",
            {"question": "q", "passages": list("abcdefghij"), "permutations": "random:1000000"},
            "at most 100",
        ),
        ("/v1/read", {"question": "q", "passages": list("abcdefghij"), "permutations": "latin:90000"}, "at most 100"),
        ("/rerank", {"query": "q", "documents": ["a"] * 700, "method": "pairwise"}, "at most 100 to compare"),
        ("/v1/read", {"question": "q", "passages": ["ab " * 2_000_000]}, "passages.0.: text: expected at most"),
        ("/rerank", {"query": "q", "documents": ["x", "ab " * 2_000_000]}, "documents.1.: text: expected at most"),
        ("/rerank", {"query": "q", "documents": ["a" * 20_000] * 90, "method": "pairwise"}, "bytes to compare"),
        (
            "/v1/completions",
            {"prompt": ["word " * 390] * 10, "n": 128, "max_tokens": 1, "echo": True, "logprobs": 1},
            "echo|logprobs",
        ),
        ("/v1/completions", {"prompt": ["a"] * 100, "n": 100, "max_tokens": 1}, "n: expected at most 2,048 texts"),
        (
            "/v1/completions",
            {"prompt": "a", "n": 100, "max_tokens": 2000, "logprobs": 20},
            "logprobs: expected",
        ),
        ("/v1/completions", {"prompt": "ab" * 400_000, "max_tokens": 0, "echo": True, "n": 128}, "tokens long"),
    ],
)
def test_a_refusal_costs_little(client_of_many, path, body, message):
    client = client_of_many
    content = json.dumps(body).encode()
    before, began = memory(), time.monotonic()
    response = client.post(path, content=content, headers={"content-type": "application/json"})
    taken = time.monotonic() - began
    assert response.status_code in (400, 413, 422), response.text[:200]
    error = response.json()
    assert re.search(message, error["error"]["message"]), error
    assert error["detail"] == error["error"]["message"] and len(response.content) < 2000
    assert taken < 3 and memory() - before < 100, (taken, memory() - before)


@pytest.fixture(scope="module")
def client_of_many(tiny_reader):
    with serving(tiny_reader, max_body_bytes=8 << 20) as client:
        yield client


def test_prompts_of_clients_are_not_kept(client_of_many, tiny_reader):
    secret = "a very secret prompt"
    client_of_many.post("/v1/completions", json={"prompt": secret, "max_tokens": 1})
    client_of_many.post("/v1/completions", json={"prompt": secret * 1000, "max_tokens": 1})
    assert not any(secret in text for text in tiny_reader.encoder._trusted)


def test_unfinished_bodies_do_not_fill_the_memory(tiny_reader):
    with serving(tiny_reader, max_body_bytes=1 << 20, timeout=5.0) as client:
        where = client.base_url.host, client.base_url.port
        head = HEAD.encode() % 1_000_000
        held, refused = [], 0
        for _ in range(12):
            held.append(socket.create_connection(where))
            held[-1].sendall(head + b" " * 900_000)
        assert client.post("/rerank", json=RERANK).status_code == 200  # a small one always has room
        for one in held:
            one.sendall(b" " * 100_000)
            one.settimeout(20)
            refused += b" 429 " in one.recv(4096)
            one.close()
        assert 7 <= refused <= 9  # four times the largest body fit


def test_a_request_that_never_begins_is_closed(tiny_reader):
    with serving(tiny_reader, timeout=0.3) as client:
        where = client.base_url.host, client.base_url.port
        for start in (b"", b"POST /rerank HTTP/1.1\r\nHost: localhost\r\nX-A: "):
            with socket.create_connection(where) as one:
                one.sendall(start)
                one.settimeout(5)
                assert one.recv(100) == b""
        assert client.get("/health").status_code == 200


def test_a_client_that_reads_nothing_is_counted_and_closed(tiny_reader):
    with serving(tiny_reader, timeout=0.5, max_body_bytes=8 << 20) as client:
        where = client.base_url.host, client.base_url.port
        documents = ["a" * 200] * 3 + [" " * 32_000] * 110
        body = json.dumps({"query": "q", "documents": documents, "return_documents": True})
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(where)
        slow.sendall((HEAD % len(body) + body).encode())
        until(lambda: client.get("/health").json()["active_requests"] == 1)
        time.sleep(0.2)
        assert client.get("/health").json()["active_requests"] == 1  # its answer is not sent
        until(lambda: client.get("/health").json()["active_requests"] == 0)
        slow.close()


def test_the_pools_lock_is_not_held_while_a_bias_is_fitted(monkeypatch):
    fitting, go = threading.Event(), threading.Event()

    def look(observed):
        fitting.set()
        assert go.wait(20)
        return original(observed)

    original = pooling.look
    monkeypatch.setattr(pooling, "look", look)
    pool, generator = Pool(), np.random.default_rng(0)

    def add(seed):
        design = latin(4, 1, seed=seed)
        values = generator.normal(size=len(design)) - 30
        about = {"name": "m", "revision": "r"}
        pool.add(Observations(values, design.permutations, 4, qg=generator.normal(size=4), reader=about, template="t"))

    for seed in range(19):
        add(seed)
    thread = threading.Thread(target=add, args=(19,))
    thread.start()
    assert fitting.wait(20)
    began = time.monotonic()
    assert pool.states()[0]["questions"] == 20 and time.monotonic() - began < 1
    add(20)
    go.set()
    thread.join()
    assert pool.states()[0]["questions"] == 21 and "not enough" in pool.states()[0]["state"]


@pytest.mark.long
def test_sixteen_clients_of_which_a_third_leave(tiny_reader):
    """Every request of the others is answered, none of them behind all the work of those that left."""
    with serving(tiny_reader, max_batch_tokens=200, timeout=20.0) as client:
        url = str(client.base_url)
        small, large = RERANK, {"query": "q", "documents": [f"document {i} " * 4 for i in range(300)]}
        direct = client.post("/rerank", json=small).json()["results"]
        waits, stop = [], time.monotonic() + 3

        def use(number):
            with httpx.Client(base_url=url, timeout=30) as own:
                while time.monotonic() < stop:
                    if number % 3 == 0:
                        body = large if number % 2 else {"prompt": "The", "max_tokens": 1500, "temperature": 0}
                        path = "/rerank" if number % 2 else "/v1/completions"
                        with pytest.raises(httpx.TimeoutException):
                            own.post(path, json=body, timeout=0.15)
                        continue
                    began = time.monotonic()
                    response = own.post("/rerank", json=small)
                    waits.append(time.monotonic() - began)
                    assert [r["index"] for r in response.json()["results"]] == [r["index"] for r in direct]

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(use, range(16)))
        assert len(waits) > 10 and max(waits) < 20, (len(waits), max(waits))
        until(lambda: client.get("/health").json()["active_requests"] == 0)
