"""The server pools the scores of requests for a reader without a calibration, says so, and uses the settled bias."""

from dataclasses import replace

import pytest
from helpers.serve_support import serving
from lib.simulate import bias_shape, simulate

import fastreader as fr
from fastreader.integrations.serve.settings import ServerSettings
from fastreader.moi.calibration.pool import Pool
from fastreader.moi.solve.debias import debias
from fastreader.permutations import latin

TEXTS = ["The Nile is a river.", "Bread is baked.", "A long river flows.", "The sun is hot."]


def ask(client, question, path="/rerank"):
    if path == "/rerank":
        return client.post(path, json={"query": question, "documents": TEXTS, "method": "moi"}).json()
    return client.post(path, json={"question": question, "passages": TEXTS, "candidates": ["yes"]}).json()


def settled_pool(reader, path):
    """Save a pool of simulated questions of this reader, which settle a bias. Return it."""
    pool = Pool()
    for o in simulate(bias_shape("last-dominant", 4), 80, lambda s: latin(4, 1, s)).observations:
        pool.add(replace(o, reader=reader.describe(), template=fr.Template().digest()))
    assert pool.bias(reader.describe(), fr.Template().digest(), 4) is not None
    pool.save(path)
    return pool


def test_requests_fill_the_pool_and_every_answer_says_how_far_it_is(tiny_reader):
    with serving(tiny_reader) as client:
        assert client.get("/health").json()["pool"] == [] and 'id="pool"' not in client.get("/").text
        found = ask(client, "Which river is long?")
        direct = fr.rerank(tiny_reader, "Which river is long?", TEXTS, method="moi", uncalibrated=True)
        assert [row["index"] for row in found["results"]] == direct.indices
        assert "1 question pooled, not enough to settle a bias yet" in found["note"]
        ask(client, "Which river is long?")  # the same question teaches nothing
        found = ask(client, "What is baked?", "/v1/read")
        assert "2 questions pooled, not enough to settle a bias yet" in found["notes"] and found["utilities"] is None
        (state,) = client.get("/health").json()["pool"]
        assert state["reader"] == tiny_reader.name and (state["passages"], state["questions"]) == (4, 2)
        assert not state["settled"]
        assert "4 passages: 2 questions pooled, not enough to settle a bias yet." in client.get("/").text


def test_orders_that_cannot_settle_a_bias_are_not_pooled(tiny_reader):
    with serving(tiny_reader) as client:
        body = {"question": "Which?", "passages": TEXTS, "candidates": ["yes"]}
        client.post("/v1/read", json={**body, "permutations": "identity"})
        client.post("/v1/read", json={**body, "passages": TEXTS[:2]})
        assert client.get("/health").json()["pool"] == []


def test_a_settled_pool_is_used_and_named(tiny_reader, tmp_path):
    path = tmp_path / "pool.json"
    pool = settled_pool(tiny_reader, path)
    bias = pool.bias(tiny_reader.describe(), fr.Template().digest(), 4)
    with serving(tiny_reader, pool_file=str(path)) as client:
        found = ask(client, "Which river is long?", "/v1/read")
        scores = fr.score_permutations(tiny_reader, "Which river is long?", TEXTS, ["yes"], query_likelihood=True)
        assert found["utilities"] == pytest.approx(debias(scores, bias).utility.tolist(), abs=1e-3)
        assert any("questions of this pool settle the bias" in note for note in found["notes"])
        assert "questions of this pool settle the bias" in ask(client, "Which river is long?")["note"]
        assert client.get("/health").json()["pool"][0]["settled"]


def test_a_pool_outlives_the_server_in_its_file(tiny_reader, tmp_path):
    path = tmp_path / "pool.json"
    with serving(tiny_reader, pool_file=str(path)) as client:
        ask(client, "Which river is long?")
    assert "river" not in path.read_text()
    with serving(tiny_reader, pool_file=str(path)) as client:
        assert client.get("/health").json()["pool"][0]["questions"] == 1
        assert "2 questions pooled" in ask(client, "What is baked?")["note"]
    path.write_text("[]")
    with pytest.raises(fr.errors.InputError, match=r"pool\.json"), serving(tiny_reader, pool_file=str(path)):
        pass


def test_a_server_without_a_pool_answers_as_before(tiny_reader):
    with serving(tiny_reader, pool=False) as client:
        assert "needs a calibration" in ask(client, "Which river is long?")["error"]["message"]
        assert client.get("/health").json()["pool"] == []
    with pytest.raises(fr.errors.InputError, match="pool_file: expected None without a pool"):
        ServerSettings(pool=False, pool_file="pool.json")
