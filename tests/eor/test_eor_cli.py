"""fastreader vote and fastreader eor, in this process."""

import json
import shutil
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from eor_cases import WEB, WIKI, passage_file, simulate
from helpers.commands import run
from helpers.forks import Forked
from helpers.support import byte_tokenizer, tiny_llama

from fastreader.data.result_log import iter_results
from fastreader.eor import Answers, Voter, correctness


@pytest.fixture
def answers(tmp_path):
    texts, _ = simulate(0, 40, [0.6, 0.5, 0.5])
    rows = [Answers(f"q{i}", ["A", "B@2", "ReFree"], [*row], right=["right"], id=str(i)) for i, row in enumerate(texts)]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row.to_dict()) + "\n" for row in rows))
    return file, rows


def test_vote(answers):
    file, rows = answers
    lines = [json.loads(line) for line in run("vote", file, "-f", "jsonl").stdout.splitlines()]
    expected = Voter().vote(rows)
    assert [line["answer"] for line in lines] == [vote.answer for vote in expected]
    assert lines[0] == {"id": "0", "question": "q0", "retrievers": ["A", "B@2", "ReFree"], **expected[0].to_dict()}
    assert json.loads(run("vote", file, "-f", "json").stdout) == lines
    table = run("vote", file, "--pooling", "max", "-s", "exact:equal").stdout
    assert "q39" in table and "B@2" in table


def test_vote_prints_accuracy_and_win_ratios(tmp_path):
    file = tmp_path / "answers.jsonl"
    right = {"A": (1, 1, 1, 0), "B": (1, 0, 0, 0)}  # a tie of two answers goes to the first retriever
    rows = [
        Answers(
            f"q{i}",
            list(right),
            [("yes" if each[i] else f"yes indeed {name}") for name, each in right.items()],
            right=["Yes!"],
        )
        for i in range(4)
    ]
    rows.append(Answers("no right answer", list(right), ["yes", "yes"]))
    file.write_text("".join(json.dumps(row.to_dict()) + "\n" for row in rows))

    def cells(text):
        return [[cell.strip() for cell in line.strip("│\n").split("│")] for line in text.splitlines() if "│" in line]

    table = run("vote", file).stdout.partition("em on 4 questions with right answers")[2]
    expected = [
        ["A", "0.750", "0.000", "0.667"],
        ["B", "0.250", "0.667", "0.000"],
        ["the vote", "0.750", "0.000", "0.333"],
    ]
    assert cells(table) == expected
    done = run("vote", file, "-f", "jsonl")
    assert cells(done.stderr) == expected and len(done.stdout.splitlines()) == 5
    assert ["A", "0.917", "", ""] in cells(run("vote", file, "--metric", "f1").stdout)  # graded


def test_vote_fits_saves_and_loads_weights(answers, tmp_path):
    file, rows = answers
    voter = tmp_path / "voter.json"
    done = run("vote", file, "--fit", "--save", voter, "-f", "jsonl")
    fitted = Voter().fit(rows, correctness(rows))
    assert [json.loads(line)["answer"] for line in done.stdout.splitlines()] == fitted.predict(rows).tolist()
    assert f"{fitted.fit_report_.objective:.3f}" in done.stderr and "weights: " in done.stderr
    again = run("vote", file, "--voter", voter, "-f", "jsonl")
    assert again.stdout == done.stdout


def test_vote_reports_why_it_abstained(tmp_path):
    file = tmp_path / "answers.jsonl"
    file.write_text('{"question": "q", "predictions": {"A": "", "B": null}}\n')
    assert "all answers are empty or refusals" in run("vote", file).stdout


def test_brackets_are_not_markup(tmp_path):
    file = tmp_path / "answers.jsonl"
    rows = [{"question": "what is [/b] in [i]html[/i]?", "predictions": {"A[1]": "[u]nder", "B": "[u]nder"}}]
    file.write_text(json.dumps(rows[0]) + "\n")
    table = run("vote", file).stdout
    assert all(text in table for text in ("what is [/b] in [i]html[/i]?", "[u]nder", "A[1]"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--save", "x.json"], "--fit"),
        (["--fit", "--seed", "-1"], "--seed: expected an integer of at least 0, got -1"),
        (["--voter", "x.json", "--fit"], "--voter"),
        (["--voter", "x.json", "--pooling", "max"], "--voter"),
        (["--voter", "none.json"], "none.json"),
        (["--pooling", "median"], "median"),
        (["-s", "odd"], "odd"),
        (["--min-support", "nan"], "--min-support"),
        (["--fit", "--metric", "bleu"], "--metric"),
        (["--fit", "--save", "none/x.json"], "no folder none"),
        (["--fit", "--save", "."], "is a folder"),
        (["-s", "nli:reader"], "--model"),
        (["--model", "smollm2-135m"], "nli:reader"),
    ],
)
def test_vote_rejects_invalid_options(answers, arguments, expected):
    assert expected in run("vote", answers[0], *arguments, expect=2).stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "at least one question"),
        ("[]\n", "line 1"),
        ('{"question": "q", "predictions": {"A": "x", "B": "y"}}\n{"question": "q"}\n', "line 2"),
        ('{"question": "q", "predictions": {"A": "x"}}\n', "at least 2 retrievers"),
        ("{\n", "line 1"),
    ],
)
def test_vote_rejects_invalid_files(tmp_path, text, expected):
    file = tmp_path / "answers.jsonl"
    file.write_text(text)
    assert expected in run("vote", file, expect=2).stderr


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    tiny_llama().save_pretrained(folder / "model")
    byte_tokenizer(chat=True).save_pretrained(folder / "model")
    short = [(i, t, " ".join(x.split()[:20])) for i, t, x in WEB]
    questions = folder / "questions.jsonl"
    questions.write_text(
        "".join(json.dumps({"question": f"Which river is {i} in Cairo?", "answers": ["Nile"]}) + "\n" for i in range(5))
    )
    return SimpleNamespace(
        questions=questions,
        options=[
            *("--model", folder / "model"),
            *("--source", f"SE={passage_file(folder / 'web.jsonl', short)}"),
            *("--source", f"Wiki={passage_file(folder / 'wiki.jsonl', WIKI)}"),
            *("--max-new-tokens", 4),
        ],
    )


def test_eor_writes_answers_and_votes_and_resumes(world, tmp_path):
    specs = ("-r", "Wiki@2", "-r", "SE@1&Wiki@1", "-r", "SE@RR@1", "-r", "ReFree")
    output = tmp_path / "out.jsonl"
    arguments = ("eor", world.questions, *world.options, *specs, "-o", output, "--keep-documents", "--batch-size", 2)
    assert "3 answered now, 3 in" in run(*arguments, "--limit", 3).stderr
    done = run(*arguments, "--resume")
    assert "2 answered now, 5 in" in done.stderr and done.stdout == ""
    rows = [Answers.from_dict(row) for row in iter_results(output)]
    assert [row.id for row in rows] == ["0", "1", "2", "3", "4"]
    assert rows[0].retrievers == ["Wiki@2", "SE@1&Wiki@1", "SE@RR@1", "ReFree"] and rows[0].right == ["Nile"]
    assert [len(d.passages) for d in rows[0].documents] == [2, 2, 1, 0]
    votes = [row["vote"]["answer"] for row in iter_results(output)]
    assert votes == Voter().predict(rows).tolist()

    whole = tmp_path / "whole.jsonl"
    run("eor", world.questions, *world.options, *specs, "-o", whole, "--keep-documents", "--batch-size", 5)
    assert [row["predictions"] for row in iter_results(whole)] == [row["predictions"] for row in iter_results(output)]
    assert "retrievers" in run(*arguments, "--resume", "-r", "PK", expect=2).stderr
    assert "keep_documents" in run(*arguments, "--resume", "--no-keep-documents", expect=2).stderr
    other = tmp_path / "other.jsonl"
    other.write_text(world.questions.read_text().replace("Nile", "Seine"))
    assert "'0' has a result already" in run("eor", other, *arguments[2:], "--resume", expect=2).stderr
    voted = run("vote", output, "-f", "jsonl")
    assert [json.loads(line)["answer"] for line in voted.stdout.splitlines()] == votes


def test_eor_resumes_only_with_the_same_passages(world, tmp_path):
    web, elsewhere, output = tmp_path / "web.jsonl", tmp_path / "moved.jsonl", tmp_path / "out.jsonl"
    passage_file(web, WIKI)
    arguments = ["eor", world.questions, *world.options[:2], "--source", f"SE={web}", *world.options[-2:], "-o", output]
    run(*arguments, "--limit", 1)
    shutil.copy(web, elsewhere)
    arguments[5] = f"SE={elsewhere}"
    assert "1 answered now, 2 in" in run(*arguments, "--limit", 2, "--resume").stderr
    passage_file(elsewhere, WIKI[:-1])
    refused = run(*arguments, "--limit", 3, "--resume", expect=2).stderr
    assert f"--source: SE: {elsewhere} holds other passages than when {output} was started" in refused
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    for row in rows:
        row["settings"]["sources"]["SE"] = str(web)
    output.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert f"records only the path of its passages ({web})" in run(*arguments, "--resume", expect=2).stderr


def test_eor_hides_index_progress(world, tmp_path):
    done = Forked(("eor", world.questions, *world.options, "--limit", 1))
    assert done.wait() == 0 and "it/s]" not in done.stderr, done.stderr


def test_eor_to_standard_output_with_a_fit(world, tmp_path):
    voter = tmp_path / "voter.json"
    done = run(
        "eor", world.questions, *world.options, "--fit", "--metric", "f1", "--save", voter, "-f", "jsonl", "--limit", 2
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["retrievers"] for line in lines] == [["SE@5", "Wiki@5", "ReFree"]] * 2
    assert "weights: " in done.stderr
    assert np.isfinite(Voter.load(voter).retriever_weights_).all()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--source", "SE"], "NAME=FILE"),
        ([], "at least one NAME=FILE, or --retriever at least twice"),
        (["--source", "SE=none.jsonl"], "no such file"),
        (["--resume"], "--output"),
        (["-r", "SE@1"], "at least 2"),
    ],
)
def test_eor_rejects_invalid_options(world, arguments, expected):
    assert expected in run("eor", world.questions, *arguments, expect=2).stderr


def test_eor_rejects_invalid_retrievers(world):
    assert "^" in run("eor", world.questions, *world.options, "-r", "SE@", "-r", "PK", expect=2).stderr
    assert "'HTTP'" in run("eor", world.questions, *world.options, "-r", "HTTP@1", "-r", "PK", expect=2).stderr


class Loaded(Exception):
    """Raised when the model would be loaded."""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--fit", "--metric", "exactly"], "--metric: expected one of em, f1, contained"),
        (["--fit", "--save", "none/voter.json"], "--save: no folder none"),
        (["--fit", "--seed", "-1"], "--seed: expected an integer of at least 0, got -1"),
        (["--source", "W=broken.jsonl"], "broken.jsonl, line 1"),
        (["-r", "HTTP@1", "-r", "PK"], "'HTTP'"),
        (["-r", "SE@1", "-r", "SE@1"], "each retriever once"),
        (["-r", "SE@", "-r", "PK"], "^"),
        (["--source", "SE=questions.jsonl"], "SE came twice"),
        (["--texts", "none.json"], "texts"),
        (["-s", "odd"], "'odd'"),
        (["-s", "f1", "-s", "bertscore:/none"], "--similarity: bertscore:/none: there is no folder /none"),
        (["-s", "nli:none/of/these"], "--similarity: nli:none/of/these: there is no folder none/of/these"),
        (["-s", "nli:reader", "-s", "bertscore:empty"], "bertscore:empty: the folder empty has no config.json"),
        (["--voter", "moved.json"], "--voter: bertscore:/moved: there is no folder /moved"),
        (["--pooling", "median"], "median"),
        (["--voter", "other.json"], "--voter: expected one fitted on SE@5, Wiki@5, ReFree, got 'A, B'"),
        (["--voter", "changed.json"], "f1 was saved with"),
        (
            ["--voter", "two.json"],
            "--voter: expected one fitted on the 3 retrievers SE@5, Wiki@5, ReFree, got [1.0, 1.0]",
        ),
        (
            ["--voter", "unnamed.json"],
            "--voter: expected one fitted on the 3 retrievers SE@5, Wiki@5, ReFree, got [0.6, 0.0]",
        ),
        (["unanswered.jsonl", "--fit"], "--fit: needs right answers, and got none for 'q0'"),
    ],
)
@pytest.mark.long(keep=6)
def test_eor_checks_options_before_loading_the_model(world, tmp_path, monkeypatch, arguments, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unanswered.jsonl").write_text('{"question": "q0"}\n')
    (tmp_path / "questions.jsonl").write_text("")
    (tmp_path / "broken.jsonl").write_text("no JSON\n")
    fitted = Voter().fit([Answers("q", ["A", "B"], ["x", "y"])] * 2, [[1, 0]] * 2).to_dict()
    (tmp_path / "other.json").write_text(json.dumps(fitted))
    changed = Voter().to_dict() | {"similarity_settings": [{"match": "contains"}, {"n": 2}]}
    changed["similarity_settings"][0] = Voter().to_dict()["similarity_settings"][0]
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    Voter(retriever_weights=[1, 1]).save(tmp_path / "two.json")
    Voter(["bertscore:/moved"]).save(tmp_path / "moved.json")
    (tmp_path / "empty").mkdir()
    Voter().fit([["x", "y"]] * 2, [[1, 0]] * 2).save(tmp_path / "unnamed.json")
    questions = arguments.pop(0) if arguments[0].endswith(".jsonl") else world.questions
    monkeypatch.setattr("fastreader.reader.reader.Reader.load", mock.Mock(side_effect=Loaded))
    assert expected in run("eor", questions, *world.options, *arguments, expect=2).stderr


def test_eor_with_weights_support_and_texts(world, tmp_path):
    specs = ("-r", "Wiki@2", "-r", "SE@1", "-r", "ReFree")
    rows = [Answers("q", ["ReFree", "Wiki@2", "SE@1"], ["x", "y", "y"])] * 2
    weights, texts = tmp_path / "voter.json", tmp_path / "texts.json"
    voter = Voter(min_support=0.99).fit(rows, [[1, 0, 0]] * 2)
    voter.save(weights)
    texts.write_text('{"answer_lead": "Answer:"}')
    output = tmp_path / "out.jsonl"
    arguments = ("eor", world.questions, *world.options, *specs, "--limit", 2, "--voter", weights, "--texts", texts)
    run(*arguments, "-o", output)
    found = [Answers.from_dict(row) for row in iter_results(output)]
    assert [row["vote"]["answer"] for row in iter_results(output)] == voter.predict(found).tolist()
    settings = next(iter(iter_results(output)))["settings"]
    assert settings["texts"]["answer_lead"] == "Answer:" and settings["voter"]["weights"]["fitted"]
    above = run(*arguments, "--min-support", "0.0", "-f", "jsonl")
    below = run(*arguments, "--min-support", "1.1", "-f", "jsonl")
    assert {json.loads(line)["abstained"] for line in below.stdout.splitlines()} >= {
        "the best answer's support is below 1.1"
    }
    assert "support is below" not in above.stdout


def test_reader_entailment_and_its_saved_voter(world, tmp_path):
    model = world.options[1]
    output, voter = tmp_path / "out.jsonl", tmp_path / "voter.json"
    arguments = ("eor", world.questions, *world.options, "-s", "nli:reader", "-s", "f1", "--limit", 3)
    run(*arguments, "-o", output, "--fit", "--metric", "f1", "--save", voter)
    rows = [row["vote"] for row in iter_results(output)]
    assert all(vote["similarities"] == ["nli:reader", "f1"] for vote in rows)
    again = run("vote", output, "-s", "nli:reader", "-s", "f1", "--model", model, "-f", "jsonl")
    votes = [json.loads(line) for line in again.stdout.splitlines()]
    assert [vote["answer"] for vote in votes] == [vote["answer"] for vote in rows]
    fitted = run("vote", output, "--voter", voter, "--model", model, "-f", "jsonl")
    assert len(fitted.stdout.splitlines()) == 3
    assert "--model" in run("vote", output, "--voter", voter, expect=2).stderr


def test_fit_that_learns_nothing_warns(tmp_path):
    file = tmp_path / "answers.jsonl"
    for texts, right, expected in (
        (
            ["it may be the Nile", "so it is the Nile"],
            "Nile",
            "no answer is right by em. If answers are long",
        ),
        (["Nile", "nile"], "Nile", "no question has answers that differ by em"),
    ):
        row = Answers("q", ["A", "B"], texts, right=[right])
        file.write_text(json.dumps(row.to_dict()) + "\n")
        assert f"warning: nothing was learned; {expected}" in run("vote", file, "--fit").stderr
    file.write_text(json.dumps(Answers("q", ["A", "B"], ["x", "y"]).to_dict()) + "\n")
    assert "--fit: needs right answers" in run("vote", file, "--fit", expect=2).stderr


def test_vote_on_rows_in_other_orders(answers, tmp_path):
    file, rows = answers
    mixed = tmp_path / "mixed.jsonl"
    turned = [row.select(row.retrievers[::-1]) if i % 2 else row for i, row in enumerate(rows)]
    mixed.write_text("".join(json.dumps(row.to_dict()) + "\n" for row in turned))
    assert run("vote", mixed, "--fit", "-f", "jsonl").stdout == run("vote", file, "--fit", "-f", "jsonl").stdout


def test_sources_are_hits_indexes_and_corpora(world, tmp_path):
    """Use a source of each kind in one run, and compare what an index holds when the run is resumed."""
    questions = [json.loads(line)["question"] for line in world.questions.read_text().splitlines()]
    hits = tmp_path / "hits.jsonl"
    rows = [
        {"question": q, "answers": ["Nile"], "contexts": [{"docid": "7", "text": '"Hit"\nNile'}]} for q in questions
    ]
    hits.write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    corpus, index = passage_file(tmp_path / "wiki.jsonl", WIKI), tmp_path / "index"
    assert f"indexed {len(WIKI)} passages in {index}" in run("index", corpus, index).stderr
    assert "exists; --force replaces an index" in run("index", corpus, index, expect=2).stderr
    assert "expected an index" in run("index", corpus, tmp_path, "--force", expect=2).stderr
    output = tmp_path / "out.jsonl"
    kinds = [("--source", f"{name}={path}") for name, path in (("H", hits), ("I", index), ("C", corpus))]
    sources = [text for pair in kinds for text in pair]
    arguments = ["eor", world.questions, *world.options[:2], *sources, "--max-new-tokens", 2, "-o", output]
    run(*arguments, "--keep-documents", "--limit", 3)
    first, _, third = (Answers.from_dict(row) for row in iter_results(output))
    held = [[(p.title, p.id) for p in d.passages] for d in first.documents]
    assert held[0] == [("Hit", "7")] and held[1] == held[2] != []
    assert "expected hits for the question" in third.documents[0].failure
    run("index", passage_file(tmp_path / "other.jsonl", WIKI[:2]), index, "--force")
    refused = run(*arguments, "--keep-documents", "--resume", expect=2).stderr
    assert f"--source: I: {index} holds other passages than when {output} was started" in refused
