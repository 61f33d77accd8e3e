"""studies/lib/resuming.py: a stopped run makes only the rows that its log lacks."""

import gzip

import pytest
from lib.resuming import Job, append_missing, best_passages
from lib.shared import packed, rows_of

from fastreader import Example, Passage
from fastreader.errors import InputError


def test_a_stopped_run_makes_the_rows_that_its_log_lacks(tmp_path):
    log, made, prepared, fails = tmp_path / "rows.jsonl", [], [], True

    def make(name):
        if name == "c" and fails:
            raise RuntimeError("stopped")
        made.append(name)
        return {"value": name.upper()}

    def run(settings=1, digest="x"):
        jobs = [Job(name, lambda name=name: make(name), digest) for name in "abcde"]
        prepare = lambda part: prepared.append("".join(job.key for job in part))  # noqa: E731
        append_missing(log, {"s": settings}, jobs, label="rows", prepare=prepare, batch=2)

    with pytest.raises(RuntimeError, match="stopped"):
        run()
    assert [row["id"] for row in rows_of(log)] == ["a", "b"] and prepared == ["ab", "cd"]
    packed(log).write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()  # only the compressed form is left
    fails = False
    run()
    assert made == ["a", "b", "c", "d", "e"] and prepared == ["ab", "cd", "cd", "e"]
    assert [(row["id"], row["value"]) for row in rows_of(log)] == [(name, name.upper()) for name in "abcde"]
    run()
    assert len(made) == 5 and len(prepared) == 4
    with pytest.raises(InputError, match=r"made with other settings: s \(1 there, 2 now\)"):
        run(settings=2)
    with pytest.raises(InputError, match="'a' has a result already, made from another question"):
        run(digest="y")


def test_passages_are_ordered_by_score():
    passages = [Passage("a", score=1.0), Passage("b"), Passage("c", score=2.0), Passage("d", score=2.0)]
    assert [p.text for p in best_passages(Example("who?", passages))] == ["c", "d", "a", "b"]
