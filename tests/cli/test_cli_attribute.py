"""fastreader attribute."""

import json

from helpers.commands import run

from fastreader import Attribution

ONE = ("-q", "Where is the Nile?", "-p", "The Nile is in Egypt.", "-p", "It is long.")


def test_one_question_as_a_table(model):
    out = run("attribute", "-m", model, *ONE, "-a", "Egypt").stdout
    assert out.startswith("Where is the Nile?\n") and "Shapley" in out and "answer: Egypt; all passages" in out


def test_json_is_the_result(model):
    [values] = json.loads(run("attribute", "-m", model, *ONE, "-a", "Egypt", "--format", "json").stdout)
    found = Attribution.from_dict(values)
    assert (found.answer, found.exact, found.generated, found.subsets) == ("Egypt", True, False, 4)
    how = ("--way", "sampled", "--orders", "2")
    [values] = json.loads(run("attribute", "-m", model, *ONE, "-a", "Egypt", *how, "--format", "json").stdout)
    assert not values["exact"] and len(values["shapley_error"]) == 2


def test_the_only_question_is_not_named(model):
    assert run("attribute", "-m", model, "-q", "Where?", "-a", "Peru", expect=2).stderr.startswith("error: passages:")


def test_a_question_without_passages(model, tmp_path):
    file = tmp_path / "q.jsonl"
    rows = [{"id": f"q{i}", "question": "Where?", "ctxs": [], "answers": []} for i in range(2)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("attribute", file, "-m", model, "-a", "Peru", expect=2)
    assert "id q0: passages: expected at least one passage" in done.stderr
    done = run("attribute", file, "-m", model, "-a", "Peru", "--skip-errors", "-f", "jsonl", expect=3)
    assert done.stdout == "" and "id q1" in done.stderr
