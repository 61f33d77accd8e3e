"""ServerReader over a small server of our own: the numbers of the reader behind it, and what can go wrong."""

import itertools

import pytest
from helpers.engine_server import Engine, running

import fastreader as fr
from fastreader import eor, noise, sure
from fastreader.errors import (
    ContextOverflowError,
    EngineError,
    InputError,
    NumericsError,
    UnsupportedImplementationError,
)
from fastreader.reader.remote import server_reader

pytest.importorskip("httpx", reason="needs the extra engines")
QUESTION, PASSAGES = "Which river is long?", ["The Nile is a river.", "Bread is baked.", "A long river flows."]
PAIRS = [("The Nile", " is long"), ("The Nile", " is"), ("Bread", " is baked"), ("The Nile", " is long")]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(server_reader.time, "sleep", lambda seconds: None)


@pytest.fixture(params=["openai", "vllm", "sglang"])
def kind(request):
    return request.param


@pytest.fixture
def engine(tiny_reader, kind):
    return Engine(tiny_reader, kind)


@pytest.fixture
def remote(engine, tiny_reader, quick):
    with running(engine) as url, fr.ServerReader(url, tokenizer=tiny_reader.tokenizer) as reader:
        yield reader


def test_it_is_found_out(remote, kind):
    assert (remote.engine, remote.name, remote.max_length) == (kind, "tiny", 2048)
    assert isinstance(remote, fr.ScoringReader) and kind in repr(remote)
    assert remote.describe()["name"] == "tiny"


def test_loglikelihoods_are_the_readers(remote, tiny_reader):
    ours, theirs = (r.loglikelihood(PAIRS, token_logprobs=True) for r in (remote, tiny_reader))
    for got, want in zip(ours, theirs, strict=True):
        assert got.token_logprobs == pytest.approx(want.token_logprobs, abs=1e-5)
        assert (got.num_tokens, got.is_greedy, got.truncated) == (want.num_tokens, want.is_greedy, want.truncated)


def test_greedy_continuations_are_known(remote, tiny_reader):
    tokens = tiny_reader.prompt(["The Nile"])
    (text,) = tiny_reader.generate([tokens], max_new_tokens=4)[0]
    found = remote.loglikelihood([(tokens, text.token_ids), (tokens, [text.token_ids[0] + 1])])
    assert [result.is_greedy for result in found] == [True, False]


def test_equal_requests_are_sent_once_and_neighbours_in_turn(remote, engine, kind):
    stats = remote.loglikelihood(PAIRS).stats
    sent = [body.get("prompt") or body["input_ids"] for _, body in engine.seen]
    assert len(sent) == 3 and stats.sequences == 4
    told = 3 if kind == "sglang" else 0  # it says what it found in its cache
    assert stats.computed_tokens == sum(map(len, sent)) - told < stats.total_tokens
    assert remote.score([([5], [])]).logprob.tolist() == [0.0]


def test_next_tokens_of_a_context_share_a_request_where_the_engine_allows(remote, engine, tiny_reader, kind):
    context = tiny_reader.prompt(["Is it long? "])
    (text,) = tiny_reader.generate([context], max_new_tokens=1)[0]
    labels = [*range(5, 150 if kind == "vllm" else 30), *text.token_ids]
    pairs = [(context, [label]) for label in labels] + [(context[:-1], [7]), (context, [5, 6])]
    ours, theirs = remote.loglikelihood(pairs), tiny_reader.loglikelihood(pairs)
    assert [o.logprob for o in ours] == pytest.approx([t.logprob for t in theirs], abs=1e-5)
    assert [o.is_greedy for o in ours] == [t.is_greedy for t in theirs] and any(o.is_greedy for o in ours)
    distinct = len({*labels}) + 2
    assert ours.passes == len(engine.seen) == (4 if kind == "vllm" else distinct)
    if kind == "vllm":
        assert ours.stats.computed_tokens == 4 * len(context) + 1


def test_methods_run_over_it(remote, tiny_reader):
    options = {"permutations": "cyclic", "query_likelihood": True}
    ours, theirs = (
        fr.score_permutations(r, QUESTION, PASSAGES, ["the Nile", "bread"], **options) for r in (remote, tiny_reader)
    )
    assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
    assert ours.question_logprobs == pytest.approx(theirs.question_logprobs, abs=1e-5)
    ours, theirs = (fr.rerank(r, QUESTION, PASSAGES) for r in (remote, tiny_reader))
    assert ours.indices == theirs.indices
    ours, theirs = (fr.moi.answer(r, QUESTION, PASSAGES, max_new_tokens=3) for r in (remote, tiny_reader))
    assert ours.text == theirs.text and ours.ranked.indices == theirs.ranked.indices
    ours, theirs = (sure.answer(r, QUESTION, PASSAGES, k=2, max_summary_tokens=8) for r in (remote, tiny_reader))
    assert ours.answer == theirs.answer and ours.candidates == theirs.candidates
    example = fr.Example(QUESTION, [fr.Passage(p, is_gold=i == 0) for i, p in enumerate(PASSAGES)], answers=["Nile"])
    asked = [
        noise.ask(r, [noise.gather(example)], ["gold", "closed_book"], max_new_tokens=3)[0].to_dict()["answers"]
        for r in (remote, tiny_reader)
    ]
    assert asked[0] == asked[1]
    documents = [fr.Passage(text) for text in PASSAGES]
    found = [
        eor.Retrievers(["S@RR@2", "PK"], {"S": lambda question: documents}, reader=r, max_new_tokens=4).retrieve(
            [QUESTION]
        )
        for r in (remote, tiny_reader)
    ]
    ours, theirs = (
        eor.answer(r, retrieved, max_new_tokens=3) for r, retrieved in zip((remote, tiny_reader), found, strict=True)
    )
    assert [a.texts for a in ours] == [a.texts for a in theirs] and len(ours[0].texts) == 2


def test_texts_are_the_readers(remote, tiny_reader, kind):
    prompts = [tiny_reader.prompt([text]) for text in ("The Nile", "Bread", "A long")]
    ours, theirs = (r.generate(prompts, max_new_tokens=6, token_logprobs=True) for r in (remote, tiny_reader))
    for (got,), (want,) in zip(ours, theirs, strict=True):
        assert (got.text, got.prompt_tokens) == (want.text, want.prompt_tokens)
        assert got.token_logprobs == pytest.approx(want.token_logprobs, abs=1e-5)
        if kind == "vllm":
            assert (got.token_ids, got.finish_reason) == (want.token_ids, want.finish_reason)
    assert len(remote.generate(prompts[:1], n=3, temperature=1.0, max_new_tokens=4)[0]) == 3
    assert remote.generate([], max_new_tokens=4) == []
    if kind == "openai":
        with pytest.raises(InputError, match="top_k: expected None"):
            remote.generate(prompts, top_k=3)


def test_long_inputs(engine, tiny_reader, kind):
    engine.max_length = 512
    with running(engine) as url, fr.ServerReader(url, tokenizer=tiny_reader.tokenizer) as remote:
        with pytest.raises(ContextOverflowError, match="600 tokens long"):
            remote.score([([5] * 600, [6])])
        assert remote.loglikelihood([([5] * 600, [6])], on_overflow="truncate")[0].truncated == 600 - 512
        with pytest.raises(ContextOverflowError, match=r"prompts\[0\]"):
            remote.generate([[5] * 512], max_new_tokens=2)
        (text,) = remote.generate([[5] * 600], max_new_tokens=2, on_overflow="truncate")[0]
        assert text.truncated == 90 and text.prompt_tokens == 510
        remote.generate([[5] * 510], max_new_tokens=50)
    assert [body["max_tokens"] for path, body in engine.seen[-2:]] == [2, 2]


def test_failures_are_tried_again(remote, engine):
    counts = itertools.count()
    answers = ["drop", (503, {"error": "busy"}), (429, {"error": "busy"}, [("Retry-After", "1")])]
    engine.faults = lambda path, body: answers[i] if (i := next(counts)) < len(answers) else None
    (found,) = remote.loglikelihood(PAIRS[:1])
    assert found.logprob < 0 and next(counts) == 4


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((503, {"error": {"message": "overloaded"}}), "503: overloaded"),
        ((400, {"error": {"message": "too long"}}), "400: too long"),
        ((500, b"<html>"), "500: <html>"),
        ((200, b"hello"), "answered without JSON: 'hello'"),
        ((200, []), "answered with list"),
        ((200, {}), "gave log-probabilities of 0 of 2 tokens"),
        ((200, {"choices": [{"text": "", "logprobs": None}]}), "gave log-probabilities of 0 of 2 tokens"),
        ("drop", "failed on"),
    ],
)
def test_failures_are_named(remote, engine, fault, message):
    engine.faults = lambda path, body: fault
    with pytest.raises(EngineError, match=message):
        remote.loglikelihood([([5, 6], [7, 8])])
    assert len(engine.seen) == (1 if isinstance(fault, tuple) and fault[0] in (200, 400) else 5)


@pytest.mark.parametrize("kind", ["openai"], indirect=True)
def test_numbers_that_are_not_finite(remote, engine):
    given = {"token_logprobs": [None, -1.0, float("-inf")], "top_logprobs": [None, {}, {}]}
    engine.faults = lambda path, body: (200, {"choices": [{"logprobs": given}]})
    with pytest.raises(NumericsError, match="sequence 0"):
        remote.loglikelihood([([5, 6], [7])])


@pytest.mark.parametrize("kind", ["openai"], indirect=True)
def test_keys_and_limits(engine, tiny_reader, quick, monkeypatch):
    engine.key = "secret"
    with running(engine) as url:
        reader = fr.ServerReader(url, "tiny", tiny_reader.tokenizer, concurrency=2)
        with pytest.raises(EngineError, match="401: no such key"):
            reader.loglikelihood(PAIRS)
        monkeypatch.setenv("FASTREADER_API_KEY", "secret")
        reader = fr.ServerReader(url, "tiny", tiny_reader.tokenizer, concurrency=2, max_length=40)
        assert reader.max_length == 40
        pairs = [([5, i], [7]) for i in range(2, 22)]
        engine.most_waiting = 0
        assert [r.logprob for r in reader.loglikelihood(pairs)] == pytest.approx(
            [r.logprob for r in tiny_reader.loglikelihood(pairs)], abs=1e-5
        )
        assert engine.most_waiting <= 2
        with pytest.raises(EngineError, match=r"expected 'other' at .*, which serves tiny"):
            fr.ServerReader(url, "other", tiny_reader.tokenizer)
    with pytest.raises(EngineError, match="ConnectError"):
        fr.ServerReader(url, "tiny", tiny_reader.tokenizer, retries=1)


def test_llamacpp_writes_and_does_not_score(tiny_reader, quick):
    with running(Engine(tiny_reader, "llamacpp")) as url:
        reader = fr.ServerReader(url, tokenizer=tiny_reader.tokenizer)
        assert reader.engine == "llamacpp"
        ours, theirs = (r.generate([[5, 6]], max_new_tokens=3)[0][0].text for r in (reader, tiny_reader))
        assert ours == theirs
        with pytest.raises(UnsupportedImplementationError, match=r"llama\.cpp's server gives no log-probabilities"):
            reader.loglikelihood(PAIRS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": ""}, "url: expected text"),
        ({"engine": "tgi"}, "engine: expected one of auto, openai, vllm"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout": 0}, "timeout"),
        ({"retries": -1}, "retries"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(InputError, match=message):
        fr.ServerReader(**{"url": "http://127.0.0.1:9", **options})
