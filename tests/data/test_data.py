import errno
import gzip
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap

import pytest
from helpers.support import write_data as write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastreader.data import (
    Example,
    Passage,
    SkippedRows,
    iter_examples,
    load_examples,
    load_passages,
    load_questions,
    save_examples,
)
from fastreader.data import containers as reading
from fastreader.errors import InputError

DPR = {
    "question": "who wrote it",
    "answers": ["Ada"],
    "candidates": ["Ada", "Bea"],
    "id": 7,
    "nq_annotated_gold": {"title": "T"},
    "ctxs": [
        {"id": 0, "title": "One", "text": "Ada wrote it.", "score": "8.5", "hasanswer": True, "isgold": True, "n": [1]},
        {"id": "b", "title": None, "text": "Bea did not.", "score": 2, "has_answer": False, "is_gold": False},
    ],
}
FLASHRAG = {
    "id": "test_0",
    "question": "who wrote it",
    "golden_answers": ["Ada"],
    "metadata": {"type": "bridge"},
    "output": {
        "retrieval_result": [{"id": "11", "contents": '"One"\nAda wrote it.'}, {"id": 12, "contents": "Bea did not."}],
        "pred": "Bea",
    },
}
RANK_LLM = {
    "query": {"text": "who wrote it", "qid": 264, "lang": "en"},
    "candidates": [
        {"docid": "d1", "score": 14.5, "doc": {"title": "One", "segment": "Ada wrote it.", "url": "u"}},
        {"docid": 2, "score": 14.1, "doc": {"contents": "Bea did not."}},
        {"docid": "d3", "doc": "Cy was away."},
    ],
}
GOOD = json.dumps(DPR)


def test_dpr(tmp_path):
    (example,) = load_examples(write(tmp_path / "a.jsonl", GOOD))
    assert example == Example(
        "who wrote it",
        [
            Passage("Ada wrote it.", "One", "0", 8.5, True, True, {"n": [1]}),
            Passage("Bea did not.", "", "b", 2.0, False, False),
        ],
        ["Ada"],
        ["Ada", "Bea"],
        "7",
        {"nq_annotated_gold": {"title": "T"}},
    )


def test_a_title_in_quotes_survives(tmp_path):
    given = [Example("q", [Passage("t", title) for title in ('"Heroes"', '""', '"', '"a" and "b"', "")])]
    save_examples(given, tmp_path / "a.jsonl", "flashrag")
    assert load_examples(tmp_path / "a.jsonl") == given


def test_flashrag_reads_the_title_from_the_first_line(tmp_path):
    (example,) = load_examples(write(tmp_path / "a.jsonl", json.dumps(FLASHRAG)))
    assert example.passages == [
        Passage("Ada wrote it.", "One", "11"),
        Passage("Bea did not.", "", "12"),
    ]
    assert (example.id, example.answers) == ("test_0", ["Ada"])
    assert example.metadata == {"metadata": {"type": "bridge"}, "output": {"pred": "Bea"}}


def test_rank_llm(tmp_path):
    (example,) = load_examples(write(tmp_path / "a.jsonl", json.dumps(RANK_LLM)))
    assert example.passages == [
        Passage("Ada wrote it.", "One", "d1", 14.5, metadata={"doc": {"url": "u"}}),
        Passage("Bea did not.", "", "2", 14.1),
        Passage("Cy was away.", "", "d3"),
    ]
    assert (example.question, example.id, example.metadata) == ("who wrote it", "264", {"query": {"lang": "en"}})
    (bare,) = load_examples(write(tmp_path / "b.jsonl", json.dumps(RANK_LLM | {"query": "who"})))
    assert (bare.question, bare.id) == ("who", None)


@pytest.mark.parametrize("key", ["text", "segment", "contents", "content", "body", "passage"])
def test_rank_llm_keys_of_the_text(tmp_path, key):
    row = {"query": "q", "candidates": [{"docid": "1", "doc": {key: "the text"}}]}
    assert load_examples(write(tmp_path / "a.jsonl", json.dumps(row)))[0].passages[0].text == "the text"


PRETTY = json.dumps([DPR, FLASHRAG, RANK_LLM], indent=2)
LINES = "\n".join(map(json.dumps, [DPR, FLASHRAG, RANK_LLM]))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", LINES),
        ("a.jsonl", "\ufeff\r\n" + LINES.replace("\n", "\r\n\r\n") + "\r\n"),
        ("a.json", LINES),
        ("a.json", "\n" + PRETTY),
        ("a.json", json.dumps({"data": json.loads(PRETTY)})),
        ("a.json", json.dumps({"version": 1, "data": json.loads(PRETTY)}, indent=1)),
        ("a.txt", PRETTY),
        ("a.txt", LINES),
    ],
)
def test_containers(tmp_path, name, text, zipped):
    # The gzipped twin keeps the plain name: only its first bytes tell.
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    assert [len(e.passages) for e in load_examples(path)] == [2, 2, 3]
    assert [e.id for e in load_examples(path, limit=2)] == ["7", "test_0"]
    assert load_examples(path, limit=0) == []


def test_one_pretty_printed_example(tmp_path):
    assert len(load_examples(write(tmp_path / "a.json", json.dumps(DPR, indent=2)))) == 1


def test_lines_are_read_one_by_one(tmp_path):
    path = write(tmp_path / "a.jsonl", GOOD + "\n" + GOOD + "\n{broken\n")
    examples = iter_examples(path)
    assert next(examples).id == next(examples).id == "7"
    with pytest.raises(InputError, match="line 3"):
        next(examples)


def changed(row, *path, value):
    """A copy of the row with one value replaced, or one key removed when the value is `del`."""
    row = json.loads(json.dumps(row))
    *steps, last = path
    inner = row
    for step in steps:
        inner = inner[step]
    if value == "del":
        del inner[last]
    else:
        inner[last] = value
    return row


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([1], "expected an object, got a list of 1"),
        (None, "expected an object, got null"),
        ({"text": "x"}, "expected the keys question and ctxs"),
        (changed(DPR, "question", value="del"), "missing key 'question', got an object with the keys answers, "),
        ({"question": "q"}, "missing key 'ctxs', got an object with the keys question; the nearest format is Lost in"),
        (changed(DPR, "ctxs", value="x"), "ctxs: expected a list, got the string 'x'"),
        (changed(DPR, "ctxs", 1, "text", value="del"), "ctxs[1]: missing key 'text'"),
        (changed(DPR, "ctxs", 1, "text", value=" \n"), "ctxs[1].text: expected text that is not empty"),
        (changed(DPR, "ctxs", 0, "score", value="high"), "ctxs[0].score: expected a number, got the string 'high'"),
        (changed(DPR, "ctxs", 0, "score", value=float("inf")), "ctxs[0].score: expected a finite number, got"),
        (changed(DPR, "ctxs", 0, "isgold", value="gold"), "ctxs[0].isgold: expected true or false"),
        (changed(DPR, "ctxs", 0, value="x"), "ctxs[0]: expected an object, got the string 'x'"),
        (changed(DPR, "answers", value="Ada"), "answers: expected a list, got the string 'Ada'"),
        (changed(DPR, "candidates", 1, value=""), "candidates[1]: expected text that is not empty"),
        (changed(DPR, "question", value="\t"), "question: expected text that is not empty"),
        (changed(DPR, "question", value="\ud800"), "question: expected text that is valid Unicode"),
        (changed(DPR, "question", value=None), "question: expected a string, got null"),
        (changed(FLASHRAG, "output", "retrieval_result", value="del"), "output: missing key 'retrieval_result'"),
        (
            changed(FLASHRAG, "output", "retrieval_result", 0, "contents", value=" \n"),
            "output.retrieval_result[0].contents: expected text that is not empty",
        ),
        (changed(RANK_LLM, "candidates", value="del"), "missing key 'candidates'"),
        (changed(RANK_LLM, "candidates", 1, "doc", value={"title": " "}), "candidates[1].doc: missing key 'text'"),
        (changed(RANK_LLM, "query", value=3), "query: expected an object, got the number 3"),
    ],
)
def test_wrong_rows_are_named(tmp_path, row, expected):
    path = write(tmp_path / "a.jsonl", f"{GOOD}\n{json.dumps(row)}\n")
    with pytest.raises(InputError) as raised:
        load_examples(path)
    assert str(raised.value).startswith(f"{path}, line 2: {expected}")
    path = write(tmp_path / "a.json", json.dumps([DPR, DPR, row]))
    with pytest.raises(InputError) as raised:
        load_examples(path)
    assert str(raised.value).startswith(f"{path}, item 3: {expected}")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"question": "q", ', "broken JSON at column"),
        (b'{"question": "\xff"}', "expected UTF-8, got byte 0xff at offset 14"),
        (b"[" * 200_000, "broken JSON"),
        (b"\x00\x00", "broken JSON at column 1"),
    ],
)
def test_broken_lines_are_named(tmp_path, line, expected):
    path = write(tmp_path / "a.jsonl", GOOD.encode() + b"\n\n" + line + b"\n")
    with pytest.raises(InputError) as raised:
        load_examples(path)
    assert str(raised.value).startswith(f"{path}, line 3: {expected}")


def test_broken_list_is_named(tmp_path):
    path = write(tmp_path / "a.json", PRETTY.replace('"One"', "One", 1))
    with pytest.raises(InputError, match=r"a\.json: broken JSON at line \d+ column \d+"):
        load_examples(path)


def test_skipped_rows_are_counted(tmp_path):
    path = write(tmp_path / "a.jsonl", f"{{broken\n{GOOD}\n{{}}\n{GOOD}\n")
    with pytest.warns(SkippedRows, match=r"skipped 2 rows; the first: .*line 1: broken JSON") as warned:
        assert len(load_examples(path, skip_errors=True)) == 2
    assert [str(e).split(": ")[0][-6:] for e in warned[0].message.errors] == ["line 1", "line 3"]
    seen = []
    assert len(list(iter_examples(path, on_error=seen.append, limit=1))) == 1
    assert len(seen) == 1


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.gz"])
def test_truncated_gzip(tmp_path, skip, name):
    rows = [changed(DPR, "question", value=os.urandom(30).hex()) for _ in range(200)]
    text = "\n".join(map(json.dumps, rows)) if name == "a.jsonl.gz" else json.dumps(rows, indent=1)
    whole = gzip.compress(text.encode())
    for cut in (5, len(whole) // 2, len(whole) - 3):
        path = tmp_path / name
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError) as raised:
            load_examples(path, skip_errors=skip)
        assert str(raised.value).startswith(f"{path}: gzip data is truncated or damaged after line ")


def test_files_without_examples(tmp_path):
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_examples(tmp_path / "absent.jsonl")
    with pytest.raises(InputError, match="cannot be read"):
        load_examples(tmp_path)
    for text in ("", "\n \n", "[]"):
        with pytest.raises(InputError, match="at least one example"):
            load_examples(write(tmp_path / "a.json", text))
    with pytest.raises(InputError, match="expected a list of examples, got the number 3"):
        load_examples(write(tmp_path / "a.json", "3"))
    with pytest.raises(InputError, match="limit: expected an integer of at least 0 or None, got -1"):
        load_examples(tmp_path / "a.json", limit=-1)


text = st.text(min_size=1, max_size=12).filter(str.strip)
extra = st.dictionaries(
    st.text(max_size=5).map("x".__add__), st.none() | st.integers() | st.text(max_size=3), max_size=2
)
passages = st.builds(
    Passage,
    text=text,
    title=st.text(max_size=6).map(lambda t: t.replace("\n", " ")),
    id=st.none() | text,
    score=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    is_gold=st.none() | st.booleans(),
    has_answer=st.none() | st.booleans(),
    metadata=extra,
)
examples = st.lists(
    st.builds(
        Example,
        question=text,
        passages=st.lists(passages, min_size=1, max_size=3),
        answers=st.lists(text, max_size=2),
        candidates=st.lists(text, max_size=2),
        id=st.none() | text,
        metadata=extra,
    ),
    min_size=1,
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(
    examples, st.sampled_from(["dpr", "flashrag"]), st.sampled_from(["a.jsonl", "a.json", "a.jsonl.gz", "a.json.gz"])
)
def test_round_trip(tmp_path, given_examples, format, name):
    path = tmp_path / name
    save_examples(given_examples, path, format)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    assert load_examples(path) == given_examples


@pytest.mark.parametrize("row", [DPR, FLASHRAG, RANK_LLM])
@pytest.mark.parametrize("format", ["dpr", "flashrag"])
def test_every_format_survives_both_writers(tmp_path, row, format):
    first = load_examples(write(tmp_path / "a.jsonl", json.dumps(row)))
    save_examples(first, tmp_path / "b.jsonl", format)
    assert load_examples(tmp_path / "b.jsonl") == first


def test_both_spellings_of_a_judgement_survive(tmp_path):
    row = {"question": "q", "ctxs": [{"text": "t", "hasanswer": True, "has_answer": False}]}
    first = load_examples(write(tmp_path / "a.jsonl", json.dumps(row)))
    save_examples(first, tmp_path / "b.jsonl")
    assert load_examples(tmp_path / "b.jsonl") == first


def test_trec(tmp_path):
    path = tmp_path / "run.trec"
    one = Example("q", [Passage("a", id="d1", score=2.5), Passage("b", id="d2", score=1e-9)], id="q1")
    two = Example("q", [Passage("a", id="d1", score=1.0), Passage("b", id="d2", score=3.0)], id="q2")
    three = Example("q", [Passage("a", id="d1", score=1.0), Passage("b", id="d2")], id="q3")
    near = [Passage("a", id="d1", score=1 - 1e-10), Passage("b", id="d2", score=1 - 2e-10)]  # equal in float32
    save_examples([one, two, three, Example("q", near, id="q4")], path, "trec", tag="mine")
    assert path.read_text().splitlines() == [
        "q1 Q0 d1 1 2.5 mine",
        "q1 Q0 d2 2 1e-09 mine",
        "q2 Q0 d1 1 2.0 mine",
        "q2 Q0 d2 2 1.0 mine",
        "q3 Q0 d1 1 2.0 mine",
        "q3 Q0 d2 2 1.0 mine",
        "q4 Q0 d1 1 2.0 mine",
        "q4 Q0 d2 2 1.0 mine",
    ]


@pytest.mark.parametrize(
    ("example", "format", "expected"),
    [
        (
            Example("q", [Passage("a", id="d 1")], id="q"),
            "trec",
            "trec: expected a passage id without white space .*, got 'd 1'",
        ),
        (Example("q", [Passage("a", id="d")]), "trec", "a question id without white space and control .*, got None"),
        (Example("q", [Passage("a", id="d\x07")], id="q"), "trec", "a passage id without .*control characters"),
        (Example("q", [Passage("a", score=float("nan"))]), "dpr", "not JSON compliant"),
        (Example("q", [Passage("a")], metadata={"x": {1}}), "dpr", "not JSON serializable"),
        (Example("q", [Passage("a\ud800")]), "dpr", "expected text that is valid Unicode"),
        (Example("q", [Passage(" ")]), "flashrag", "contents"),
        ({"question": "q"}, "dpr", "expected an Example, got {'question'"),
        (
            Example("q", [Passage("a", metadata={"has_answer": 1})]),
            "dpr",
            "metadata: expected no key 'has_answer', which the format itself uses",
        ),
        (Example("q", [Passage("a")], metadata={"id": 1}), "dpr", "metadata: expected no key 'id', which"),
        (Example("q", [Passage("a", title="b\nc")]), "flashrag", r"title: expected one line, .* got 'b\\nc'"),
        (Example("q", [Passage("a")], metadata={"output": 1}), "flashrag", r"metadata\['output'\]: expected an object"),
    ],
)
def test_an_example_that_cannot_be_written_leaves_the_old_file(tmp_path, example, format, expected):
    path = write(tmp_path / "a.jsonl", "old")
    with pytest.raises(InputError, match=rf"^(save_examples: example 2: .*|examples\[1\]: ){expected}"):
        save_examples([Example("q", [Passage("a", id="d")], id="q"), example], path, format)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_unknown_format(tmp_path):
    with pytest.raises(InputError, match="format: expected one of dpr, flashrag, trec, got 'csv'"):
        save_examples([], tmp_path / "a.csv", "csv")


def test_replacing_the_file_being_read_keeps_its_mode_and_link(tmp_path):
    path = write(tmp_path / "a.jsonl", GOOD + "\n" + GOOD)
    path.chmod(0o640)
    (tmp_path / "link.jsonl").symlink_to(path)
    save_examples(iter_examples(tmp_path / "link.jsonl"), tmp_path / "link.jsonl")
    assert (tmp_path / "link.jsonl").is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert len(load_examples(path)) == 2


def test_full_disk_leaves_the_old_file(tmp_path):
    path = write(tmp_path / "a.jsonl", "old")
    code = """
        import sys
        from fastreader.data import Example, Passage, save_examples
        try:
            save_examples([Example("q", [Passage("text " * 4000)])] * 20, sys.argv[1])
        except OSError as error:
            print(error.errno, error.filename == sys.argv[1])
    """

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(path)], preexec_fn=limit, capture_output=True, text=True
    )
    assert done.stdout.strip() == f"{errno.EFBIG} True", done.stderr
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]


def test_no_torch():
    modules = "fastreader.data, fastreader.data.result_log, fastreader.permutations"
    code = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"question": "q", "question": "r", "ctxs": [{"text": "a"}]}', "expected each key once, got 'question' twice"),
        ('{"question": "q", "ctxs": [{"text": "a", "text": "b"}]}', "expected each key once, got 'text' twice"),
        ('{"question": "q", "ctxs": [{"text": "a", "score": true}]}', "score: expected a number, got true"),
        ('{"question": "q", "ctxs": [{"text": "a", "score": false}]}', "score: expected a number, got false"),
    ],
)
@pytest.mark.parametrize("form", ["{}\n", "[{}]"])
def test_repeated_keys_and_bools_for_numbers_are_refused(tmp_path, row, message, form):
    path = write(tmp_path / "x.json", form.replace("{}", row))
    with pytest.raises(InputError, match=message):
        load_examples(path)


def test_a_line_has_a_limit_and_gzip_cannot_get_round_it(tmp_path):
    long = json.dumps({"question": "q" * 2000, "ctxs": [{"text": "t"}]})
    short = json.dumps({"question": "q", "ctxs": [{"text": "t"}]})
    for name in ("a.jsonl", "a.jsonl.gz"):
        path = write(tmp_path / name, f"{short}\n{long}\n")
        rows = reading.lines(path, 1000)
        assert next(rows)[0] == 1
        with pytest.raises(InputError, match=rf"{re.escape(name)}, line 2: is longer than 1,000 bytes"):
            next(rows)


def test_many_bytes_from_few_are_an_error_that_names_file_and_line(tmp_path):
    """Hold no more than the limit of a small gzip that unpacks to 70 MB, as 1.5 MB may unpack to 1.5 GB."""
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=9) as out:
        out.write(b'{"question": "q"}\n')
        for _ in range(70):
            out.write(b" " * 10**6)
    assert path.stat().st_size < 100_000
    for read in (load_questions, load_examples, load_passages):
        with pytest.raises(InputError, match=r"bomb\.jsonl\.gz, line (1: |2: is longer than 67,108,864 bytes)"):
            read(path)
    with pytest.raises(InputError, match=r"bomb\.jsonl\.gz, line 2: is longer"):
        load_questions(path)


def test_a_whole_json_file_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "MAX_FILE", 1000)
    path = write(tmp_path / "a.json.gz", "[\n" + "\n" * 2000 + "]")
    with pytest.raises(InputError, match=r"a\.json\.gz: is longer than 1,000 bytes; write JSON lines"):
        load_examples(path)


def test_a_lack_of_memory_names_the_file(tmp_path, monkeypatch):
    path = write(tmp_path / "a.json", '[{"question": "q", "ctxs": [{"text": "t"}]}]')

    def exhausted(*_, **__):
        raise MemoryError

    monkeypatch.setattr(reading.json, "loads", exhausted)
    with pytest.raises(InputError, match=r"a\.json: .* bytes of JSON do not fit in memory"):
        load_examples(path)


def test_named_pipes_are_refused_and_those_of_a_shell_are_read(tmp_path):
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    for read in (load_examples, load_questions, load_passages):
        with pytest.raises(InputError, match=r"pipe\.jsonl: is a named pipe"):
            read(pipe)
    reading_end, writing_end = os.pipe()
    os.write(writing_end, b'{"question": "q"}\n')
    os.close(writing_end)
    assert [e.question for e in load_questions(f"/dev/fd/{reading_end}")] == ["q"]
    os.close(reading_end)
