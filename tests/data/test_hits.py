"""What search libraries return: pairs of a document and its score, and hits, read wherever documents are."""

import math
from collections import namedtuple
from decimal import Decimal

import numpy as np
import pytest
from pydantic import BaseModel

import fastreader as fr
from fastreader import moi, sure
from fastreader.data.documents import as_passages
from fastreader.errors import InputError
from fastreader.passages.arrange import Arranger

TEXTS = ["The Nile is in Cairo.", "Cats sleep."]


class ScoredPoint(BaseModel):
    """The fields of Qdrant's ScoredPoint."""

    id: int | str
    version: int = 0
    score: float
    payload: dict | None = None
    vector: list | None = None


class QueryResponse(BaseModel):
    points: list[ScoredPoint]


class ObjectApiResponse:
    """As elastic_transport's, which is no Mapping and yields its keys."""

    def __init__(self, body):
        self.body = body

    def __getitem__(self, key):
        return self.body[key]

    def __iter__(self):
        return iter(self.body)

    def __len__(self):
        return len(self.body)


class HitMeta:
    def __init__(self, values):
        self.__dict__.update(values)

    def to_dict(self):
        return dict(self.__dict__)


class DslHit:
    """As elasticsearch.dsl's Hit: the fields are attributes, what the search says of the hit is in `meta`."""

    def __init__(self, source, **about):
        self.__dict__.update(source, meta=HitMeta(about))
        self._source = source

    def to_dict(self):
        return dict(self._source)


Document = namedtuple("Document", "page_content metadata id")


def elasticsearch(source, **more):
    return {"_index": "i", "_id": "a", "_score": 1.5, "_source": source, **more}


def qdrant(payload, **more):
    return {"id": 7, "version": 3, "score": 0.5, "payload": payload, "vector": None, **more}


FORMS = {
    "pair": ([(TEXTS[0], 0.25), (TEXTS[1], np.float32(0.75))], [0.25, 0.75], [None, None]),
    "pair as a list, and a document with an id": (
        [[{"text": TEXTS[0], "id": 1, "score": 9}, 0.25], (Document(TEXTS[1], {}, "b"), 1)],
        [0.25, 1.0],
        ["1", "b"],
    ),
    "elasticsearch": (
        [elasticsearch({"text": TEXTS[0]}), elasticsearch({"content": TEXTS[1]}, _id=2, _score=2)],
        [1.5, 2.0],
        ["a", "2"],
    ),
    "elasticsearch.dsl": (
        [DslHit({"body": TEXTS[0]}, id="a", score=1.5), DslHit({"text": TEXTS[1], "id": "own"}, id="b", score=3)],
        [1.5, 3.0],
        ["a", "b"],
    ),
    "qdrant": (
        [qdrant({"page_content": TEXTS[0], "metadata": {}}), qdrant({"content": TEXTS[1], "id": "h"}, score=0.75)],
        [0.5, 0.75],
        ["7", "7"],
    ),
    "qdrant's client": (
        [ScoredPoint(id=i, score=i, payload={"text": text}) for i, text in enumerate(TEXTS)],
        [0.0, 1.0],
        ["0", "1"],
    ),
}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def test_a_form_has_text_score_and_id(form):
    documents, scores, ids = form
    found = as_passages(documents)
    assert [(p.text, p.score, p.id) for p in found] == list(zip(TEXTS, scores, ids, strict=True))
    assert as_passages(iter(documents)) == found


CALLS = {
    "rerank": lambda reader, documents: fr.rerank(reader, "q", documents),
    "rerank lists": lambda reader, documents: fr.rerank(reader, ["q"], [documents])[0],
    "yes_no": lambda reader, documents: fr.rerank(reader, "q", documents, method="yes_no"),
    "moi": lambda reader, documents: moi.rerank(reader, "q", documents, uncalibrated=True),
    "score_permutations": lambda reader, documents: fr.score_permutations(reader, "q", documents, ["a"]),
    "conflicts": lambda reader, documents: fr.conflicts(reader, "q", documents, ["a", "b"]),
    "sure": lambda reader, documents: [sure.answer(reader, "q", documents, max_candidate_tokens=4).candidates],
    "fuse": lambda reader, documents: fr.fuse([documents, documents]),
}


def numbers(result):
    """Return what a result says, without its cost."""
    if isinstance(result, list):
        return result
    if hasattr(result, "logprobs"):
        return np.asarray(result.logprobs).tolist()
    if hasattr(result, "indices"):
        return [(r.index, r.value) for r in result]
    return str(result)


@pytest.mark.parametrize("call", sorted({*CALLS} - {"moi", "fuse"}))
@pytest.mark.long(keep=9)
def test_every_function_reads_them_as_the_passages_that_they_are(tiny_reader, form, call):
    documents, _, _ = form
    assert numbers(CALLS[call](tiny_reader, documents)) == numbers(CALLS[call](tiny_reader, as_passages(documents)))


def test_arranged_documents_stay_what_they_were(form):
    documents, scores, _ = form
    placed = fr.arrange(documents, Arranger({2: [0.5, -0.5]}))
    best = int(np.argmax(scores))
    assert placed[0] is documents[best] and placed[1] is documents[1 - best]


def test_nothing_of_a_document_is_lost():
    [first, second, third] = as_passages(
        [
            elasticsearch({"text": "t", "body": "b", "id": 5, "score": 4, "meta": {"k": 1}}, sort=[3], _score=None),
            qdrant({"text": "t", "doc_id": "d", "title": "T", "version": "own"}, shard_key="s"),
            {"text": "t", "content": "c", "id": 1, "_id": 2, "score": 3},
        ]
    )
    assert (first.id, first.score) == ("a", None)
    assert first.metadata == {"_index": "i", "sort": [3], "body": "b", "_source": {"id": 5, "score": 4}, "k": 1}
    assert (second.id, second.score, second.title) == ("7", 0.5, "T")
    assert second.metadata == {"doc_id": "d", "version": "own", "shard_key": "s"}
    assert (third.text, third.id, third.score, third.metadata) == ("t", "1", 3.0, {"content": "c", "_id": 2})


def test_passages_of_hits_are_written_and_read(tmp_path, form):
    documents, _, _ = form
    given = [fr.Example("q", as_passages(documents))]
    fr.save_examples(given, tmp_path / "a.jsonl")
    [again] = fr.load_examples(tmp_path / "a.jsonl")
    assert again.passages == given[0].passages


def test_hits_without_an_id_have_their_documents():
    [found] = as_passages([{"_source": {"text": "t", "docid": 3}}])
    assert (found.id, found.score, found.metadata) == ("3", None, {})


@pytest.mark.parametrize("missing", [None, math.nan])
def test_a_missing_score_of_a_pair_leaves_the_documents_own(missing):
    assert as_passages([({"text": "t", "score": 2}, missing), ("t", missing)]) == [
        fr.Passage("t", score=2.0),
        fr.Passage("t"),
    ]


NO_NUMBERS = [10**400, Decimal("sNaN"), np.datetime64("2020-01-01")]  # that float() fails on


@pytest.mark.parametrize("score", [1, True, "1", None, Decimal("0.5"), np.int8(3), np.array([1.0]), 1j, *NO_NUMBERS])
def test_scores_of_pairs_and_documents_are_of_the_same_types(score):
    def read(document):
        try:
            return as_passages([document])[0].score
        except InputError:
            return "refused"

    wanted = read({"text": "t", "score": score})
    assert [read(("t", score)), read(elasticsearch({"text": "t"}, _score=score))] == [wanted, wanted]
    assert wanted == "refused" or not any(score is other for other in NO_NUMBERS)


def test_documents_that_have_such_a_field_of_their_own_are_documents():
    found = as_passages(
        [
            {"text": "t", "payload": {"text": "other"}, "_source": "wiki"},
            {"title": "T", "payload": 3},
            {"title": "T", "text": None, "_source": None},
        ]
    )
    assert [p.text for p in found] == ["t", "T", "T"]
    assert found[0].metadata == {"payload": {"text": "other"}, "_source": "wiki"} and found[1].metadata == {
        "payload": 3
    }


WRONG = {
    "no _source": ({"_index": "i", "_id": "a", "_score": 1.0}, r"_source: .*by _source=True, got None"),
    "_source off": (elasticsearch(None), r"_source: .*by _source=True, got None"),
    "stored fields": ({"_index": "i", "_id": "a", "fields": {"text": ["t"]}}, r"_source: .*by _source=True, got None"),
    "no payload": (qdrant(None), r"payload: .*by with_payload=True, got None"),
    "no payload in the client": (ScoredPoint(id=1, score=1), r"payload: .*by with_payload=True, got None"),
    "source as text": (elasticsearch('{"text": "t"}'), r"_source: expected the fields of the hit's document"),
    "other field": (elasticsearch({"abstract": "t", "year": 3}), r"_source: .*text.*a mapping with abstract, year"),
    "empty source": (elasticsearch({}), r"_source: .*text.*a mapping with no keys"),
    "other payload": (qdrant({"chunk": "t"}), r"payload: expected .*text.*a mapping with chunk"),
    "other attributes": (DslHit({"abstract": "t"}, id="a", score=1), r"_source: .*text.*a mapping with abstract"),
    "several values": (elasticsearch({"text": ["a", "b"]}), r"_source: text: expected a text, got \['a', 'b'\]"),
    "hit in a hit": (qdrant({"payload": {"text": "t"}}), r"payload: expected .*a mapping with payload"),
    "score of a hit": (elasticsearch({"text": "t"}, _score="high"), r"score: expected a number or None, got 'high'"),
    "swapped": ((0.5, "t"), r"expected a document, or a pair of a document and its score, got \(0.5, 't'\)"),
    "two texts": (("a", "b"), r"expected a document, or a pair"),
    "with a vector": (("t", 0.5, [0.1]), r"expected a document, or a pair"),
    "one": (("t",), r"expected a document, or a pair"),
    "pair in a pair": ((("t", 0.5), 0.5), r"expected a document, or a pair"),
    "number": ((3, 0.5), r"expected a text, a Passage, or"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_the_field_that_a_hit_lacks_is_named(wrong):
    document, message = WRONG[wrong]
    with pytest.raises(InputError, match=rf"^passages\[1\]: {message}"):
        as_passages(["t", document])


HITS = {"took": 1, "hits": {"total": 1, "hits": [elasticsearch({"text": "t"})]}}
RESPONSES = {
    "elasticsearch": (ObjectApiResponse(HITS), r"response\['hits'\]\['hits'\]"),
    "as JSON": (HITS, r"response\['hits'\]\['hits'\]"),
    "qdrant": (QueryResponse(points=[ScoredPoint(id=1, score=1, payload={"text": "t"})]), r"response\.points"),
    "another mapping": ({"hits": 3}, "got"),
    "another model": (ScoredPoint(id=1, score=1), "got"),
    "another reply": (ObjectApiResponse({"tagline": "x"}), "got"),
}


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("call", CALLS)
def test_a_whole_response_is_no_list(tiny_reader, response, call):
    given, message = RESPONSES[response]
    with pytest.raises(InputError, match="expected .*list" if call != "rerank lists" else "expected a list"):
        CALLS[call](tiny_reader, given)
    with pytest.raises(InputError, match=f"expected a list of passages.*{message}"):
        as_passages(given)
