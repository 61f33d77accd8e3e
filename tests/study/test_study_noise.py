"""Noise layouts in a study: draws, layouts that are left out, and the attention of the answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers.scripted import ScriptedReader
from test_study_run import Killed

from fastreader import Example, Passage, noise
from fastreader.core.protocol import Generation, Results
from fastreader.core.tree import TreeStats
from fastreader.reader.reader import Reader
from fastreader.study import RunFolder, Study, run_study
from fastreader.study.cells import questions_of
from fastreader.study.config import MethodConfig
from fastreader.study.method import Batch, NotApplicable
from fastreader.study.registry import make
from studies import rows_of, run, study_of, write


class Limited(ScriptedReader):
    """A reader with a context of `max_length` characters."""

    def __init__(self, write, max_length):
        super().__init__(write)
        self.max_length = max_length


class Saying(Reader):
    """A tree reader with a constant reply."""

    def __init__(self, reader, reply):
        self.__dict__.update(vars(reader))
        self.reply = reply

    def generate(self, prompts, *, n=1, **options):
        texts = list(prompts)
        rows = [[Generation(self.reply, [5], "eos", len(text))] for text in texts]
        return Results(rows, TreeStats(len(texts), 0, 0, 0), 1)


def pool_file(folder, count, words=2):
    file = folder / "pool.jsonl"
    file.write_text("".join(json.dumps({"text": f"Fact {i}" + " more" * words}) + "\n" for i in range(count)))
    return str(file)


def by_method(folder, question="q0"):
    return {row["method"]: row for row in rows_of(folder).values() if row["question_id"] == question}


@pytest.mark.parametrize("pool", [200, 60])
def test_fill_draws_until_the_context_is_full(tmp_path, pool):
    """About 50 passages fit: more than the first draw, and with 60 in the pool fewer than the second."""
    study = study_of(tmp_path, ["noise:random:fill:near"], 1, noise={"random": pool_file(tmp_path, pool)})
    run(study, tmp_path / "run", Limited(write, 1800))
    row = by_method(tmp_path / "run")["noise:random:fill:near"]
    count = len(row["trace"]["order"]) - 1
    assert row["left_out"] is None and 33 < count < 60
    (example,) = questions_of(study)
    reader = Limited(write, 1800)
    source = noise.DistractorPool([Passage(f"Fact {i}" + " more" * 2) for i in range(pool)])
    materials = noise.gather(example, random=source, random_count=59)
    (asked,) = noise.ask(reader, [materials], ["random:fill:near"])
    assert len(asked.answers["random:fill:near"].kinds) == count + 1


def test_a_small_pool_leaves_out_only_layouts_that_need_more(tmp_path):
    methods = ["noise:closed_book", "noise:gold", "noise:random:2:near", "noise:random:4:near", "noise:random:fill:far"]
    study = study_of(tmp_path, methods, 1, noise={"random": pool_file(tmp_path, 3)})
    done = run(study, tmp_path / "run", Limited(write, 1800))
    rows = by_method(tmp_path / "run")
    assert done.failed == 0 and done.left_out == 2
    assert [m for m in methods if rows[m]["answer"] is None] == methods[3:]
    assert "only 3 of 3" in rows[methods[3]]["left_out"] and "all 3 random passages" in rows[methods[4]]["left_out"]


def test_fill_of_a_reader_without_a_length_is_left_out(tmp_path):
    done = run(study_of(tmp_path, ["noise:random:fill:near", "noise:gold"], 1), tmp_path / "run")
    assert (done.failed, done.left_out) == (0, 1)
    assert "does not say how long" in by_method(tmp_path / "run")["noise:random:fill:near"]["left_out"]


def test_the_closed_book_needs_no_passages():
    (closed, gold) = (
        make(MethodConfig(method=m), Study.of({"data": "q.jsonl", "methods": [m]}))
        for m in ("noise:closed_book", "noise:gold")
    )
    asked = Batch(ScriptedReader(), [Example("Who?", [], ["a"], id="q")], 0, [], models=None)
    assert closed.layout(asked, asked.examples[0]).passages == ()
    with pytest.raises(NotApplicable, match="has no passages"):
        gold.layout(asked, asked.examples[0])


def test_prompts_over_the_context_have_a_count_of_their_own(tmp_path):
    study = study_of(tmp_path, ["noise:gold", "noise:random:4:near"], 3, gold=True)
    done = run(study, tmp_path / "run", Limited(write, 300))
    rows = by_method(tmp_path / "run")
    long = rows["noise:random:4:near"]
    assert (done.over_long, done.left_out, done.failed) == (3, 3, 0)
    assert long["over_long"] > 300 - 15 + 1 and "no room for a reply in 300 tokens" in long["left_out"]
    assert rows["noise:gold"]["over_long"] is None and rows["noise:gold"]["answer"]


def test_random_passages_do_not_depend_on_the_order_of_layouts(tmp_path):
    for name, methods in (("a", ["noise:random:1:near", "noise:random:3:near"]), ("b", ["noise:random:3:near"])):
        (tmp_path / name).mkdir()
        run(study_of(tmp_path / name, methods), tmp_path / name / "run")
    one, other = (by_method(tmp_path / name / "run")["noise:random:3:near"]["trace"]["order"] for name in "ab")
    assert one == other
    assert by_method(tmp_path / "a" / "run")["noise:random:1:near"]["trace"]["order"][0] == one[0]


def test_hard_distractors_come_from_the_pools_titles_too(tmp_path):
    file = tmp_path / "pool.jsonl"
    file.write_text(json.dumps({"title": "T00", "text": "Of the same title."}) + "\n")
    study = study_of(tmp_path, ["noise:hard:2:near"], 3, noise={"random": str(file)})
    run(study, tmp_path / "run")
    order = by_method(tmp_path / "run")["noise:hard:2:near"]["trace"]["order"]
    assert "Of the same title." in [entry.get("text") for entry in order]


def attended(tmp_path, reader, **more):
    methods = ["noise:closed_book", "noise:gold", "noise:random:2:near", "noise:random:fill:near"]
    methods += [{"method": "noise:gold", "name": "again", "max_new_tokens": 2}]
    return study_of(
        tmp_path, methods, 2, noise={"attention": 1, "random": pool_file(tmp_path, 300, words=9), **more}
    ), methods


def test_attention_is_that_of_the_reply_with_its_white_space(tmp_path, tiny_reader):
    reader = Saying(tiny_reader, " a0\n")
    study, _ = attended(tmp_path, reader)
    run(study, tmp_path / "run", reader)
    row = by_method(tmp_path / "run")["noise:gold"]
    assert row["answer"] == "a0" and row["trace"]["reply"] == " a0\n"
    found = {r["method"]: r for r in RunFolder(tmp_path / "run").attention()}
    assert set(found) == {"noise:gold", "noise:random:2:near", "noise:random:fill:near", "again"}
    assert {r["question_id"] for r in found.values()} == {"q0"} and all(r["error"] is None for r in found.values())
    materials = noise.gather(questions_of(study)[0])
    wanted = noise.answer_attention(tiny_reader, materials, {"gold": " a0\n"})["gold"]
    stripped = noise.answer_attention(tiny_reader, materials, {"gold": "a0"})["gold"]
    for label in ("noise:gold", "again"):
        taken = noise.AnswerAttention.from_dict(found[label]["attention"])
        assert taken.answer_tokens == wanted.answer_tokens != stripped.answer_tokens
        np.testing.assert_allclose(taken.entropy, wanted.entropy, rtol=1e-4)
    order = by_method(tmp_path / "run")["noise:random:fill:near"]["trace"]["order"]
    assert found["noise:random:fill:near"]["attention"]["kinds"] == [entry["kind"] for entry in order]


def test_attention_is_over_the_passages_that_were_read(tmp_path, tiny_reader, monkeypatch):
    """A study with more questions would draw other passages."""
    reader, looked = Saying(tiny_reader, " a0"), {}

    def look(reader, question, answers, **options):
        looked[question] = answers
        return noise.attention.layout_attention(reader, question, answers, **options)

    monkeypatch.setattr("fastreader.study.extras.layout_attention", look)
    run(study_of(tmp_path, ["noise:random:2:near"], limit=2), tmp_path / "run", reader)
    run(study_of(tmp_path, ["noise:random:2:near"], noise={"attention": 1}), tmp_path / "run", reader, resume=True)
    ((laid, reply),) = looked["Question 0?"].values()
    read = by_method(tmp_path / "run")["noise:random:2:near"]["trace"]["order"]
    own = questions_of(study_of(tmp_path, ["base"]))[0].passages
    assert reply == " a0" and [str(kind) for kind in laid.kinds] == [entry["kind"] for entry in read]
    assert [p.text for p in laid.passages] == [own[e["index"]].text if "index" in e else e["text"] for e in read]


def test_an_empty_reply_does_not_affect_other_layouts(tmp_path, tiny_reader):
    class Silent(Saying):
        def generate(self, prompts, *, max_new_tokens, **options):
            found = super().generate(prompts, **options)
            if max_new_tokens == 2:  # the method "again"
                found = Results([[Generation(" ", [5], "eos", 9)] for _ in found], found.stats, 1)
            return found

    reader = Silent(tiny_reader, "a0")
    run(attended(tmp_path, reader)[0], tmp_path / "run", reader)
    found = {r["method"]: r for r in RunFolder(tmp_path / "run").attention()}
    assert found["again"]["error"] == "the reply is empty" and found["again"]["attention"] is None
    assert [label for label, row in found.items() if row["attention"]] == [
        "noise:gold",
        "noise:random:2:near",
        "noise:random:fill:near",
    ]


def test_a_reply_past_the_context_does_not_affect_other_layouts(tmp_path, tiny_reader):
    reader = Saying(tiny_reader, " a0" * 40)  # as texts whose tokens are more when read than when written
    study, _ = attended(tmp_path, reader)
    run(study, tmp_path / "run", reader)
    found = {r["method"]: r for r in RunFolder(tmp_path / "run").attention()}
    over = found.pop("noise:random:fill:near")
    assert over["attention"] is None and "tokens" in over["error"]
    assert len(found) == 3 and all(row["attention"] for row in found.values())
    assert run(study, tmp_path / "run", reader, resume=True).fresh == 0


def test_a_run_killed_while_recording_attention_resumes(tmp_path, tiny_reader, monkeypatch):
    reader = Saying(tiny_reader, " a0")
    study, _ = attended(tmp_path, reader)

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr("fastreader.study.run.write_attention", killed)
        with pytest.raises(Killed):
            run(study, tmp_path / "run", reader)
    assert RunFolder(tmp_path / "run").attention() == []
    done = run(study, tmp_path / "run", reader, resume=True)
    assert done.fresh == 0 and len(RunFolder(tmp_path / "run").attention()) == 4
    nothing = run_study(study, tmp_path / "run", resume=True, load=lambda name: pytest.fail("not needed"))
    assert nothing.fresh == 0
    more = Study.of({**study.to_dict(), "noise": {**study.noise.model_dump(), "attention": 2}})
    run(more, tmp_path / "run", reader, resume=True)
    rows = RunFolder(tmp_path / "run").attention()
    assert len(rows) == 8 and {row["question_id"] for row in rows} == {"q0", "q1"}


def test_attention_of_chosen_layouts_only(tmp_path, tiny_reader):
    reader = Saying(tiny_reader, " a0")
    run(attended(tmp_path, reader, attention_layouts=["random:2:near"])[0], tmp_path / "run", reader)
    assert [row["layout"] for row in RunFolder(tmp_path / "run").attention()] == ["random:2:near"]
