"""Rankings as frames, as examples and as TREC runs that ir-measures reads."""

import json
import sys
from dataclasses import replace

import pytest

import fastreader as fr
from fastreader.core.tree import TreeStats
from fastreader.errors import InputError, MissingExtraError
from fastreader.statistics.measures.retrieval import retrieval_measures

STATS = TreeStats(0, 0, 0, 0)
PASSAGES = [fr.Passage("x", "T", "a"), fr.Passage("y", id="b"), fr.Passage("", id="c")]


def ranking(id="q", order=(1, 0, 2), relevances=(0.75, 0.25, 0.0), passages=PASSAGES):
    results = [
        fr.RerankResult(i, passages[i], relevance, relevance or None, "" if relevance else "no text")
        for i, relevance in zip(order, relevances, strict=True)
    ]
    return fr.Reranked("Who?", results, "query_likelihood", STATS, id=id)


def test_a_frame_has_a_row_for_each_passage():
    frame = ranking().to_pandas()
    assert frame["rank"].tolist() == [1, 2, 3] and frame["index"].tolist() == [1, 0, 2]
    assert frame.passage_id.tolist() == ["b", "a", "c"] and frame.relevance.tolist() == [0.75, 0.25, 0.0]
    assert frame.value.isna().tolist() == [False, False, True] and frame.note.tolist() == ["", "", "no text"]
    assert set(frame.id) == {"q"} and set(frame.question) == {"Who?"}
    empty = fr.Reranked("Who?", [], "moi", STATS).to_pandas()
    assert list(empty.columns) == list(frame.columns) and not len(empty)


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pandas"):
        ranking().to_pandas()


def test_a_run_is_what_ir_measures_reads(tiny_reader, tmp_path):
    measures = pytest.importorskip("ir_measures", reason="needs the extra measures")
    texts = ["The Nile is a river.", "Bread is baked.", "A long river flows.", "Cats sleep."]
    passages = [fr.Passage(text, id=f"d{i}") for i, text in enumerate(texts)]
    examples = [fr.Example(f"Which river {i}?", passages, id=f"q{i}") for i in range(3)]
    rankings = fr.rerank(tiny_reader, examples)
    fr.save_trec_run(rankings, tmp_path / "run.trec", tag="tiny")
    run = list(measures.read_trec_run(str(tmp_path / "run.trec")))
    assert [(row.query_id, row.doc_id) for row in run] == [
        (ranked.id, result.passage.id) for ranked in rankings for result in ranked
    ]
    assert [row.score for row in run] == [result.relevance for ranked in rankings for result in ranked]
    qrels = {example.id: {"d2": 2, "d0": 1} for example in examples}
    judged = [measures.Qrel(q, d, grade) for q, own in qrels.items() for d, grade in own.items()]
    found = measures.calc_aggregate([measures.parse_measure("nDCG@3"), measures.parse_measure("RR")], judged, run)
    own = retrieval_measures((ranked.to_example() for ranked in rankings), ["nDCG@3", "RR"], qrels=qrels)
    for measure, value in found.items():
        per_question = own.per_question[str(measure)]
        assert sum(per_question) / 3 == pytest.approx(value)


def test_lines_of_a_run(tmp_path):
    path = tmp_path / "run.trec"
    plain = [fr.Passage(text) for text in ("x", "y", "z")]
    tied = ranking(id=None, relevances=(0.5, 0.5, 0.0), passages=plain)
    fr.save_trec_run([ranking(), tied, ranking()], path)
    lines = path.read_text().splitlines()
    assert lines[:2] == ["q Q0 b 1 0.75 fastreader", "q Q0 a 2 0.25 fastreader"]
    # Equal scores would be sorted by id: the order is kept by descending integers.
    assert lines[3:6] == ["1 Q0 1 1 3.0 fastreader", "1 Q0 0 2 2.0 fastreader", "1 Q0 2 3 1.0 fastreader"]
    assert lines[6].startswith("q#2 ")


@pytest.mark.parametrize(
    ("rankings", "message"),
    [
        ([ranking(id="a b")], "trec: expected a question id without white space and control characters, got 'a b'"),
        ([ranking(passages=[fr.Passage("x", id="a")] * 3)], r"rankings\[0\]: expected passages with different ids"),
        (["q"], "rankings"),
    ],
)
def test_runs_that_cannot_be_written(rankings, message, tmp_path):
    with pytest.raises(InputError, match=message):
        fr.save_trec_run(rankings, tmp_path / "run.trec")
    with pytest.raises(InputError, match="tag: expected"):
        fr.save_trec_run([ranking()], tmp_path / "run.trec", tag="two words")
    assert not list(tmp_path.iterdir())


def test_a_ranking_keeps_what_belongs_to_its_question(tiny_reader, tmp_path):
    passages = [fr.Passage("Cats.", id="a", is_gold=False, metadata={"page": 3}), fr.Passage("", "The Nile", id="b")]
    example = fr.Example("Which river?", passages, ["the Nile"], ["the Nile", "x"], "q1", {"hop": 2, "method": "m"})
    for method, options in (("query_likelihood", {}), ("moi", {"uncalibrated": True}), ("qg", {})):
        ranked = fr.rerank(tiny_reader, example, method=method, **options)
        back = ranked.to_example()
        assert replace(back, passages=[]) == replace(example, passages=[])
        assert sorted(p.id for p in back.passages) == ["a", "b"]
        path = tmp_path / f"{method}.jsonl"
        path.write_text(json.dumps(ranked.to_dict()) + "\n")
        assert fr.load_examples(path) == [back]
