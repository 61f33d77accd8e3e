from types import SimpleNamespace

import numpy as np
import pytest
from eor_cases import WIKI, passage_file

from fastreader.data import Passage, load_passages, load_questions
from fastreader.eor import BM25, Dense, Retrievers, as_source
from fastreader.errors import InputError


def retrieved(source, question="x"):
    """Return the passages that a retriever over `source` finds."""
    (retrieval,) = Retrievers(["S"], {"S": source}, on_error="raise").retrieve([question])
    return retrieval.documents[0].passages


def test_bm25_ranks_by_common_words_and_drops_the_rest(tmp_path):
    index = BM25(passage_file(tmp_path / "wiki.jsonl", WIKI))
    found = index("the capital of Egypt")
    assert {p.id for p in found} == {"k1", "k3", "k4"}
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    assert index("zebra") == [] and index("") == []


def test_bm25_equals_its_formula():
    """Lucene's BM25 (k1 = 1.5, b = 0.75) by hand: idf log(1 + (N - n + 0.5) / (n + 0.5))."""
    passages = [Passage("apple apple pear"), Passage("apple plum plum plum plum"), Passage("cherry")]
    (first, second) = BM25(passages, language="")("apple")
    idf = np.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    mean = (3 + 5 + 1) / 3
    for found, count, length in ((first, 2, 3), (second, 1, 5)):
        assert found.score == pytest.approx(idf * count / (count + 1.5 * (0.25 + 0.75 * length / mean)), rel=1e-5)


def test_bm25_keeps_ties_in_order_up_to_depth():
    passages = [Passage("same text", id=str(i)) for i in range(5)]
    assert [p.id for p in BM25(passages, depth=3)("same text")] == ["0", "1", "2"]


@pytest.mark.parametrize(("passages", "depth"), [([], 5), ([Passage("a")], 0)])
def test_index_without_passages_or_depth_raises(passages, depth):
    with pytest.raises(InputError):
        BM25(passages, depth=depth)


def letters(texts):
    vectors = np.array([[text.lower().count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for text in texts], float)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_dense_ranks_by_cosine():
    index = Dense(letters, [Passage("bbb"), Passage("aab"), Passage("aaa")], depth=2)
    assert [p.text for p in index("aa")] == ["aaa", "aab"]
    assert index("aa")[0].score == pytest.approx(1)


def test_dense_rejects_vectors_of_other_passages():
    with pytest.raises(InputError, match=r"\[2, d\]"):
        Dense(letters, [Passage("a"), Passage("b")], vectors=letters(["a"]))


def test_a_langchain_retriever():
    class Retriever:
        def invoke(self, question):
            return [SimpleNamespace(page_content=f"about {question}", metadata={"title": "T", "page": 3}, id="d1")]

    (found,) = retrieved(Retriever())
    assert (found.text, found.title, found.id, found.metadata) == ("about x", "T", "d1", {"page": 3})


def test_a_haystack_retriever():
    class Retriever:
        def run(self, query):
            return {"documents": [SimpleNamespace(content=query, meta={"k": 1}, id="d", score=0.5)]}

    (found,) = retrieved(Retriever())
    assert (found.text, found.id, found.score, found.metadata) == ("x", "d", 0.5, {"k": 1})


def test_a_llamaindex_retriever():
    class Retriever:
        def retrieve(self, question):
            return [SimpleNamespace(text=question, metadata={"page": 2}, node_id="n1", score=0.25)]

    (found,) = retrieved(Retriever())
    assert (found.text, found.id, found.score, found.metadata) == ("x", "n1", 0.25, {"page": 2})


def test_callables_take_precedence():
    class Retriever:
        def __call__(self, question):
            return [question]

        def run(self):
            raise AssertionError("another thing altogether")

    assert as_source(Retriever())("x") == ["x"]


def test_haystack_component_without_documents_raises():
    with pytest.raises(InputError, match="documents"):
        as_source(SimpleNamespace(run=lambda query: {"embedding": []}))("x")


def test_texts_mappings_and_passages():
    row = {"contents": "c", "title": "t", "id": 5, "score": 1}
    assert retrieved(lambda question: ["a text", row, Passage("p")]) == [
        Passage("a text"),
        Passage("c", "t", "5", 1.0),
        Passage("p"),
    ]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"_id": "d1", "text": "t"}, Passage("t", id="d1")),
        ({"docid": "d2", "segment": "t"}, Passage("t", id="d2")),
        ({"doc_id": 3, "body": "t"}, Passage("t", id="3")),
        ({"node_id": "n", "text": None, "passage": "t"}, Passage("t", id="n")),
        ({"text": "t", "url": "u", "meta": {"page": 1}}, Passage("t", metadata={"url": "u", "page": 1})),
        ({"contents": "Title\nbody"}, Passage("body", "Title")),
        ({"text": "t", "score": np.float32(0.5)}, Passage("t", score=0.5)),
        (SimpleNamespace(contents="t", docid="d3", title="T", score=2), Passage("t", "T", "d3", 2.0)),
    ],
)
def test_no_field_of_a_document_is_dropped(found, expected):
    assert retrieved(lambda question: [found]) == [expected]


def test_a_llamaindex_node_with_a_score():
    node = SimpleNamespace(get_content=lambda: "t", node_id="n1", metadata={"title": "T", "page": 2})
    (found,) = retrieved(lambda question: [SimpleNamespace(node=node, score=0.25)])
    assert found == Passage("t", "T", "n1", 0.25, metadata={"page": 2})


def test_a_source_may_return_none():
    source = {"S": lambda question: None}
    (retrieval,) = Retrievers(["S"], source).retrieve(["x"])
    assert retrieval.documents[0].failure == "S returned nothing"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (["  "], r"source\[0\]: text"),
        (["a", {"url": "x"}], r"source\[1\]: expected a text, a Passage, .*got a mapping with url"),
        ([5], r"source\[0\]: expected .*got 5"),
        ([{"text": ""}], r"source\[0\]: text"),
        ([{"text": "t", "score": "high"}], r"source\[0\]: score: expected a number or None, got 'high'"),
        ([{"text": "t", "score": np.ones(2)}], r"source\[0\]: score: expected a number or None, got float64 \[2\]"),
        ([{"text": "t", "title": 5}], r"source\[0\]: Passage.title: expected text, got 5"),
        ("one text", "source: expected a list of passages, got 'one text'"),
        ({"text": "t"}, "source: expected a list of passages"),
        (Passage("p"), "source: expected a list of passages"),
    ],
)
def test_invalid_passages_raise(found, message):
    with pytest.raises(InputError, match=message):
        retrieved(lambda question: found)


def test_invalid_sources_raise():
    with pytest.raises(InputError, match="int"):
        as_source(5)


def test_passage_files_of_several_kinds(tmp_path):
    file = tmp_path / "pool.jsonl"
    file.write_text(
        '{"_id": "a", "title": "T", "text": "beir"}\n\n{"id": 2, "contents": "Title\\nflash"}\n'
        '{"docid": "c", "title": "only a title", "text": ""}\n'
    )
    assert [(p.id, p.title, p.text) for p in load_passages(file)] == [
        ("a", "T", "beir"),
        ("2", "Title", "flash"),
        ("c", "", "only a title"),
    ]


@pytest.mark.parametrize(("line", "expected"), [('{"id": 1}', "line 1"), ("{", "line 1"), ("", "at least one")])
def test_invalid_passage_files_raise(tmp_path, line, expected):
    file = tmp_path / "pool.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(InputError, match=expected):
        load_passages(file)


def test_question_files(tmp_path):
    file = tmp_path / "questions.jsonl"
    file.write_text('{"question": "a?", "golden_answers": ["b"], "id": 7}\n{"query": "c?", "ctxs": []}\n')
    first, second = load_questions(file)
    assert (first.question, first.answers, first.id, first.passages) == ("a?", ["b"], "7", [])
    assert second.answers == []
    file.write_text('{"answers": ["b"]}\n')
    with pytest.raises(InputError, match="line 1"):
        load_questions(file)
