"""A data frame yields its columns' names, so that no function may take one for a list."""

import pytest

import fastreader as fr
from fastreader import sure
from fastreader.data.documents import as_passages
from fastreader.errors import InputError
from fastreader.passages.arrange import Arranger

pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")
ROWS = [{"text": "The Nile is in Cairo.", "title": "a"}, {"text": "Cats.", "title": "b"}]
FRAMES = {"pandas": pd.DataFrame(ROWS), "pyarrow": pa.Table.from_pylist(ROWS)}
CALLS = {
    "as_passages": lambda frame, reader: as_passages(frame),
    "rerank": lambda frame, reader: fr.rerank(reader, "q", frame),
    "rerank questions": lambda frame, reader: fr.rerank(reader, frame),
    "rerank lists": lambda frame, reader: fr.rerank(reader, ["q", "r"], frame),
    "rerank list of frames": lambda frame, reader: fr.rerank(reader, ["q"], [frame]),
    "score_permutations": lambda frame, reader: fr.score_permutations(reader, "q", frame, ["a"]),
    "candidates": lambda frame, reader: fr.score_permutations(reader, "q", ["p"], frame),
    "conflicts": lambda frame, reader: fr.conflicts(reader, "q", frame, ["a", "b"]),
    "conflicts candidates": lambda frame, reader: fr.conflicts(reader, "q", ["p"], frame),
    "arrange": lambda frame, reader: fr.arrange(frame, Arranger({2: [0.5, -0.5]})),
    "sure": lambda frame, reader: sure.answer(reader, "q", frame),
    "moi": lambda frame, reader: fr.moi.rerank(reader, "q", frame),
    "loglikelihood": lambda frame, reader: reader.loglikelihood(frame),
    "load_examples": lambda frame, reader: fr.load_examples(frame),
    "Example": lambda frame, reader: fr.Example("q", frame),
    "generate": lambda frame, reader: reader.generate(frame),
}


@pytest.mark.parametrize("library", FRAMES)
@pytest.mark.parametrize("call", CALLS)
def test_data_frames_are_refused_with_the_way_to_pass_their_rows(tiny_reader, call, library):
    with pytest.raises(InputError, match=r"expected .*list.*got a (DataFrame|Table); pass .*df.to_dict\('records'\)"):
        CALLS[call](FRAMES[library], tiny_reader)


def test_rows_and_columns_of_a_frame_are_lists(tiny_reader):
    frame = FRAMES["pandas"]
    assert [p.title for p in as_passages(frame.to_dict("records"))] == ["a", "b"]
    assert [p.text for p in as_passages(frame["text"])] == [row["text"] for row in ROWS]
    assert len(fr.rerank(tiny_reader, "q", frame["text"])) == 2
