"""BEIR's files: a corpus, queries, a TREC run and judgements as one list of examples."""

import json

import pytest
from helpers.support import write_data as write

from fastreader.data import Example, Passage, load_beir, load_qrels, save_examples
from fastreader.errors import InputError

CORPUS = [
    {"_id": "d1", "title": "One", "text": "Ada wrote it.", "metadata": {"url": "u"}},
    {"_id": "d2", "title": "Only a title", "text": ""},
    {"_id": 3, "text": "Cy was away."},
    {"_id": "unused"},
]
QUERIES = [{"_id": "q1", "text": "who wrote it", "metadata": {}}, {"_id": "q2", "text": "who was away"}]
RUN = "q2 Q0 3 1 4.0 bm25\nq1 Q0 d1 2 3.5 bm25\nq1 Q0 d2 1 9.5 bm25\n\nq1 Q0 3 3 3.5 bm25\n"


@pytest.fixture
def beir(tmp_path):
    def make(corpus=CORPUS, queries=QUERIES, run=RUN, qrels=None):
        files = {
            "corpus.jsonl.gz": "\n".join(map(json.dumps, corpus)),
            "queries.jsonl": "\n".join(map(json.dumps, queries)),
        }
        paths = [write(tmp_path / name, text) for name, text in (files | {"run.trec": run}).items()]
        return paths, {} if qrels is None else {"qrels": write(tmp_path / "qrels.tsv", qrels)}

    return make


def test_beir(beir):
    paths, _ = beir()
    second, first = load_beir(*paths)
    assert second == Example("who was away", [Passage("Cy was away.", "", "3", 4.0)], id="q2")
    assert first.metadata == {"metadata": {}}
    assert first.passages == [
        Passage("Only a title", "", "d2", 9.5),
        Passage("Ada wrote it.", "One", "d1", 3.5, metadata={"metadata": {"url": "u"}}),
        Passage("Cy was away.", "", "3", 3.5),
    ]
    assert [len(e.passages) for e in load_beir(*paths, top_k=2)] == [1, 2]
    assert [e.id for e in load_beir(*paths, limit=1)] == ["q2"]


@pytest.mark.parametrize(
    "qrels", ["query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t0\n", "q1 0 d1 2\nq1 0 d2 0\n"], ids=["beir", "trec"]
)
def test_beir_qrels(beir, qrels):
    paths, named = beir(qrels=qrels)
    gold = {(e.id, p.id): p.is_gold for e in load_beir(*paths, **named) for p in e.passages}
    assert gold == {("q2", "3"): False, ("q1", "d1"): True, ("q1", "d2"): False, ("q1", "3"): False}


def test_judgements_with_their_grades(beir):
    _, named = beir(qrels="q1 0 d1 2\nq1 0 d2 0\nq2 0 d9 1.0\n\nq1 0 d1 2\n")
    assert load_qrels(named["qrels"]) == {"q1": {"d1": 2, "d2": 0}, "q2": {"d9": 1}}


def test_trec_written_is_the_order_read(beir, tmp_path):
    paths, _ = beir()
    before = load_beir(*paths)
    save_examples(before, tmp_path / "again.trec", "trec")
    after = load_beir(*paths[:2], tmp_path / "again.trec")
    assert [[p.id for p in e.passages] for e in after] == [[p.id for p in e.passages] for e in before]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"run": "q1 Q0 d1 1 2.0\n"}, "run.trec, line 1: expected the 6 columns .*, got \\['q1', 'Q0'"),
        ({"run": "q1 Q0 d1 first 2.0 x\n"}, "line 1: expected an integer rank .* got 'first' and '2.0'"),
        ({"run": "q1 Q0 d1 1 nan x\n"}, "line 1: score: expected a finite number, got nan"),
        ({"run": RUN + "q1 Q0 d1 4 1.0 x\n"}, "line 6: expected each document of 'q1' once .*line 2., got 'd1'"),
        ({"run": "q1 Q0 d9 1 2.0 x\n"}, r"run.trec, line 1: expected a document of .*corpus.*, got 'd9'"),
        ({"run": "q9 Q0 d1 1 2.0 x\n"}, r"run.trec, line 1: expected a query of .*queries.*, got 'q9'"),
        ({"run": "\n"}, "run.trec: expected at least one line"),
        ({"corpus": [*CORPUS, {"title": "no id"}]}, "corpus.jsonl.gz, line 5: missing key '_id'"),
        ({"queries": [{"_id": "q1", "text": ""}]}, "queries.jsonl, line 1: text: expected text that is not empty"),
        ({"corpus": [*CORPUS, CORPUS[0]]}, "corpus.jsonl.gz, line 5: expected each _id once, got 'd1'"),
        ({"queries": [*QUERIES, QUERIES[0]]}, "queries.jsonl, line .: expected each _id once, got 'q1'"),
        ({"qrels": "q1 d1\n"}, "qrels.tsv, line 1: expected qid docid relevance"),
        ({"qrels": "q1 0 d1 high\n"}, "qrels.tsv, line 1: .* got 'q1 0 d1 high'"),
        ({"qrels": "q1 0 d1 inf\n"}, "qrels.tsv, line 1: .* got 'q1 0 d1 inf'"),
        ({"qrels": "q1 0 d1 0.5\n"}, "qrels.tsv, line 1: .* got 'q1 0 d1 0.5'"),
        ({"qrels": "q1 0 d1 1\nq1 0 d1 2\n"}, "line 2: expected grade 1 as before for document 'd1' of 'q1', got 2"),
    ],
)
def test_beir_errors(beir, change, expected):
    paths, named = beir(**change)
    with pytest.raises(InputError, match=expected):
        load_beir(*paths, **named)
    with pytest.raises(InputError, match="top_k: expected an integer of at least 1 or None, got 0"):
        load_beir(*paths, top_k=0)
