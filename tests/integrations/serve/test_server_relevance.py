"""A server over a reranker: its own scores in /rerank and /score, together with other calls."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.rerankers import logit_score
from helpers.serve_support import serving

import fastreader as fr

QUERY = "Which river is long?"
DOCUMENTS = ["The Nile is a river.", "Bread is baked.", "A long river flows north."]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    _, folder = logit_score(tmp_path_factory.mktemp("reranker"), "Llama", prompts={"web": "Web query."})
    return fr.Reader.load(str(folder), dtype="float32", precision="exact", check="off")


def test_rerank_and_score_give_the_models_own_scores(reranker):
    want = fr.rerank(reranker, QUERY, DOCUMENTS)
    with serving(reranker) as client:
        body = {"query": QUERY, "documents": DOCUMENTS}
        results = client.post("/rerank", json=body).json()["results"]
        assert [row["index"] for row in results] == want.indices
        assert [row["relevance_score"] for row in results] == pytest.approx([r.relevance for r in want], abs=1e-6)
        scores = client.post("/score", json={"text_1": QUERY, "text_2": DOCUMENTS}).json()["data"]
        assert {row["index"]: row["score"] for row in scores} == pytest.approx(
            {r.index: r.relevance for r in want}, abs=1e-6
        )
        raw = client.post("/rerank", json={"query": QUERY, "texts": DOCUMENTS, "raw_scores": True}).json()
        assert [row["score"] for row in raw] == pytest.approx([r.value for r in want], abs=1e-5)
        web = client.post("/rerank", json={**body, "instruction": "web"}).json()["results"]
        named = fr.rerank(reranker, QUERY, DOCUMENTS, instruction="web")
        assert [row["relevance_score"] for row in web] == pytest.approx([r.relevance for r in named], abs=1e-6)
        pairs = {"text_1": QUERY, "text_2": DOCUMENTS, "instruction": "web"}
        scores = client.post("/score", json=pairs).json()["data"]
        assert {row["index"]: row["score"] for row in scores} == pytest.approx(
            {r.index: r.relevance for r in named}, abs=1e-6
        )


def test_calls_at_the_same_time_do_not_mix(reranker):
    queries = [f"{QUERY} {i}" for i in range(8)]
    want = {query: fr.rerank(reranker, query, DOCUMENTS) for query in queries}

    def asked(number):
        query = queries[number % len(queries)]
        if number % 3 == 2:
            body = {"prompt": query, "max_tokens": 0, "echo": True, "logprobs": 2}
            return client.post("/v1/completions", json=body).status_code == 200
        rows = client.post("/rerank", json={"query": query, "documents": DOCUMENTS}).json()["results"]
        found = [row["relevance_score"] for row in rows]
        return found == pytest.approx([result.relevance for result in want[query]], abs=1e-6)

    with serving(reranker, pack_seconds=0.02) as client, ThreadPoolExecutor(8) as pool:
        assert all(pool.map(asked, range(24)))


def test_a_reader_that_is_no_reranker_refuses_relevance(tiny_reader):
    with serving(tiny_reader) as client:
        body = {"query": QUERY, "documents": DOCUMENTS, "method": "yes_no", "instruction": "Find it."}
        rows = client.post("/rerank", json=body).json()["results"]
        want = fr.rerank(tiny_reader, QUERY, DOCUMENTS, method="yes_no", instruction="Find it.")
        assert [row["relevance_score"] for row in rows] == pytest.approx([r.relevance for r in want], abs=1e-6)
        body = {"query": QUERY, "documents": DOCUMENTS, "method": "relevance"}
        answer = client.post("/rerank", json=body)
        assert answer.status_code == 422 and "yes_no" in answer.text
        answer = client.post("/rerank", json={"query": QUERY, "documents": DOCUMENTS, "instruction": "Find it."})
        assert answer.status_code == 422 and "instruction" in answer.text
        answer = client.post("/score", json={"text_1": QUERY, "text_2": DOCUMENTS, "instruction": "Find it."})
        assert answer.status_code == 422 and "instruction" in answer.text
