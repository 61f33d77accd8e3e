from dataclasses import replace

import numpy as np
import pytest
from eor_cases import QUESTION, WEB, WIKI, CountingReader, passage_file

from fastreader.data import Example, Passage
from fastreader.eor import BM25, PAPER, Cosine, Limits, QuestionLikelihood, Retrievers, answer
from fastreader.eor.spec import SpecError
from fastreader.errors import FastreaderError, InputError


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pools")
    return {
        "SE": BM25(passage_file(folder / "web.jsonl", WEB)),
        "Wiki": BM25(passage_file(folder / "wiki.jsonl", WIKI)),
    }


class Counted:
    def __init__(self, source):
        self.source, self.calls = source, []

    def __call__(self, question):
        self.calls.append(question)
        return self.source(question)


def by_name(retrieval):
    return {document.retriever: document for document in retrieval.documents}


def test_paper_retrievers_run_offline_and_share_calls(indexes):
    sources = {name: Counted(index) for name, index in indexes.items()}
    reader = CountingReader()
    retrievers = Retrievers([*PAPER, "ReFree"], sources, reader=reader)
    questions = [QUESTION, "Which river flows through Vienna?"]
    found = retrievers.retrieve([Example(questions[0], [], ["Nile"], id="q"), questions[1]])

    assert [s.calls for s in sources.values()] == [questions, questions]  # each source once a question
    assert reader.generations[0] == 2  # PK once a question
    compressed = sum(name.endswith("@CP") for name in PAPER)
    assert reader.generations == [2, compressed * 2]  # and all summaries in one generation
    assert len(reader.passes) == 1  # SE@RR and HB@RR in one pass
    assert (found[0].id, found[0].right) == ("q", ["Nile"])
    assert [d.retriever for d in found[0].documents] == [*PAPER, "ReFree"]
    assert not [d.failure for r in found for d in r.documents if d.failure]

    rows = answer(reader, found)
    assert len(reader.generations) == 3  # all answers in one more
    assert dict(zip(rows[0].retrievers, rows[0].texts, strict=True))["Wiki@10"] == "Nile"
    assert len(rows[0].texts) == 16 and rows[0].failures == {}


def test_documents_match_their_specifications(indexes):
    names = ["SE@2", "SE@2&Wiki@1", "SE@RR@2", "HB@RR@3", "Wiki@10@CP", "PK", "ReFree"]
    (found,) = Retrievers(names, indexes, reader=CountingReader()).retrieve([QUESTION])
    documents = by_name(found)
    web, wiki = indexes["SE"](QUESTION), indexes["Wiki"](QUESTION)
    assert [p.id for p in documents["SE@2"].passages] == [p.id for p in web[:2]]
    assert [p.id for p in documents["SE@2&Wiki@1"].passages] == [p.id for p in [*web[:2], wiki[0]]]
    assert [p.text for p in documents["PK"].passages] == ["Cairo lies on the Nile."]
    assert documents["ReFree"].passages == [] and documents["ReFree"].failure is None
    assert [p.text for p in documents["Wiki@10@CP"].passages] == ["Summary: the Nile is named."]
    assert len(documents["HB@RR@3"].passages) == 3
    ranked = documents["SE@RR@2"].passages
    assert [p.score for p in ranked] == sorted((p.score for p in ranked), reverse=True)


def test_merged_rankings_by_hand():
    nile, seine, danube = (Passage(f"The {name} is a river.", name) for name in ("Nile", "Seine", "Danube"))
    numbered = [replace(passage, id=str(i)) for i, passage in enumerate([nile, seine, danube])]
    other = [replace(danube, id="0"), replace(seine, id="1")]  # ids of another collection name other passages
    names = ["A+B", "A+B@1", "A+B@RR@2", "A+B@1&A@1", "A+Nothing", "A+Broken"]
    sources = {"A": lambda q: numbered, "B": lambda q: other, "Nothing": lambda q: [], "Broken": broken}
    (found,) = Retrievers(names, sources, reader=CountingReader()).retrieve([QUESTION])
    documents = by_name(found)
    merged = documents["A+B"].passages
    assert [p.title for p in merged] == ["Danube", "Seine", "Nile"]
    np.testing.assert_allclose([p.score for p in merged], [1 / 61 + 1 / 63, 2 / 62, 1 / 61])
    assert [p.title for p in documents["A+B@1"].passages] == ["Danube"]
    assert len(documents["A+B@RR@2"].passages) == 2
    assert [p.title for p in documents["A+B@1&A@1"].passages] == ["Danube", "Nile"]
    assert [p.title for p in documents["A+Nothing"].passages] == ["Nile", "Seine", "Danube"]
    assert documents["A+Nothing"].notes == ["Nothing returned nothing"]
    assert documents["A+Broken"].failure == "Broken failed: ConnectionError: no route"


def test_reranking_splits_into_chunks_and_keeps_the_best():
    long = Passage(" ".join(["filler"] * 190 + ["Cairo", "Nile"] + ["filler"] * 8), id="long")
    scorer = lambda question, passages: [p.text.count("Nile") for p in passages]  # noqa: E731
    (found,) = Retrievers(["SE@RR@1"], {"SE": lambda q: [long]}, scorer=scorer).retrieve(["?"])
    (passage,) = found.documents[0].passages
    assert len(passage.text.split()) == 100 and passage.score == 1 and passage.metadata == {"chunk": 1}


def test_ties_keep_the_order_of_the_source():
    passages = [Passage(str(i)) for i in range(4)]
    (found,) = Retrievers(["SE@RR@3"], {"SE": lambda q: passages}, scorer=lambda q, p: [0.0] * len(p)).retrieve(["?"])
    assert [p.text for p in found.documents[0].passages] == ["0", "1", "2"]


@pytest.mark.parametrize("scores", [[1.0], [1.0, float("nan")], [[1.0, 2.0]], []])
def test_scorer_must_return_one_finite_number_per_passage(scores):
    retrievers = Retrievers(["SE@RR@1"], {"SE": lambda q: ["a", "b"]}, scorer=lambda q, p: scores)
    with pytest.raises(InputError, match="2 finite numbers"):
        retrievers.retrieve(["?"])


def test_question_likelihood_in_nats_per_token_in_one_pass():
    reader = CountingReader(score=lambda context, continuation: -6.0 if "right" in context else -9.0)
    scorer = QuestionLikelihood(reader)
    scores = scorer.score_many(["what is it", "and"], [[Passage("wrong"), Passage("right")], [Passage("right")]])
    assert scores == [[-3.0, -2.0], [-6.0]]
    assert reader.passes == [3]
    assert reader.requests[0][0].startswith(reader.requests[2][0][:15])


def test_cosine_scorer():
    import numpy as np

    vectors = {"q": [1, 0], "a": [0.6, 0.8], "T\nb": [1, 0]}
    scorer = Cosine(lambda texts: np.array([vectors[t] for t in texts], dtype=np.float32))
    assert scorer("q", [Passage("a"), Passage("b", title="T")]) == pytest.approx([0.6, 1.0])


def test_the_papers_limits():
    words = " ".join(f"w{i}" for i in range(3000))
    sources = {"SE": lambda q: [Passage(words), Passage(words), Passage(words)]}
    names = ["SE@1", "SE@3", "SE@2", "SE"]
    (found,) = Retrievers(names, sources).retrieve(["?"])
    lengths = {name: [len(p.text.split()) for p in d.passages] for name, d in by_name(found).items()}
    assert lengths == {"SE@1": [1000], "SE@3": [250] * 3, "SE@2": [250] * 2, "SE": [1000]}
    (found,) = Retrievers(names, sources, limits=Limits(page=40, single=60, document=100)).retrieve(["?"])
    lengths = {name: [len(p.text.split()) for p in d.passages] for name, d in by_name(found).items()}
    assert lengths == {"SE@1": [60], "SE@3": [40, 40, 20], "SE@2": [40, 40], "SE": [100]}


def test_summary_is_cut():
    reader = CountingReader(write=lambda prompt, i: "one two three four")
    (found,) = Retrievers(["A@1@CP"], {"A": lambda q: ["x"]}, reader=reader, limits=Limits(summary=2)).retrieve(["?"])
    assert found.documents[0].text == "one two"
    assert "2 words" in reader.prompts[0]


def broken(question):
    raise ConnectionError("no route")


def test_source_error_is_recorded_and_others_continue(caplog):
    names = ["A@1", "B@1", "A@1&B@1", "A@1@CP", "B@RR@1", "ReFree"]
    reader = CountingReader()
    found = Retrievers(names, {"A": broken, "B": lambda q: ["text"]}, reader=reader).retrieve(["?", "!"])
    for retrieval in found:
        documents = by_name(retrieval)
        assert {name for name, d in documents.items() if d.failure} == {"A@1", "A@1&B@1", "A@1@CP"}
        assert "A failed: ConnectionError: no route" in documents["A@1"].failure
        assert documents["A@1"].passages == []
    assert "2 of 2 questions" in caplog.text
    (first, _) = answer(reader, found)
    assert first.texts[0] is None and first.texts[1] == "Danube"
    assert first.failures["A@1@CP"] == "A failed: ConnectionError: no route"


@pytest.mark.parametrize("nothing", [[], None])
def test_empty_source_is_recorded(nothing, caplog):
    names = ["A@1", "B@1", "A@1&B@1", "A@RR@2", "A@1@CP"]
    (found,) = Retrievers(names, {"A": lambda q: nothing, "B": lambda q: ["b"]}, reader=CountingReader()).retrieve(
        ["?"]
    )
    failures = {d.retriever: d.failure for d in found.documents}
    assert failures == {
        "A@1": "A returned nothing",
        "B@1": None,
        "A@1&B@1": None,  # there is what B found
        "A@RR@2": "A returned nothing",
        "A@1@CP": "A returned nothing",
    }
    assert {d.retriever: d.notes for d in found.documents if d.notes} == {"A@1&B@1": ["A returned nothing"]}
    assert "1 of 1 questions: A returned nothing" in caplog.text


@pytest.mark.parametrize("one", ["Paris", {"text": "Paris"}, {"documents": [{"content": "Paris"}]}, Passage("Paris")])
def test_one_passage_instead_of_a_list_raises(one):
    (found,) = Retrievers(["A"], {"A": lambda q: one}).retrieve(["?"])
    failure = "A failed: InputError: source: expected a list of passages, got "
    assert found.documents[0].failure.startswith(failure)


def test_one_question_instead_of_a_list_raises():
    with pytest.raises(InputError, match="questions: expected a list of texts or Example objects, got 'What'"):
        Retrievers(["A"], {"A": lambda q: ["x"]}).retrieve("What")


def test_on_error_raise():
    with pytest.raises(ConnectionError, match="no route"):
        Retrievers(["A"], {"A": broken}, on_error="raise").retrieve(["?"])
    with pytest.raises(FastreaderError, match="A returned nothing"):
        Retrievers(["A"], {"A": lambda q: []}, on_error="raise").retrieve(["?"])
    with pytest.raises(FastreaderError, match="A returned nothing"):
        Retrievers(["A@1&B@1"], {"A": lambda q: [], "B": lambda q: ["b"]}, on_error="raise").retrieve(["?"])
    with pytest.raises(FastreaderError, match="PK returned nothing"):
        Retrievers(["PK"], reader=CountingReader(write=lambda prompt, i: ""), on_error="raise").retrieve(["?"])


def test_empty_generations_are_recorded():
    reader = CountingReader(write=lambda prompt, i: "  ")
    (found,) = Retrievers(["PK", "A@1@CP"], {"A": lambda q: ["x"]}, reader=reader).retrieve(["?"])
    assert [d.failure for d in found.documents] == ["PK returned nothing", "the reader's summary is empty"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"specs": []}, "specs"),
        ({"specs": "SE"}, "specs"),
        ({"specs": ["A", "A"]}, "once"),
        ({"specs": ["SE@1"]}, "'SE'"),
        ({"specs": ["HB@RR@3"], "sources": {"SE": broken}, "reader": CountingReader()}, "'Wiki'"),
        ({"specs": ["PK"]}, "reader"),
        ({"specs": ["A@CP"], "sources": {"A": broken}}, "reader"),
        ({"specs": ["A@RR"], "sources": {"A": broken}}, "scorer"),
        ({"specs": ["A"], "sources": {"A": broken}, "on_error": "ignore"}, "on_error"),
        ({"specs": ["A"], "sources": {"A": 5}}, "source"),
        ({"specs": ["A"], "sources": {"A": broken, "ReFree": broken}}, "ReFree"),
        (
            {"specs": ["T@5"], "sources": {"A": broken}, "aliases": {"T": "ReFree"}},
            "aliases: expected .*got 'T@5 = ReFree@5'",
        ),
        (
            {"specs": ["T&A"], "sources": {"A": broken}, "aliases": {"T": "ReFree"}},
            "aliases: expected .*got 'T&A = ReFree&A'",
        ),
        ({"specs": ["A"], "sources": {"A": broken}, "max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_missing_sources_and_models_raise_early(options, expected):
    with pytest.raises(InputError, match=expected):
        Retrievers(**options)


def test_unparsable_specification_raises():
    with pytest.raises(SpecError, match=r"\^"):
        Retrievers(["A@"], {"A": broken})


def test_empty_question_raises():
    with pytest.raises(InputError, match=r"questions\[1\]"):
        Retrievers(["A"], {"A": lambda q: ["x"]}).retrieve(["?", " "])


def test_own_pk_and_hybrid_sources():
    sources = {"PK": lambda q: ["own"], "HB": lambda q: ["mixed"]}
    (found,) = Retrievers(["PK", "HB@1"], sources).retrieve(["?"])
    assert [d.text for d in found.documents] == ["own", "mixed"]
    (found,) = Retrievers(["Two"], {"A": lambda q: ["a", "b"]}, aliases={"Two": "A@1&A@2"}).retrieve(["?"])
    assert [p.text for p in found.documents[0].passages] == ["a", "a", "b"]
