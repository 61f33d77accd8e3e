"""fr.rerank: relevance of passages, by query likelihood, MoI and the baselines."""

import asyncio
import math
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from helpers.support import one_by_one, tiny_llama

import fastreader as fr
from fastreader.core.protocol import ReaderWrapper
from fastreader.errors import ContextOverflowError, InputError
from fastreader.moi.baselines import METHODS
from fastreader.moi.calibration.store import find
from fastreader.passages.ranking.rerank import NOT_READ
from fastreader.passages.ranking.results import EMPTY, sigmoid
from fastreader.reader.local_model import LocalModel
from fastreader.reader.prompts.pieces import encode

QUESTION = "Which river is long?"
PASSAGES = [
    "The Nile is a river.",
    "Bread is baked.",
    "A long river flows north.",
    "Cats sleep.",
    "Rivers meet the sea.",
]


def values(ranking):
    return {result.index: result.value for result in ranking}


def test_values_are_those_of_transformers(tiny_reader):
    """Each passage alone, one sequence at a time, in float64."""
    model = tiny_llama().double()
    pieces = encode(tiny_reader.encoder, fr.Template(), QUESTION, [fr.Passage(p) for p in PASSAGES], [])
    alone = pieces.head + pieces.question_lead
    contexts = [alone, *(pieces.head + pieces.body([i]) + pieces.question_lead for i in range(len(PASSAGES)))]
    without, *after = [float(w.sum()) for w in one_by_one(model, [(context, pieces.question) for context in contexts])]
    ranking = fr.rerank(tiny_reader, QUESTION, PASSAGES)
    for result in ranking:
        gain = (after[result.index] - without) / len(pieces.question)
        assert result.value == pytest.approx(gain, abs=1e-5)
        assert result.relevance == pytest.approx(1 / (1 + math.exp(-gain)), abs=1e-5)
    assert [r.value for r in ranking] == sorted((r.value for r in ranking), reverse=True)
    assert ranking.passages[0] is ranking[0].passage and ranking.indices == [r.index for r in ranking]


def test_a_passage_does_not_depend_on_the_others(tiny_reader):
    together = values(fr.rerank(tiny_reader, QUESTION, PASSAGES))
    many = fr.rerank(tiny_reader, [QUESTION, "What is baked?", QUESTION], [PASSAGES, PASSAGES[:2], PASSAGES[::-1]])
    for i, passage in enumerate(PASSAGES):
        assert values(fr.rerank(tiny_reader, QUESTION, [passage]))[0] == pytest.approx(together[i], abs=1e-5)
        assert values(many[2])[4 - i] == pytest.approx(together[i], abs=1e-5)
    assert values(many[0]) == pytest.approx(together, abs=1e-5)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 30])
@pytest.mark.parametrize("method", ["query_likelihood", "moi", "retriever", "qg", "bayes_saliency", "random"])
def test_any_number_of_passages(tiny_reader, count, method):
    passages = [f"{PASSAGES[i % 5]} {i}" for i in range(count)]
    ranking = fr.rerank(tiny_reader, QUESTION, passages, method=method, uncalibrated=True)
    assert sorted(ranking.indices) == list(range(count)) and len(ranking) == count
    assert all(0 <= result.relevance <= 1 for result in ranking)
    relevances = [result.relevance for result in ranking]
    assert relevances == sorted(relevances, reverse=True)
    assert fr.rerank(tiny_reader, QUESTION, passages, method=method, uncalibrated=True, top_n=3).results == ranking[:3]


def test_many_questions_share_passes_as_far_as_they_fit(tiny_reader):
    class Counting(ReaderWrapper):
        def __init__(self, reader):
            super().__init__(reader)
            self.calls, self.encoder = 0, reader.encoder

        def score(self, sequences, **options):
            self.calls += 1
            return self.reader.score(sequences, **options)

        def __getattr__(self, name):
            return getattr(self.reader, name)

    questions = [f"{QUESTION} {i}" for i in range(6)]
    lists = [PASSAGES[: i % 4] for i in range(6)]
    calls = []
    for budget in (None, 1200):
        reader = Counting(tiny_reader)
        rankings = fr.rerank(reader, questions, lists, max_batch_tokens=budget)
        calls.append(reader.calls)
        for question, passages, ranking in zip(questions, lists, rankings, strict=True):
            alone = fr.rerank(tiny_reader, question, passages)
            assert values(ranking) == pytest.approx(values(alone), abs=1e-5)
            assert ranking.stats == alone.stats and ranking.question == question
    assert calls[0] == 1 < calls[1]


@dataclass
class Document:
    """As LangChain's."""

    page_content: str
    metadata: dict = field(default_factory=dict)
    id: str | None = None


class Node:
    """As LlamaIndex's."""

    node_id, metadata = "n1", {"title": "On rivers", "page": 7}

    def get_content(self, metadata_mode="none"):
        return PASSAGES[0]


def test_documents_of_other_libraries(tiny_reader):
    given = [
        Document(PASSAGES[0], {"title": "On rivers", "page": 7}, "n1"),
        SimpleNamespace(node=Node(), score=0.5),
        SimpleNamespace(content=PASSAGES[0], meta={"title": "On rivers", "page": 7}, id="n1", score=0.5),
        {"text": PASSAGES[0], "title": "On rivers", "_id": "n1", "page": 7},
        {"contents": f"On rivers\n{PASSAGES[0]}", "docid": "n1", "metadata": {"page": 7}},
        fr.Passage(PASSAGES[0], "On rivers", "n1", metadata={"page": 7}),
    ]
    found = {result.index: result for result in fr.rerank(tiny_reader, QUESTION, given)}
    for result in found.values():
        passage = result.passage
        assert (passage.text, passage.title, passage.id) == (PASSAGES[0], "On rivers", "n1")
        assert passage.metadata == {"page": 7} and result.value == pytest.approx(found[0].value, abs=1e-5)
    assert [found[i].passage.score for i in range(3)] == [None, 0.5, 0.5]


def test_passages_without_text_come_last(tiny_reader):
    ranking = fr.rerank(tiny_reader, QUESTION, ["", PASSAGES[0], {"text": " \n"}, PASSAGES[1]])
    assert ranking.indices[2:] == [0, 2]
    assert all((r.relevance, r.value, r.note) == (0.0, None, EMPTY) for r in ranking[2:])
    for method in ("moi", "qg", "retriever"):
        assert fr.rerank(tiny_reader, QUESTION, ["", PASSAGES[0]], method=method).indices == [1, 0]
    assert fr.rerank(tiny_reader, QUESTION, ["", " "], method="qg").indices == [0, 1]


def test_moi_without_a_calibration_says_so(tiny_reader, monkeypatch, tmp_path):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"bias: method 'moi' needs a calibration .* 2 to 5 passages"):
        fr.rerank(tiny_reader, QUESTION, PASSAGES, method="moi")
    free = fr.rerank(tiny_reader, QUESTION, PASSAGES, method="moi", uncalibrated=True)
    assert "no calibration" in free.note and all(result.value is not None for result in free)


def test_moi_takes_the_largest_calibration(packaged_reader):
    passages = [f"{PASSAGES[i % 5]} {i}" for i in range(7)]
    largest = max(n for n in range(2, 8) if find(packaged_reader.describe(), fr.Template().digest(), n))
    assert largest < 7
    ranking = fr.rerank(packaged_reader, QUESTION, passages, method="moi")
    own = fr.moi.rerank(packaged_reader, QUESTION, passages, max_passages=largest)
    assert [result.value for result in ranking[:largest]] == [p.utility for p in own.by_utility()[:largest]]
    assert ranking.indices[largest:] == list(range(largest, 7))
    assert [result.note for result in ranking[largest:]] == [NOT_READ] * (7 - largest)
    given = fr.rerank(packaged_reader, QUESTION, passages, method="moi", bias=own.bias)
    assert values(given) == values(ranking)


def test_a_baseline_with_scores_is_ranked_by_them(tiny_reader):
    found = METHODS["qg"](tiny_reader, QUESTION, [fr.Passage(p) for p in PASSAGES])
    ranking = fr.rerank(tiny_reader, QUESTION, PASSAGES, method="qg")
    assert values(ranking) == pytest.approx(dict(enumerate(found.scores)))
    assert [r.relevance for r in ranking] == [1.0, 0.8, 0.6, 0.4, 0.2]


def test_long_passages_are_cut_or_refused(tiny_reader):
    long = fr.Reader.load((tiny_llama(max_position_embeddings=300), tiny_reader.tokenizer), "cpu", precision="exact")
    passages = [PASSAGES[0], "word " * 200]
    ranking = fr.rerank(long, QUESTION, passages)
    (cut,) = [result for result in ranking if result.index == 1]
    assert cut.note.startswith("cut by") and cut.value is not None
    with pytest.raises(ContextOverflowError, match=r"passages\[1\]"):
        fr.rerank(long, QUESTION, passages, on_overflow="error")
    with pytest.raises(ContextOverflowError, match="no room for a passage"):
        fr.rerank(long, "why " * 200, passages)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((QUESTION, PASSAGES), {"method": "best"}, "method: expected one of query_likelihood, relevance, yes_no, moi"),
        ((QUESTION, PASSAGES), {"top_n": 0}, "top_n: expected an integer of at least 1"),
        ((QUESTION, None), {}, "passages: expected a list of passages, got None"),
        ((QUESTION, "text"), {}, "passages"),
        ((" ", PASSAGES), {}, "question: expected text that is not empty"),
        ((QUESTION, [3]), {}, r"passages\[0\]: expected a text, a Passage"),
        ((QUESTION, [{"txt": "x"}]), {}, r"passages\[0\]: expected .* got a mapping with txt"),
        ((QUESTION, [{"text": None}]), {}, r"passages\[0\]: expected a text, .* got a mapping with text$"),
        ((QUESTION, [{"text": "x", "score": "high"}]), {}, r"passages\[0\]: score: expected a number"),
        (([QUESTION], PASSAGES), {}, "passages: expected a list of passages for each question"),
        (([fr.Example(QUESTION, ["a"])], [["b"]]), {}, r"passages\[0\]: expected None with an Example"),
        ((QUESTION, PASSAGES), {"stopping": None}, "stopping: expected a setting of 'query_likelihood'"),
        ((QUESTION, PASSAGES), {"method": "cross-encoder"}, "needs model"),
        ((QUESTION, PASSAGES), {"method": "bm25-matched"}, "needs bias"),
        ((QUESTION, PASSAGES), {"on_overflow": "drop"}, "on_overflow: expected one of error, truncate"),
        ((QUESTION, PASSAGES), {"template": fr.Template(question_first=True)}, "passages before the question"),
    ],
)
def test_bad_input_is_named(tiny_reader, arguments, options, message):
    with pytest.raises(InputError, match=message):
        fr.rerank(tiny_reader, *arguments, **options)


def test_results_as_json_and_text(tiny_reader):
    ranking = fr.rerank(tiny_reader, fr.Example(QUESTION, [*PASSAGES, *PASSAGES, *PASSAGES], id="q1"))
    told = ranking.to_dict()
    assert told["id"] == "q1" and told["results"][0]["index"] == ranking[0].index
    assert told["computed_tokens"] == ranking.stats.computed_tokens > 0
    shown = repr(ranking).splitlines()
    assert len(shown) == 16 and "and 3 more" in shown[-1] and all(len(line) <= 110 for line in shown)


def test_an_event_loop_goes_on_meanwhile(tiny_reader, monkeypatch):
    """The reader's work waits for a turn of the loop, which never comes if that work holds the loop."""
    turned, waited, model = threading.Event(), [], LocalModel.model.fget

    def waits(engine):
        waited.append(turned.wait(20))
        return model(engine)

    async def run(task):
        turned.clear()
        asyncio.get_running_loop().call_later(0.01, turned.set)
        return await task

    ways = (
        lambda: fr.arerank(tiny_reader, QUESTION, PASSAGES),
        lambda: tiny_reader.aloglikelihood([("a", " b")]),
        lambda: tiny_reader.agenerate(["a"], max_new_tokens=8),
    )
    found = []
    with monkeypatch.context() as patch:
        patch.setattr(LocalModel, "model", property(waits))
        for way in ways:
            before = len(waited)
            found.append(asyncio.run(run(way())))
            assert len(waited) > before and all(waited)
    ranking, likelihoods, texts = found
    assert values(ranking) == pytest.approx(values(fr.rerank(tiny_reader, QUESTION, PASSAGES)), abs=1e-6)
    assert likelihoods[0].logprob == tiny_reader.loglikelihood([("a", " b")])[0].logprob
    assert texts[0][0].token_ids == tiny_reader.generate(["a"], max_new_tokens=8)[0][0].token_ids


def test_sigmoid_does_not_overflow():
    assert sigmoid(800.0) == 1.0 and sigmoid(-800.0) == 0.0 and sigmoid(0.0) == 0.5
    x = torch.linspace(-30, 30, 61, dtype=torch.float64)
    assert [sigmoid(v) for v in x.tolist()] == pytest.approx(x.sigmoid().tolist(), rel=1e-12)
