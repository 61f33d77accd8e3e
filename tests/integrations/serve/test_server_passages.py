"""A server that keeps what it reads of passages: the same answers, less to compute, and nothing between keys."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import monotonic, sleep

import numpy as np
import openai
import pytest
from helpers.serve_support import serving
from openai.types import CompletionUsage
from typer.testing import CliRunner

import fastreader as fr
from fastreader.cli.commands import app as command
from fastreader.core.tree import TreeStats
from fastreader.errors import InputError
from fastreader.integrations.serve.app import create_app
from fastreader.integrations.serve.packed_reader import PackedReader
from fastreader.integrations.serve.pass_queue import Packer
from fastreader.integrations.serve.passage_caches import PassageCaches
from fastreader.integrations.serve.settings import ServerSettings
from fastreader.models.machine.memory import free_bytes
from fastreader.reader.base import ReaderBase

QUESTIONS = ["Which river is long?", "What is baked?", "Who sleeps?"]
PASSAGES = ["The Nile is a river.", "Bread is baked.", "A long river flows.", "Cats sleep."]
READ = {"passages": PASSAGES, "candidates": ["the Nile", "bread"], "attribute": True}
REQUESTS = {
    "/rerank": lambda question: {"query": question, "documents": PASSAGES},
    "/score": lambda question: {"text_1": question, "text_2": PASSAGES},
    "/v1/read": lambda question: {"question": question, **READ},
}
# Requests that look no passage up.
OTHERS = {
    "/rerank": {"query": QUESTIONS[0], "documents": PASSAGES, "method": "yes_no"},
    "/v1/completions": {"prompt": "The Nile", "max_tokens": 2, "temperature": 0},
}


def counts(client, **headers):
    """Return the counts of `/metrics` about passages."""
    lines = client.get("/metrics", headers=headers).text.splitlines()
    names = ("hits_total", "misses_total", "evictions_total", "bytes", "max_bytes")
    return [
        next(float(li.split()[1]) for li in lines if li.startswith(f"fastreader_passage_cache_{n} ")) for n in names
    ]


def numbers(answer):
    """Return all numbers of an answer, in order, without its duration and what came from the cache."""
    if isinstance(answer, dict):
        others = ("seconds", "created", "cached_tokens")
        return [n for key in sorted(answer) if key not in others for n in numbers(answer[key])]
    if isinstance(answer, list):
        return [n for item in answer for n in numbers(item)]
    return [answer] if isinstance(answer, (int, float)) else []


@pytest.mark.parametrize("path", REQUESTS)
def test_answers_are_those_of_a_server_without(tiny_reader, path):
    """In the first request, which reads, and in requests with other questions, which do not."""
    computed = []
    with serving(tiny_reader, pool=False) as kept, serving(tiny_reader, pool=False, passage_cache_bytes=0) as plain:
        for question in QUESTIONS:
            found, wanted = (client.post(path, json=REQUESTS[path](question)) for client in (kept, plain))
            assert found.status_code == wanted.status_code == 200
            assert len(numbers(wanted.json())) >= 2 * len(PASSAGES)
            assert numbers(found.json()) == pytest.approx(numbers(wanted.json()), abs=1e-5)
            computed.append(counts(kept)[:2])
        assert counts(plain) == [0.0] * 5
        line = next(li for li in kept.get("/metrics").text.splitlines() if li.startswith("fastreader_computed_tokens"))
        other = next(
            li for li in plain.get("/metrics").text.splitlines() if li.startswith("fastreader_computed_tokens")
        )
        assert float(line.split()[1]) < 0.8 * float(other.split()[1])
    # Each passage is read once, whatever the question.
    assert [misses for _, misses in computed] == [len(PASSAGES)] * 3
    assert computed[0][0] + len(PASSAGES) <= computed[1][0] <= computed[2][0] - len(PASSAGES)


def test_requests_of_other_kinds_look_nothing_up(tiny_reader):
    with serving(tiny_reader) as client:
        for path, body in OTHERS.items():
            assert client.post(path, json=body).status_code == 200
        assert counts(client)[:4] == [0.0] * 4


def test_a_key_finds_only_what_it_read_itself(tiny_reader):
    keys = [{"Authorization": f"Bearer {key}"} for key in ("first", "second")]
    body = REQUESTS["/rerank"]
    with serving(tiny_reader, keys=("first", "second"), passage_cache_bytes=1_000_001) as client:
        # A key's metrics do not tell what another one read, either.
        for i, (key, hits, misses) in enumerate([(0, 0, 4), (1, 0, 4), (0, 4, 4), (1, 4, 4), (1, 8, 4)]):
            answer = client.post("/rerank", json=body(QUESTIONS[i % 3]), headers=keys[key])
            direct = {r.index: r.relevance for r in fr.rerank(tiny_reader, QUESTIONS[i % 3], PASSAGES)}
            assert {r["index"]: r["relevance_score"] for r in answer.json()["results"]} == pytest.approx(
                direct, abs=1e-5
            )
            assert counts(client, **keys[key])[:2] == [hits, misses]
        assert client.post("/rerank", json=body(QUESTIONS[0]), headers={"Authorization": "Bearer x"}).status_code == 401
        assert counts(client, **keys[0])[4] == 500_000


def test_a_folder_outlives_the_server_apart_for_each_key(tiny_reader, tmp_path):
    body = REQUESTS["/rerank"]
    direct = {r.index: r.relevance for r in fr.rerank(tiny_reader, QUESTIONS[0], PASSAGES)}

    def asked(key, keys):
        with serving(tiny_reader, keys=keys, passage_folder=str(tmp_path / "kept")) as client:
            headers = {"Authorization": f"Bearer {key}"} if keys else {}
            answer = client.post("/rerank", json=body(QUESTIONS[0]), headers=headers).json()["results"]
            assert {r["index"]: r["relevance_score"] for r in answer} == pytest.approx(direct, abs=1e-5)
            return counts(client, **headers)[:2]

    assert asked("first", ("first", "second")) == [0, 4]
    assert asked("second", ("first", "second")) == [0, 4]
    assert asked("first", ("third", "first")) == [4, 0]
    assert asked("", ()) == [0, 4]
    assert asked("", ()) == [4, 0]
    assert not any("first" in str(path) for path in (tmp_path / "kept").rglob("*"))
    with pytest.raises(InputError, match="passage_folder: expected None where nothing is kept, got 'kept'"):
        PassageCaches(tiny_reader, ServerSettings(passage_cache_bytes=0, passage_folder="kept"))


def test_what_is_kept_may_be_rounded(tiny_reader, tmp_path):
    body = REQUESTS["/rerank"]
    direct = {r.index: r.relevance for r in fr.rerank(tiny_reader, QUESTIONS[0], PASSAGES)}
    for hits in ([0, 4], [4, 0]):
        with serving(tiny_reader, passage_folder=str(tmp_path / "kept"), passage_stored="int8") as client:
            found = client.post("/rerank", json=body(QUESTIONS[0])).json()["results"]
            assert {r["index"]: r["relevance_score"] for r in found} == pytest.approx(direct, abs=0.1)
            assert counts(client)[:2] == hits
    with pytest.raises(InputError, match=r"passage_stored: expected .*int8.*, got 'int4'"):
        ServerSettings(passage_stored="int4")
    with pytest.raises(InputError, match=r"passage_folder_bytes: expected .* got 1"):
        ServerSettings(keys=("a", "b"), passage_folder_bytes=1)


def test_memory_stays_below_the_limit(tiny_reader):
    token = tiny_reader.local_model.model.key_value_bytes
    with serving(tiny_reader, passage_cache_bytes=100 * token) as client:
        for i in range(12):
            body = {"query": QUESTIONS[0], "documents": [f"{i} {passage}" for passage in PASSAGES]}
            assert client.post("/rerank", json=body).status_code == 200
        hits, misses, evictions, held, most = counts(client)
    assert (hits, misses, most) == (0, 48, 100 * token)
    assert evictions > 20 and 0 < held <= most


def test_clients_at_the_same_time_with_room_for_few_passages(tiny_reader):
    """Of two keys, over passages that are found, read and evicted: every number is the direct one."""
    token = tiny_reader.local_model.model.key_value_bytes
    texts = [f"Passage {i} is about {word}s." for i, word in enumerate(("river", "cat", "loaf", "road") * 3)]
    direct = {
        question: {r.passage.text: r.relevance for r in fr.rerank(tiny_reader, question, texts)}
        for question in QUESTIONS
    }

    def use(number):
        draw, headers = np.random.default_rng(number), {"Authorization": f"Bearer {'ab'[number % 2]}"}
        for _ in range(6):
            question = QUESTIONS[draw.integers(3)]
            chosen = [texts[i] for i in draw.permutation(len(texts))[: draw.integers(1, 6)]]
            body = {"text_1": question, "text_2": chosen}
            data = client.post("/score", json=body, headers=headers).json()["data"]
            assert [row["score"] for row in data] == pytest.approx([direct[question][t] for t in chosen], abs=1e-5)

    with serving(tiny_reader, keys=("a", "b"), passage_cache_bytes=700 * token) as client:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(use, range(8)))
        hits, misses, evictions, held, most = counts(client, Authorization="Bearer a")
    assert min(hits, misses, evictions) > 0 and held <= most


@pytest.fixture
def held(tiny_reader, monkeypatch):
    """Wait in the first pass for `go`, and list the readers of all passes, with the number of their sequences."""
    packer = Packer(tiny_reader, ServerSettings(pack_seconds=0))
    go, begun, passes, score = threading.Event(), threading.Event(), [], ReaderBase._score

    def waits(reader, kept, sequences, *more):
        begun.set()
        assert go.wait(30)
        passes.append((reader, len(sequences)))
        return score(reader, kept, sequences, *more)

    monkeypatch.setattr(ReaderBase, "_score", waits)
    yield packer, go, begun, passes
    go.set()
    packer.close()


def test_calls_of_two_keys_never_share_a_pass(tiny_reader, held):
    """While calls that look nothing up join any, and have the numbers of a pass by themselves."""
    packer, go, begun, passes = held
    caches = PassageCaches(tiny_reader, ServerSettings(keys=("a", "b"), passage_cache_bytes=1 << 20))
    first, second = caches.readers
    end = monotonic() + 30
    pairs = [[([5, 6, 7, 8, i], [9, 10]), ([5, 11, 12, i], [13])] for i in range(20, 25)]
    ends = [(1, 4), (1, 3)]
    turns = [(first, ends, 0), (second, ends, 0), (first, ends, 0), (None, None, 2), (second, ends, 0)]
    with ThreadPoolExecutor(6) as pool:
        blocked = pool.submit(PackedReader(packer, end).score, [([20], [21])])
        assert begun.wait(20)
        futures = []
        for (cached, own, top), asked in zip(turns, pairs, strict=True):
            reader = PackedReader(packer, end, cached)
            how = {} if own is None else {"ends": own}
            futures.append(pool.submit(reader.score, asked, top_tokens=top, **how))
            while len(packer._waiting) < len(futures):
                assert monotonic() < end
                sleep(0.002)
        go.set()
        blocked.result()
        found = [future.result() for future in futures]
    assert [count for _, count in passes] == [1, 6, 4]
    assert [reader for reader, _ in passes[1:]] == [first, second]
    for asked, scores, (_, _, top) in zip(pairs, found, turns, strict=True):
        direct = tiny_reader.score(asked, top_tokens=top)
        np.testing.assert_allclose(scores.logprob, direct.logprob, atol=1e-5)
        assert scores.stats == direct.stats
        assert (scores.top_tokens is None) == (top == 0)
    assert [(r.passage_cache.info().hits, r.passage_cache.info().misses) for r in (first, second)] == [(0, 2), (0, 2)]


def test_what_is_rounded_changes_no_call_that_looks_nothing_up(tiny_reader, held):
    """So these share no pass with calls that do: their numbers would tell what another key had read."""
    packer, go, begun, passes = held
    settings = ServerSettings(keys=("a", "b"), passage_cache_bytes=1 << 20, passage_stored="int8")
    first, _ = PassageCaches(tiny_reader, settings).readers
    pair, ends = [([5, 6, 7, *range(20, 60)], [9, 10])], [(3, 40)]
    go.set()
    first.score(pair, ends=ends)
    go.clear(), begun.clear(), passes.clear()
    end = monotonic() + 30
    with ThreadPoolExecutor(4) as pool:
        blocked = pool.submit(PackedReader(packer, end).score, [([20], [21])])
        assert begun.wait(20)
        futures = []
        for cached, how in ((first, {"ends": ends}), (None, {}), (first, {"ends": ends})):
            futures.append(pool.submit(PackedReader(packer, end, cached).score, pair, **how))
            while len(packer._waiting) < len(futures):
                assert monotonic() < end
                sleep(0.002)
        go.set()
        blocked.result()
        looked_up, plain, _ = [future.result().logprob for future in futures]
    assert [count for _, count in passes] == [1, 2, 1]
    np.testing.assert_allclose(plain, tiny_reader.score(pair).logprob, atol=1e-6)
    assert abs(looked_up - plain).max() > 1e-6


def test_a_long_request_keeps_ends_by_its_passes(tiny_reader):
    packer = Packer(tiny_reader, ServerSettings(pack_seconds=0, max_batch_tokens=12))
    cached = tiny_reader.with_cache(fr.PassageCache())
    pairs = [([5, *[20 + i] * (4 + i % 2), 7], [8, 9 + i]) for i in range(9)][::-1]
    ends = [(1, len(context) - 1) for context, _ in pairs]
    alone = sum((tree.stats for tree in tiny_reader.plan(pairs, 12)), TreeStats(0, 0, 0, 0))
    for hits in (0, 9):
        before = packer.totals.computed_tokens
        found = PackedReader(packer, monotonic() + 30, cached).score(pairs, ends=ends)
        np.testing.assert_allclose(found.logprob, tiny_reader.score(pairs).logprob, atol=1e-5)
        assert (cached.passage_cache.info().hits, cached.passage_cache.info().misses) == (hits, 9)
        computed = packer.totals.computed_tokens - before
        assert found.stats == replace(alone, cached_tokens=found.stats.cached_tokens)
        # The header is known from the second pass on.
        assert (found.passes, found.stats.cached_tokens) == (9, 8) if not hits else computed <= 12 * found.passes < 60
    packer.close()


def test_known_passages_join_by_what_they_compute(tiny_reader, held):
    """Of six requests that compute 19 tokens each, four are known but for 2 tokens: a pass of 30 has room for five.

    Of the others the header is known, two tokens.
    """
    packer, go, begun, passes = held
    packer._most = 30
    cached = tiny_reader.with_cache(fr.PassageCache())
    pairs = [([5, 6, *[30 + i] * 15, 7], [8, 9]) for i in range(6)]
    ends = (2, 17)
    go.set()
    cached.score(pairs[:4], ends=[ends] * 4)
    for event in (go, begun):
        event.clear()
    passes.clear()
    end = monotonic() + 30
    with ThreadPoolExecutor(8) as pool:
        blocked = pool.submit(PackedReader(packer, end).score, [([20], [21])])
        assert begun.wait(20)
        futures = []
        for pair in pairs:
            futures.append(pool.submit(PackedReader(packer, end, cached).score, [pair], ends=[ends]))
            while len(packer._waiting) < len(futures):
                assert monotonic() < end
                sleep(0.002)
        go.set()
        blocked.result()
        found = [future.result() for future in futures]
    assert [count for _, count in passes] == [1, 5, 1]
    for pair, scores in zip(pairs, found, strict=True):
        np.testing.assert_allclose(scores.logprob, tiny_reader.score([pair]).logprob, atol=1e-5)
        assert scores.stats.cached_tokens == (17 if pair in pairs[:4] else 2)


def test_usage_counts_what_the_cache_had(tiny_reader):
    """As the direct call with a cache counts it, for OpenAI's client, and where Cohere's API has it."""
    cached, asked = tiny_reader.with_cache(fr.PassageCache()), QUESTIONS[:2]
    several = {"text_1": QUESTIONS[::2], "text_2": PASSAGES[:2]}
    with serving(tiny_reader) as client, openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="unused") as own:
        for question in asked:
            reply = own.post("/rerank", body=REQUESTS["/rerank"](question), cast_to=dict)
            stats = fr.rerank(cached, question, PASSAGES).stats
            usage = CompletionUsage.model_validate({"completion_tokens": 0, **reply["usage"]})
            assert usage.prompt_tokens_details.cached_tokens == reply["meta"]["cached_tokens"] == stats.cached_tokens
            assert usage.prompt_tokens == reply["meta"]["tokens"]["input_tokens"] == stats.total_tokens
            assert reply["usage"]["computed_tokens"] == stats.computed_tokens + stats.cached_tokens
        assert stats.cached_tokens > 0.5 * reply["usage"]["computed_tokens"]
        wanted = fr.rerank(cached, QUESTIONS[::2], [[PASSAGES[0]], [PASSAGES[1]]])
        found = client.post("/score", json=several).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert found == sum(ranking.stats.cached_tokens for ranking in wanted) > 0
        written = own.completions.create(model=tiny_reader.name, prompt="The Nile", max_tokens=2)
        assert written.usage.prompt_tokens_details.cached_tokens == 0


def test_a_reader_that_cannot_have_a_cache_serves_as_before(tiny_reader):
    with tiny_reader.session([5, 6]) as session:
        with serving(session) as client:
            found = client.post("/rerank", json=REQUESTS["/rerank"](QUESTIONS[0])).json()["results"]
            assert counts(client) == [0.0] * 5
        direct = fr.rerank(tiny_reader, QUESTIONS[0], PASSAGES)
        assert [row["relevance_score"] for row in found] == pytest.approx([r.relevance for r in direct], abs=1e-5)
        with pytest.raises(InputError, match="passage_folder: expected None for a Session"):
            PassageCaches(session, ServerSettings(passage_folder="kept"))
        with pytest.raises(InputError, match="passage_cache_bytes: expected None or 0 for a Session, got 5"):
            create_app(session, ServerSettings(passage_cache_bytes=5))


def test_a_tenth_of_free_memory_by_default_and_the_figure_is_logged(tiny_reader, tmp_path, caplog):
    caplog.set_level(logging.INFO, "fastreader")
    free = free_bytes(tiny_reader.local_model.model.device)
    most = PassageCaches(tiny_reader, ServerSettings()).info(0).max_bytes
    assert 0.05 * free < most < 0.2 * free  # other processes come and go
    assert f"keeps up to {most / 1e6:,.0f} MB of keys and values of passages" in caplog.text
    PassageCaches(tiny_reader, ServerSettings(keys=("a", "b"), passage_cache_bytes=64_000_000))
    assert "keeps up to 64 MB of keys and values of passages, 32 MB for each of 2 API keys" in caplog.text
    for stored, held in (("exact", 2), ("int8", 0)):
        kept = tiny_reader.with_cache(fr.PassageCache(folder=tmp_path / "kept"))
        kept.score([([5, 6, 7, 8, 9], [10])], ends=[(1, 4)])
        settings = ServerSettings(passage_folder=str(tmp_path / "kept"), passage_stored=stored)
        PassageCaches(tiny_reader, settings)
        assert f"{tmp_path / 'kept'}, which has {held} passages and headers of this reader" in caplog.text
    PassageCaches(tiny_reader, ServerSettings(passage_cache_bytes=0))
    assert "no keys and values of passages are kept" in caplog.text
    with pytest.raises(InputError, match="passage_cache_bytes: expected an integer of at least 0"):
        ServerSettings(passage_cache_bytes=-1)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [([], None), (["--passage-cache-mb", "1.5"], 1_500_000), (["--no-passage-cache"], 0)],
)
def test_options_of_the_command(tiny_reader, monkeypatch, options, wanted):
    seen = []
    monkeypatch.setattr("fastreader.cli.options.ReaderArguments.load", lambda self: tiny_reader)
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: None)
    monkeypatch.setattr("fastreader.integrations.serve.app.create_app", lambda _, settings: seen.append(settings))
    found = CliRunner().invoke(command, ["serve", *options])
    assert found.exit_code == 0, found.output
    assert seen[0].passage_cache_bytes == wanted


def test_a_limit_without_a_cache_is_refused():
    both = CliRunner().invoke(command, ["serve", "--no-passage-cache", "--passage-cache-mb", "1"])
    assert str(both.exception) == "--passage-cache-mb: expected no limit with --no-passage-cache, got 1.0"
