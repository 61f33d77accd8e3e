"""A PyTerrier transformer: the real library, without Terrier and Java, against fastreader.rerank."""

import subprocess
import sys

import pytest
from helpers.support import framework

import fastreader as fr
from fastreader.errors import InputError
from fastreader.integrations.common import NOTE

pt = framework("pyterrier", "pyterrier")
pandas = pytest.importorskip("pandas", reason="needs the extra pandas")

from fastreader.integrations.pyterrier import FastreaderRerank  # noqa: E402

TEXTS = ["The Nile is a river.", "", "Bread is baked.", "A long river flows.", "Cats sleep."]
QUESTIONS = {"q2": "Which river is long?", "q1": "Who sleeps?"}
ADDED = ["score", "rank", NOTE]


def frame(**columns):
    rows = [
        {"qid": qid, "query": query, "docno": f"d{i}", "text": text, "url": f"u{i}", "score": -1.0 - i, "rank": i}
        for i, text in enumerate(TEXTS)
        for qid, query in QUESTIONS.items()
    ]
    return pandas.DataFrame(rows).assign(**columns)


def test_scores_and_ranks(tiny_reader):
    given = frame()
    found = FastreaderRerank(reader=tiny_reader)(given)
    assert given.equals(frame()) and len(found) == len(given)
    for qid, query in QUESTIONS.items():
        wanted = fr.rerank(tiny_reader, query, TEXTS)
        rows = found[found.qid == qid]
        assert rows.docno.tolist() == [f"d{i}" for i in wanted.indices]
        assert rows.url.tolist() == [f"u{i}" for i in wanted.indices]
        assert rows.score.tolist() == pytest.approx([r.relevance for r in wanted], abs=1e-6)
        assert rows["rank"].tolist() == [0, 1, 2, 3, 4]
        assert rows[NOTE].tolist() == [r.note for r in wanted] and any(rows[NOTE])
    # PyTerrier's own rule for ranks agrees, ties in the order of the rows included.
    assert pt.model.add_ranks(found.copy())["rank"].tolist() == found["rank"].tolist()


def test_an_instruction(tiny_reader):
    how = {"method": "yes_no", "instruction": "Find what sleeps."}
    found = FastreaderRerank(reader=tiny_reader, **how)(frame())
    for qid, query in QUESTIONS.items():
        wanted = fr.rerank(tiny_reader, query, TEXTS, **how)
        assert found[found.qid == qid].score.tolist() == pytest.approx([r.relevance for r in wanted], abs=1e-6)


def test_a_cache(tiny_reader):
    cache = fr.PassageCache()
    found, again = (FastreaderRerank(reader=tiny_reader, cache=cache)(frame()) for _ in range(2))
    assert found.score.tolist() == pytest.approx(FastreaderRerank(reader=tiny_reader)(frame()).score.tolist(), abs=1e-6)
    assert again.docno.tolist() == found.docno.tolist() and (cache.info().misses, cache.info().hits) == (4, 4)


def test_in_pipelines(tiny_reader):
    own = FastreaderRerank(reader=tiny_reader)
    cut = pt.Transformer.from_df(frame()) >> own % 2
    found = cut(pandas.DataFrame([{"qid": qid, "query": query} for qid, query in QUESTIONS.items()]))
    whole = own(frame())
    assert found.docno.tolist() == whole[whole["rank"] < 2].docno.tolist()
    doubled = (own * 2)(frame())
    assert doubled.score.tolist() == pytest.approx((2 * whole.score).tolist())
    top = FastreaderRerank(reader=tiny_reader, top_n=1)(frame())
    assert top.docno.tolist() == whole[whole["rank"] == 0].docno.tolist()
    first = frame()[lambda rows: rows.qid == "q2"].to_dict("records")
    assert [row["docno"] for row in own(first)] == whole[whole.qid == "q2"].docno.tolist()


def test_in_an_experiment(tiny_reader):
    qrels = pandas.DataFrame([{"qid": qid, "docno": "d3", "label": 1} for qid in QUESTIONS])
    topics = pandas.DataFrame([{"qid": qid, "query": query} for qid, query in QUESTIONS.items()])
    first = pt.Transformer.from_df(frame())
    own = first >> FastreaderRerank(reader=tiny_reader)
    results = pt.Experiment([first, own], topics, qrels, eval_metrics=["recip_rank"], names=["first", "own"])
    place = own(topics).pipe(lambda rows: rows[rows.docno == "d3"]["rank"] + 1)
    assert results.set_index("name").loc["own", "recip_rank"] == pytest.approx((1 / place).mean())


def test_what_pyterrier_inspects(tiny_reader):
    own = FastreaderRerank(reader=tiny_reader, text_field="body")
    assert [sorted(columns) for columns in pt.inspect.transformer_inputs(own)] == [["body", "docno", "qid", "query"]]
    given = ["qid", "query", "docno", "body"]
    assert pt.inspect.transformer_outputs(own, given) == [*given, *ADDED]
    assert {a.name: a.value for a in pt.inspect.transformer_attributes(own)}["text_field"] == "body"
    with pytest.raises(pt.validate.InputValidationError, match="body"):
        own(frame())


def test_empty_frames(tiny_reader):
    own = FastreaderRerank(reader=tiny_reader)
    empty, full = own(frame().iloc[:0]), own(frame())
    assert list(empty.columns) == list(full.columns) and not len(empty)
    assert empty.score.dtype == full.score.dtype and empty["rank"].dtype == full["rank"].dtype
    assert not len((own % 1)(frame().iloc[:0]))


def test_rows_that_do_not_fit(tiny_reader):
    own = FastreaderRerank(reader=tiny_reader)
    with pytest.raises(InputError, match="text of docno d0: expected text, got nan"):
        own(frame(text=float("nan")))
    with pytest.raises(InputError, match="query of qid q2: expected one text in all its rows"):
        own(frame(query=[str(i) for i in range(10)]))


def test_by_name(model):
    own = FastreaderRerank(str(model), precision="exact", device="cpu")
    assert len(own(frame())) == 10 and repr(own) == f"FastreaderRerank({model!r}, method=None)"


def test_java_is_not_needed():
    code = "import sys; sys.modules['jnius'] = None; import fastreader.integrations.pyterrier"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
