"""What the server answers is what the direct call returns, for its own fields and through real clients."""

from dataclasses import replace

import pytest
from helpers.serve_support import serving

import fastreader as fr
from fastreader.core.protocol import Results
from fastreader.integrations.serve.packed_reader import PackedReader
from fastreader.scoring.reading import read

QUERY = "Which river is long?"
DOCUMENTS = ["The Nile is a river.", {"text": "Bread is baked.", "title": "Food"}, "", "A long river flows."]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank(client, tiny_reader, path):
    body = {"model": "tiny", "query": QUERY, "documents": DOCUMENTS, "top_n": 3, "return_documents": True}
    found = client.post(path, json={**body, "truncate": "END"}).json()
    direct = fr.rerank(tiny_reader, QUERY, DOCUMENTS, top_n=3)
    assert [row["index"] for row in found["results"]] == direct.indices
    scores = [row["relevance_score"] for row in found["results"]]
    assert scores == pytest.approx([result.relevance for result in direct], abs=1e-6)
    assert found["results"][0]["document"]["text"] == direct[0].passage.text
    assert found["usage"]["computed_tokens"] == direct.stats.computed_tokens < found["usage"]["total_tokens"]


@pytest.mark.parametrize("path", ["/rerank", "/v1/read"])
def test_hits_of_search_engines_are_documents(client, path):
    hits = [
        {"_id": "a", "_score": 1.5, "_source": {"text": DOCUMENTS[0], "year": 3}},
        {"id": 7, "payload": DOCUMENTS[1]},
    ]
    asked = {"/rerank": ("query", "documents"), "/v1/read": ("question", "passages")}[path]
    more = {"/rerank": {"return_documents": True}, "/v1/read": {"candidates": ["a", "b"]}}[path]
    found = client.post(path, json={asked[0]: QUERY, asked[1]: hits, **more}).json()
    rows = found.get("passages") or [row["document"] for row in sorted(found["results"], key=lambda row: row["index"])]
    assert rows == [
        {"text": DOCUMENTS[0], "id": "a", "metadata": {"year": 3}},
        {"text": "Bread is baked.", "title": "Food", "id": "7"},
    ]
    wrong = client.post(path, json={asked[0]: QUERY, asked[1]: [{"_index": "i", "_id": "a"}], **more})
    assert wrong.status_code == 422 and f"{asked[1]}[0]: _source: expected" in wrong.json()["detail"]


def test_rerank_by_a_baseline_and_of_nothing(client, tiny_reader):
    found = client.post("/rerank", json={"query": QUERY, "documents": DOCUMENTS, "method": "qg"}).json()
    assert [row["index"] for row in found["results"]] == fr.rerank(tiny_reader, QUERY, DOCUMENTS, method="qg").indices
    assert found["results"][-1] == {"index": 2, "relevance_score": 0.0, "value": None, "note": "no text, so not scored"}
    assert client.post("/rerank", json={"query": QUERY, "documents": []}).json()["results"] == []


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (QUERY, ["The Nile is a river.", "Bread is baked."]),
        ([QUERY, "What is baked?", QUERY], ["The Nile is a river.", "Bread is baked.", "A long river flows."]),
        ([QUERY, "What is baked?"], "Bread is baked."),
    ],
)
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents")])
def test_score(client, tiny_reader, left, right, names):
    found = client.post("/score", json=dict(zip(names, (left, right), strict=True))).json()["data"]
    count = max(len(side) for side in (left, right) if isinstance(side, list))
    pairs = [tuple(side if isinstance(side, str) else side[i] for side in (left, right)) for i in range(count)]
    assert [row["index"] for row in found] == list(range(count))
    direct = [fr.rerank(tiny_reader, query, [document])[0].relevance for query, document in pairs]
    assert [row["score"] for row in found] == pytest.approx(direct, abs=1e-6)


def test_read(client, tiny_reader):
    texts = list(DOCUMENTS[::3])
    body = {"question": QUERY, "passages": texts, "candidates": ["the Nile", "bread"], "permutations": "cyclic"}
    found = client.post("/v1/read", json=body).json()
    direct = fr.score_permutations(tiny_reader, QUERY, texts, ["the Nile", "bread"])
    assert found["orderings"] == direct.permutations.tolist() and found["answer"] == direct.best
    for row, want in zip(found["logprobs"], direct.logprobs.tolist(), strict=True):
        assert row == pytest.approx(want, abs=1e-4)
    assert found["consensus"] == pytest.approx(direct.consensus().tolist(), abs=1e-5)
    assert found["utilities"] is None and "no calibration" in found["notes"][0] and not found["proposed"]
    assert [row["index"] for row in found["results"]] == fr.rerank(tiny_reader, QUERY, texts).indices
    compared = fr.conflicts(tiny_reader, QUERY, texts, ["the Nile", "bread"])
    assert found["odd"] == compared.odd
    assert found["odd_scores"] == pytest.approx(compared.odd_scores.tolist(), abs=1e-3)
    alone = client.post("/v1/read", json={**body, "candidates": ["the Nile", "Nile"]}).json()
    assert alone["odd"] is None and alone["odd_scores"] is None


def test_read_knows_other_names_of_candidates(client, tiny_reader):
    texts, names, aliases = ["It is the Nile.", "It is Bahr al-Nil."], ["the Nile", "bread"], {"bread": ["Bahr al-Nil"]}
    body = {"question": QUERY, "passages": texts, "candidates": names}
    found, plain = (client.post("/v1/read", json=one).json() for one in ({**body, "aliases": aliases}, body))
    compared = fr.conflicts(tiny_reader, QUERY, texts, names, aliases=aliases)
    assert found["odd_scores"] == pytest.approx(compared.odd_scores.tolist(), abs=1e-3) != plain["odd_scores"]
    for wrong in ({"rice": ["x"]}, {"bread": []}, {"bread": ["the Nile"]}, {"bread": [" "]}, ["bread"]):
        refused = client.post("/v1/read", json={**body, "aliases": wrong})
        assert refused.status_code == 422 and refused.json()["error"]["message"].startswith("aliases"), wrong
    proposed = client.post("/v1/read", json={"question": QUERY, "passages": texts, "aliases": aliases})
    assert proposed.status_code == 422 and "candidates as keys" in proposed.text


@pytest.mark.parametrize("count", [3, 8])
def test_read_says_what_each_passage_contributes(client, tiny_reader, count):
    texts = [f"{text} {i}" for i, text in enumerate(["The Nile is a river.", "Bread is baked."] * 4)][:count]
    body = {"question": QUERY, "passages": texts, "candidates": ["the Nile", "bread"], "attribute": True}
    reply = client.post("/v1/read", json=body).json()
    found = reply["attribution"]
    direct = fr.attribute(tiny_reader, QUERY, texts, reply["answer"], orders=4, subsets=32)
    assert found["answer"] == reply["answer"] and found["exact"] == direct.exact == (count == 3)
    for name in ("alone", "left_out", "shapley", "surrogate", "shapley_error"):
        assert found[name] == pytest.approx(getattr(direct, name).tolist(), abs=1e-3), name
    plain = client.post("/v1/read", json={**body, "attribute": False}).json()
    assert plain["attribution"] is None
    assert reply["usage"]["total_tokens"] == plain["usage"]["total_tokens"] + direct.stats.total_tokens


@pytest.mark.parametrize(
    ("text", "count", "message"), [("a b", 21, "at most 20 passages"), ("a b " * 405, 20, "at most 3,000,000 bytes")]
)
def test_attribution_is_bounded(client, text, count, message):
    body = {"question": QUERY, "passages": [text] * count, "candidates": ["a"], "permutations": "random:2"}
    found = client.post("/v1/read", json={**body, "attribute": True})
    assert found.status_code == 422 and f"attribute: expected {message}" in found.text


def test_read_proposes_the_answers_written_under_each_order(client, tiny_reader):
    texts = ["The Nile is a river.", "Bread is baked.", "A long river flows."]
    found = client.post("/v1/read", json={"question": QUERY, "passages": texts, "max_tokens": 3}).json()
    orders = [[fr.Passage(texts[i]) for i in order] for order in found["orderings"]]
    written = [read(tiny_reader, fr.Example(QUERY, order), candidates=[], max_new_tokens=3) for order in orders]
    assert found["candidates"] == [text for text in dict.fromkeys(one.text for one in written) if text]
    assert found["proposed"] and len(found["probabilities"]) == 3


@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_read_without_an_answer_under_any_order_has_a_note(client, monkeypatch, text):
    generate = PackedReader.generate

    def silent(reader, prompts, **options):
        found = generate(reader, prompts, **options)
        return Results([[replace(one, text=text) for one in texts] for texts in found], found.stats)

    monkeypatch.setattr(PackedReader, "generate", silent)
    body = {"question": QUERY, "passages": ["The Nile.", "Bread."], "max_tokens": 2}
    found = client.post("/v1/read", json=body)
    assert found.status_code == 200 and found.json()["answer"] is None
    assert "the reader wrote no answer under any order" in found.json()["notes"]


@pytest.mark.parametrize("candidates", [["cats", "dogs"], ["\u6771\u4eac", "\u5927\u962a"], ["42", "a b c"]])
def test_read_of_candidates_that_no_passage_states(client, candidates):
    body = {"question": QUERY, "passages": ["The Nile.", "Bread is baked."], "candidates": candidates}
    found = client.post("/v1/read", json=body)
    assert found.status_code == 200 and found.json()["odd"] is None
    assert any("states" in note for note in found.json()["notes"])


def test_read_has_utilities_where_a_calibration_is_at_hand(packaged_reader):
    passages = [f"Number {i} is a number." for i in range(4)] + ["The Nile flows through Cairo."]
    with serving(packaged_reader) as client:
        found = client.post("/v1/read", json={"question": "Which river flows through Cairo?", "passages": passages})
        body = {"question": "Which river?", "passages": passages, "permutations": "identity", "candidates": ["Nile"]}
        single = client.post("/v1/read", json=body).json()
    assert single["utilities"] is None and "between orderings" in single["notes"][0]
    utilities = found.json()["utilities"]
    assert len(utilities) == 5 and sum(utilities) == pytest.approx(0, abs=1e-6)
    assert found.json()["results"][0]["index"] == 4


def test_texts(client, tiny_reader):
    prompts = ["The Nile", "Bread is"]
    body = {"prompt": prompts, "max_tokens": 5, "temperature": 0, "logprobs": 0}
    found = client.post("/v1/completions", json=body).json()
    direct = tiny_reader.generate(prompts, max_new_tokens=5, token_logprobs=True)
    for choice, (text,) in zip(found["choices"], direct, strict=True):
        assert choice["text"] == text.text
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(text.token_logprobs, abs=1e-5)
    assert found["usage"]["completion_tokens"] == sum(len(text.token_ids) for (text,) in direct)
    several = client.post("/v1/completions", json={"prompt": "The", "n": 3, "seed": 5, "max_tokens": 4}).json()
    (drawn,) = tiny_reader.generate(["The"], n=3, seed=5, temperature=1.0, max_new_tokens=4)
    assert [choice["text"] for choice in several["choices"]] == [text.text for text in drawn]


@pytest.mark.parametrize("new", [0, 1, 3])
def test_log_probabilities_of_prompts(client, tiny_reader, new):
    tokens = tiny_reader.prompt(["Which river?"])
    body = {"prompt": tokens, "echo": True, "logprobs": 1, "max_tokens": new, "temperature": 0}
    found = client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    direct = tiny_reader.score([(tokens[:1], tokens[1:])], top_tokens=1)
    assert found["token_logprobs"][0] is None and len(found["tokens"]) == len(tokens) + new
    assert found["token_logprobs"][1 : len(tokens)] == pytest.approx(direct.token_logprobs[0].tolist(), abs=1e-5)
    most = [max(top.values()) for top in found["top_logprobs"][1 : len(tokens)]]
    assert most == pytest.approx(direct.top_logprobs[0][:, 0].tolist(), abs=1e-5)
    if new:
        (text,) = tiny_reader.generate([tokens], max_new_tokens=1, token_logprobs=True)[0]
        assert found["token_logprobs"][len(tokens)] == pytest.approx(text.token_logprobs[0], abs=1e-5)


def test_a_token_that_ends_the_text_is_there(tiny_reader, client):
    """lm-eval cuts off the last token whatever it is."""
    end = sorted(tiny_reader.end_tokens)[0]
    tokens = next(
        tokens
        for tokens in ([i, j] for i in range(5, 260) for j in range(5, 260, 50))
        if tiny_reader.score([(tokens, [end])]).is_greedy[0]
    )
    body = {"prompt": tokens, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    choice = client.post("/v1/completions", json=body).json()["choices"][0]
    assert len(choice["logprobs"]["tokens"]) == 3 and choice["finish_reason"] == "stop"


def test_our_own_client_has_the_readers_numbers(client, tiny_reader):
    with fr.ServerReader(str(client.base_url), "tiny", tiny_reader.tokenizer) as remote:
        assert (remote.engine, remote.max_length) == ("openai", tiny_reader.max_length)
        pairs = [("The Nile", " is long"), ("The Nile", " is"), ("Bread", " is baked")]
        for got, want in zip(remote.loglikelihood(pairs), tiny_reader.loglikelihood(pairs), strict=True):
            assert got.logprob == pytest.approx(want.logprob, abs=1e-5) and got.is_greedy == want.is_greedy
        candidates = ["the Nile", "bread"]
        ours, theirs = (fr.score_permutations(r, QUERY, DOCUMENTS[::3], candidates) for r in (remote, tiny_reader))
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)


def test_lm_eval_reads_through_it(client, tiny_reader, tmp_path):
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    tiny_reader.tokenizer.save_pretrained(tmp_path)
    harness = LocalCompletionsAPI(
        base_url=f"{client.base_url}/v1/completions",
        model="tiny",
        tokenizer=str(tmp_path),
        tokenizer_backend="huggingface",
    )
    pairs = [("The Nile", " is long"), ("Bread", " is baked"), ("Bread", " i")]
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    found = harness.loglikelihood(requests)
    direct = tiny_reader.loglikelihood(pairs)
    assert [value for value, _ in found] == pytest.approx([one.logprob for one in direct], abs=1e-4)
    assert [greedy for _, greedy in found] == [one.is_greedy for one in direct]


def test_facts(client, tiny_reader):
    assert client.get("/health").json()["status"] == "ok"
    assert [row["id"] for row in client.get("/v1/models").json()["data"]] == [tiny_reader.name, "tiny"]
    described = client.get("/openapi.json").json()["paths"]
    assert {"/rerank", "/score", "/v1/completions", "/v1/read", "/health", "/metrics"} <= set(described)
    metrics = client.get("/metrics").text
    assert 'fastreader_requests_total{path="/health",status="200"}' in metrics
    assert "fastreader_computed_tokens_total" in metrics and "fastreader_longest_pass_seconds" in metrics
