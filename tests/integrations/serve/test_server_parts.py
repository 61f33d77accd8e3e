"""What a request computes outside of passes is done in parts of bounded size, and ends when nobody waits for it."""

import threading
import time
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra serve")

import fastreader as fr
from fastreader.errors import OutOfBudgetError
from fastreader.integrations.serve import packed_reader
from fastreader.integrations.serve.answers import ServerPool, answer_read, answer_rerank, answer_score
from fastreader.integrations.serve.bodies import CompletionRequest, ReadRequest, RerankRequest, ScoreRequest
from fastreader.integrations.serve.completions import answer_completion
from fastreader.integrations.serve.packed_reader import PackedReader
from fastreader.integrations.serve.pass_queue import DeadlineError, Packer
from fastreader.integrations.serve.settings import ServerSettings
from fastreader.reader.local_model import LocalModel

TEXTS = [f"{i} " + "the river is in Cairo " * 9 for i in range(1200)]
SHORT = [f"the river {i}" for i in range(1200)]
PAIRS = {"text_1": TEXTS, "text_2": TEXTS}
POOLED = ServerPool(ServerSettings())


def ranks(body, reader):
    return answer_rerank(RerankRequest(**body), reader, POOLED)


def scores(body, reader):
    return answer_score(ScoreRequest(**body), reader)


def completes(body, reader):
    return answer_completion(CompletionRequest(max_tokens=0, echo=True, **body), reader)


def reads(body, reader):
    return answer_read(ReadRequest(**body), reader, POOLED)


REQUESTS = {
    "rerank": (ranks, {"query": "Which river?", "documents": TEXTS}),
    "rerank by yes or no": (ranks, {"query": "Which river?", "documents": TEXTS, "method": "yes_no"}),
    "rerank starts of documents": (ranks, {"query": "q", "documents": TEXTS, "max_tokens_per_doc": 20}),
    "rerank for a long query": (ranks, {"query": TEXTS[7], "documents": SHORT}),
    "rerank in pairs": (ranks, {"query": "q", "documents": TEXTS[:50], "method": "pairwise"}),
    "rerank characters of many tokens": (ranks, {"query": "q", "documents": ["\U0001f42b" * 200] * 500}),
    "score": (scores, {"text_1": "Which river?", "text_2": TEXTS}),
    "score pairs": (scores, PAIRS),
    "score one document": (scores, {"text_1": SHORT, "text_2": TEXTS[7]}),
    "texts": (completes, {"prompt": TEXTS}),
    "tokens": (completes, {"prompt": [[200] * 100] * 900, "logprobs": 0}),
    "read": (reads, {"question": "q", "passages": TEXTS[:8], "candidates": SHORT[:90], "permutations": "random:60"}),
}


class Work:
    """Record the sizes of what a request's thread encodes and plans at once, and cancel the request after a part."""

    def __init__(self, monkeypatch, reader):
        self.encoded, self.planned, self.cancel = [], [], lambda: None
        tokenizer, plan = reader.encoder._own, LocalModel.plan
        passes = "fastreader-passes"

        class Recording:
            def __call__(own, texts, **options):
                self.encoded.append(sum(len(text.encode()) for text in texts))
                self.cancel()
                return tokenizer(texts, **options)

            def __getattr__(own, name):
                return getattr(tokenizer, name)

        def planning(model, sequences, *rest, **options):
            if threading.current_thread().name != passes:
                self.planned.append(sum(len(context) + len(end) for context, end in sequences))
                self.cancel()
            return plan(model, sequences, *rest, **options)

        monkeypatch.setattr(reader.encoder, "_own", Recording())
        monkeypatch.setattr(LocalModel, "plan", planning)


@pytest.fixture
def work(monkeypatch, tiny_reader):
    return Work(monkeypatch, tiny_reader)


@pytest.fixture
def own(tiny_reader, work):
    packer = Packer(tiny_reader, ServerSettings(pack_seconds=0.0))
    ranks({"query": "q", "documents": ["a"]}, PackedReader(packer, time.monotonic() + 60))  # imports take time too
    work.encoded, work.planned = [], []
    yield PackedReader(packer, time.monotonic() + 0.6)
    packer.close()


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.long(keep=4)
def test_parts_are_bounded(own, work, name):
    answer, body = REQUESTS[name]
    with suppress(DeadlineError, OutOfBudgetError):  # late, or refused: the parts before count
        answer(body, own)
    assert work.encoded or work.planned
    assert max(work.encoded, default=0) <= 200_000
    assert max(work.planned, default=0) <= packed_reader._AT_ONCE


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("part", [2, 9])
def test_a_request_that_is_left_ends_within_a_part(own, work, name, part):
    answer, body = REQUESTS[name]

    def cancel():
        if len(work.encoded) + len(work.planned) == part:
            own.cancel()

    work.cancel = cancel
    try:
        answer(body, own)
    except DeadlineError:
        pass
    else:
        assert len(work.encoded) + len(work.planned) < part  # it was done before
    assert len(work.encoded) + len(work.planned) <= part + 1


def test_parts_give_what_one_call_gives(tiny_reader, own, monkeypatch):
    own = PackedReader(own._packer, time.monotonic() + 60)
    documents = [*TEXTS[:40], "", *TEXTS[40:60]]
    direct = fr.rerank(tiny_reader, "Which river?", documents)
    monkeypatch.setattr("fastreader.integrations.serve.answers._BATCH", 1500)
    found = ranks({"query": "Which river?", "documents": documents}, own)["results"]
    assert [row["index"] for row in found] == direct.indices
    expected = [result.relevance for result in direct]
    np.testing.assert_allclose([row["relevance_score"] for row in found], expected, atol=1e-6)
    assert found[-1]["note"]  # the empty one
    queries = [f"Which river {i % 3}?" for i in range(len(documents))]
    found = scores({"text_1": queries, "text_2": documents}, own)["data"]
    for query in set(queries):
        places = [i for i, other in enumerate(queries) if other == query]
        of = {r.index: r.relevance for r in fr.rerank(tiny_reader, query, [documents[i] for i in places])}
        np.testing.assert_allclose([found[i]["score"] for i in places], [of[j] for j in range(len(places))], atol=1e-6)


def test_plans_in_parts_score_the_same(tiny_reader, own, monkeypatch):
    pairs = [([5] * (i % 7 + 1), [6, 7, i + 10]) for i in range(60)]
    expected = tiny_reader.score(pairs).logprob
    monkeypatch.setattr(packed_reader, "_AT_ONCE", 50)
    assert len(own.plan(pairs)) > 5
    np.testing.assert_allclose(own.score(pairs).logprob, expected, atol=1e-5)


def test_a_call_of_too_many_tokens_is_refused_by_the_limit(own, monkeypatch):
    monkeypatch.setattr(packed_reader, "MOST_TOKENS", 300)
    with pytest.raises(OutOfBudgetError, match="more than 300 tokens"):
        own.score([([i] * 50, [1]) for i in range(5, 15)])
    with pytest.raises(OutOfBudgetError, match="more than 300 tokens"):
        own.encoder.pieces(["a" * 200, "b" * 200])
    with pytest.raises(OutOfBudgetError, match="more than 300 tokens"):
        own.generate([[5] * 50], n=7, temperature=1.0)


@pytest.mark.long
def test_ten_thousand_short_documents_are_ranked(tiny_reader):
    from helpers.serve_support import serving

    documents = [f"d{i}" for i in range(10_000)]
    with serving(tiny_reader) as client:
        ranked = client.post("/v1/rerank", json={"query": "q", "documents": documents}).json()["results"]
        assert sorted(row["index"] for row in ranked) == list(range(10_000))
        scored = client.post("/score", json={"text_1": "q", "text_2": documents[:3000]}).json()["data"]
    of = {row["index"]: row["relevance_score"] for row in ranked}
    np.testing.assert_allclose([row["score"] for row in scored], [of[i] for i in range(3000)], atol=1e-5)
