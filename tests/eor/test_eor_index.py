"""Indexes on disk against bm25s in memory, corpora that are read one passage at a time, and precomputed hits."""

import json
from unittest import mock

import numpy as np
import pytest
from helpers.support import write_data as write

import fastreader as fr
from fastreader import eor
from fastreader.data import iter_passages, load_passages, sample_passages
from fastreader.data.corpora import reservoir
from fastreader.eor import index as indexing
from fastreader.errors import InputError

pytest.importorskip("bm25s")


def corpus(count, seed=0):
    generator = np.random.default_rng(seed)
    texts = [" ".join(f"w{n}" for n in generator.zipf(1.5, generator.integers(1, 12)) % 40) for _ in range(count)]
    return [
        fr.Passage(text, f"T{i % 7}" * (i % 2), f"p{i}", score=None if i % 3 else 0.0, is_gold=False, metadata={"n": i})
        for i, text in enumerate(texts)
    ]


@pytest.mark.parametrize(("batch", "pairs"), [(20_000, 4_000_000), (7, 11), (1, 1)])
def test_an_index_on_disk_scores_as_bm25s_does_in_memory(tmp_path, batch, pairs):
    passages = corpus(60)
    with mock.patch.multiple(indexing, _BATCH=batch, _PAIRS=pairs):
        folder = eor.build_index(passages, tmp_path / "index")
    stored, memory = eor.BM25.load(folder, depth=9), eor.BM25(passages, depth=9)
    assert list(stored.passages) == stored.passages[:] == passages and stored.passages[-1] == passages[-1]
    assert not list(folder.glob("*.tmp"))
    for question in ("w1 w2", "w3 w3 t1", "w0", "the w7 of w9 nothing", "nothing", ""):
        ours, theirs = stored(question), memory(question)
        assert [p.id for p in ours] == [p.id for p in theirs]
        np.testing.assert_allclose([p.score for p in ours], [p.score for p in theirs], rtol=1e-6)
        assert [p.metadata for p in ours] == [p.metadata for p in theirs]


def test_a_corpus_file_is_indexed_with_its_language(tmp_path):
    path = write(tmp_path / "c.tsv", 'id\ttext\ttitle\n1\t"the ""Nile"""\tRiver\n2\tthe Seine\t\n')
    folder = eor.build_index(path, tmp_path / "kept", language="")
    assert [p.id for p in eor.BM25.load(folder)("the")] == ["2", "1"]
    [found] = eor.BM25.load(folder, depth=1)("nile")
    assert (found.text, found.title, found.id) == ('the "Nile"', "River", "1")
    with pytest.raises(InputError, match=r"folder: .*kept exists already"):
        eor.build_index(path, folder)
    with pytest.raises(InputError, match="language: expected one of bm25s, got 'latin-x'"):
        eor.build_index(path, tmp_path / "other", language="latin-x")
    assert not (tmp_path / "other").exists()


def test_what_is_no_index_is_an_error(tmp_path):
    with pytest.raises(InputError, match="expected an index, as fastreader index makes it"):
        eor.BM25.load(tmp_path)
    folder = eor.build_index(corpus(3), tmp_path / "i")
    (folder / "fastreader.json").write_text('{"version": 99}')
    with pytest.raises(InputError, match="version: expected 1, got 99"):
        eor.BM25.load(folder)
    (folder / "fastreader.json").write_text('{"version": 1, "language": "english"}')
    np.save(folder / "places.npy", np.zeros(2, dtype=np.int64))
    with pytest.raises(InputError, match="expected 3 passages, got 1"):
        eor.BM25.load(folder)
    with pytest.raises(InputError, match="corpus: expected at least one word to index"):
        eor.build_index([fr.Passage("!")], tmp_path / "empty")
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize(
    ("name", "content", "wanted"),
    [
        (
            "c.jsonl",
            '{"_id": 1, "title": "T", "text": "a"}\n\n{"contents": "U\\nb"}\n',
            [("1", "T", "a"), (None, "U", "b")],
        ),
        ("c.tsv", "id\ttext\ttitle\n1\ta\tT\n2\t\tU\n", [("1", "T", "a"), ("2", "", "U")]),
        ("c.tsv", '1\tsays "a\n2\tb"\n', [("1", "", 'says "a'), ("2", "", 'b"')]),
    ],
)
def test_a_corpus_is_read_one_passage_at_a_time(tmp_path, name, content, wanted):
    path = write(tmp_path / name, content)
    assert [(p.id, p.title, p.text) for p in iter_passages(path)] == wanted
    path.write_text(content + "broken\n")
    rows = iter_passages(path)
    assert [next(rows).text for _ in wanted] == [text for *_, text in wanted]
    with pytest.raises(InputError, match=r"line [34]: "):
        next(rows)


def test_a_sample_is_reproducible_and_uniform(tmp_path):
    path = write(tmp_path / "c.jsonl", "".join(json.dumps({"id": i, "text": f"t{i}"}) + "\n" for i in range(200)))
    first = sample_passages(path, 20, seed=3)
    assert first == sample_passages(path, 20, seed=3) != sample_passages(path, 20, seed=4)
    everything = load_passages(path)
    places = [everything.index(p) for p in first]
    assert places == sorted(set(places)) and len(places) == 20
    assert sample_passages(path, 200) == sample_passages(path, 300) == everything
    drawn = np.zeros(15)
    for seed in range(4000):
        kept, total = reservoir(range(15), 4, np.random.default_rng(seed))
        assert total == 15
        drawn[kept] += 1
    expected = 4000 * 4 / 15  # each a binomial with a standard deviation of 28
    assert np.abs(drawn - expected).max() < 4 * 28
    with pytest.raises(InputError, match="count: expected an integer of at least 1, got 0"):
        sample_passages(path, 0)


def test_precomputed_hits_are_a_source(tmp_path):
    rows = [
        {"question": "Where is the Nile?", "ctxs": [{"title": "Nile", "text": "a", "score": 2}, {"text": "b"}]},
        {"query": {"text": "r"}, "candidates": [{"doc": "c", "docid": 7}]},
    ]
    path = write(tmp_path / "hits.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    source = eor.open_source(path, depth=1)
    assert isinstance(source, eor.PrecomputedHits)
    assert source(" Where is the Nile? ") == [fr.Passage("a", "Nile", score=2.0)]
    assert source("r") == [fr.Passage("c", id="7")]
    with pytest.raises(InputError, match=r"hits\.jsonl: expected hits for the question 's'"):
        source("s")
    found = eor.Retrievers(["W@1", "ReFree"], {"W": source}).retrieve(["s", "r"])
    assert "expected hits for the question 's'" in found[0].documents[0].failure
    assert [p.text for p in found[1].documents[0].passages] == ["c"]
    write(path, json.dumps(rows[0]) + "\n" + json.dumps(rows[0] | {"ctxs": []}))
    with pytest.raises(InputError, match="one list of passages for each question, got another"):
        eor.open_source(path)
    assert isinstance(eor.open_source(write(tmp_path / "c.jsonl", '{"text": "alpha"}\n')), eor.BM25)
    assert isinstance(eor.open_source(write(tmp_path / "c.tsv", "1\talpha\n")), eor.BM25)
    assert isinstance(eor.open_source(eor.build_index(corpus(3), tmp_path / "i")), eor.BM25)


def test_an_index_stays_until_the_one_that_replaces_it_is_whole(tmp_path):
    folder = eor.build_index(corpus(3), tmp_path / "i")
    broken = write(tmp_path / "broken.jsonl", '{"text": "w1"}\n{"text": 5}\n')
    with pytest.raises(InputError, match="line 2"):
        eor.build_index(broken, folder, replace=True)
    assert len(eor.BM25.load(folder).passages) == 3
    assert len(eor.BM25.load(eor.build_index(corpus(5), folder, replace=True)).passages) == 5
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="expected an index"):
        eor.build_index(corpus(3), tmp_path / "mine", replace=True)
    assert not [path for path in tmp_path.iterdir() if "making" in path.name]


@pytest.mark.parametrize(
    "text",
    [
        '{"id": "1", "text": "The Nile is long."}\n',
        '{"question": "who", "answers": ["me"]}\n',
        '{"question": "who", "answers": ["me"], "ctxs": []}\n',
        "q1 Q0 d1 1 3.5 bm25\n",
        "",
    ],
    ids=["corpus", "questions", "no hits", "run", "empty"],
)
def test_what_holds_no_hits_is_named(tmp_path, text):
    file = tmp_path / "hits.jsonl"
    file.write_text(text)
    with pytest.raises(
        InputError, match=r"hits are questions, each with the passages that a retriever found"
    ) as caught:
        eor.PrecomputedHits(file)
    assert str(file) in str(caught.value)
    with pytest.raises(InputError, match=r"hits are questions, .*path\[0\]: expected a mapping"):
        eor.PrecomputedHits(["The Nile is long."])
