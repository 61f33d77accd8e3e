"""fastreader conflicts."""

import json

from helpers.commands import run

from fastreader.passages.conflicts import Conflicts

ONE = ("-q", "Where is the Nile?", "-p", "The Nile is in Egypt.", "-p", "The Nile is in Peru.", "-p", "Cats sleep.")
GIVEN = ("-c", "Egypt", "-c", "Peru")


def test_one_question_as_a_table(model):
    out = run("conflicts", "-m", model, *ONE, *GIVEN).stdout
    assert out.startswith("Where is the Nile?\n") and "pulls towards" in out
    assert "passage 1 is the odd one" in out or "passage 2 is the odd one" in out


def test_json_is_the_result(model):
    [values] = json.loads(run("conflicts", "-m", model, *ONE, *GIVEN, "--format", "json").stdout)
    found = Conflicts.from_dict(values)
    assert found.candidates == ["Egypt", "Peru"] and found.claims == [0, 1, None] and not found.proposed
    assert values["odd"] == found.odd and values["texts"][2] == [None, None]
    [values] = json.loads(run("conflicts", "-m", model, *ONE, "--format", "json").stdout)
    assert values["proposed"] and "Egypt" in values["candidates"]


def test_a_question_that_cannot_be_compared(model, tmp_path):
    file = tmp_path / "q.jsonl"
    rows = [{"id": f"q{i}", "question": "Where?", "ctxs": [{"text": "In Peru."}], "answers": []} for i in range(2)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("conflicts", file, "-m", model, "-c", "Peru", expect=2)
    assert "id q0: candidates: expected two or more that differ" in done.stderr
    done = run("conflicts", file, "-m", model, "-c", "Peru", "--skip-errors", "-f", "jsonl", expect=3)
    assert done.stdout == "" and "id q1" in done.stderr


def test_aliases(model):
    out = run("conflicts", "-m", model, *ONE, *GIVEN, "--alias", "Peru=Cats", "--alias", "Peru=the Andes", "-f", "json")
    [values] = json.loads(out.stdout)
    assert values["stated"] == [[1, 0], [0, 1], [0, 1]]
    assert "--alias: expected CANDIDATE=NAME, got 'Peru'" in run(
        "conflicts", "-m", model, *ONE, *GIVEN, "--alias", "Peru", expect=2
    ).stderr  # fmt: skip
    done = run("conflicts", "-m", model, *ONE, *GIVEN, "--alias", "Rome=Roma", expect=2)
    assert "aliases: expected candidates as keys" in done.stderr
