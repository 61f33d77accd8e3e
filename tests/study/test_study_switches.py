"""Settings that the papers' replications need: candidates, scorers, prompts, stop texts, penalties, corpus ids."""

import json

import numpy as np
import pytest
from helpers.scripted import ScriptedReader
from helpers.support import byte_tokenizer, tiny_llama
from typer.testing import CliRunner

from fastreader import Reader, cli, load_examples, moi, score_permutations
from fastreader.data import Example, Passage
from fastreader.errors import InputError
from fastreader.noise import NoiseTemplate, ask, gather
from fastreader.reader.prompts.template import Template
from fastreader.scoring.reading import read
from fastreader.study import RunFolder, Study, run_study
from fastreader.study.registry import check
from studies import data, rows_of, run, study_of, write

LABELS = ["SUPPORTS", "REFUTES"]


@pytest.fixture(scope="module")
def other():
    return Reader.load((tiny_llama(7), byte_tokenizer(chat=True)), device="cpu", precision="exact")


def answered(tmp_path, reader, methods, **more):
    study = study_of(tmp_path, methods, count=2, passages=3, max_new_tokens=3, **more)
    load = reader if callable(reader) and not isinstance(reader, Reader) else lambda _: reader
    done = run_study(study, tmp_path / "run", load=load, progress=False)
    assert done.failed == 0, [row["error"] for row in rows_of(tmp_path / "run").values()]
    return study, list(rows_of(tmp_path / "run").values())


# Candidates: FEVER's labels.

CHOOSING = ["base", "closed_book", "rerank", "order:qg", "moi:paper", "self-consistency", "moi"]


@pytest.mark.parametrize("own", [False, True])
def test_methods_choose_the_likeliest_candidate(tmp_path, tiny_reader, own):
    study = study_of(tmp_path, CHOOSING, count=2, passages=3, candidates="rows" if own else LABELS)
    rows = [json.loads(line) for line in open(study.data)]  # noqa: SIM115, PTH123
    if own:
        rows = [{**row, "candidates": [*LABELS, "NOT ENOUGH"][: 2 + i]} for i, row in enumerate(rows)]
    done = run_study(study, tmp_path / "run", load=lambda _: tiny_reader, progress=False, questions=rows)
    assert done.failed == 0
    for row in RunFolder(tmp_path / "run").rows():
        question = next(q for q in rows if q["id"] == row["question_id"])
        chosen = question.get("candidates", LABELS)
        assert row["answer"] in chosen, row["method"]
        if row["method"] in ("base", "order:qg", "moi", "rerank"):
            passages = [
                Passage(question["ctxs"][i]["text"], question["ctxs"][i]["title"]) for i in row["trace"]["order"]
            ]
            wanted = read(tiny_reader, Example(question["question"], passages), candidates=chosen)
            assert row["answer"] == wanted.text, row["method"]


def test_changed_candidates_of_a_row_are_noticed(tmp_path, tiny_reader):
    study = study_of(tmp_path, ["base"], count=1, candidates="rows")
    row = json.loads(open(study.data).readline())  # noqa: SIM115, PTH123
    options = {"load": lambda _: tiny_reader, "progress": False}
    run_study(study, tmp_path / "run", questions=[{**row, "candidates": LABELS}], **options)
    with pytest.raises(InputError, match="q0"):
        run_study(study, tmp_path / "run", questions=[{**row, "candidates": ["yes", "no"]}], resume=True, **options)
    without = run_study(study, tmp_path / "other", questions=[row], **options)
    assert without.left_out == 1


@pytest.mark.parametrize("method", ["sure", "eor", "noise:gold", "marginal"])
def test_methods_that_write_take_no_candidates(tmp_path, method):
    with pytest.raises(InputError, match=f"method '{method}': candidates: expected none"):
        check(study_of(tmp_path, [method], candidates=LABELS))


# MoI: the score with P(passages), another reader's scores, Table 6.


def test_another_reader_scores_the_orderings(tmp_path, tiny_reader, other):
    methods = [{"method": "moi", "model": "small", "permutations": "cyclic", "prune": 2},
               {"method": "moi:paper", "model": "small"}]  # fmt: skip
    _, rows = answered(tmp_path, lambda name: other if name == "small" else tiny_reader, methods)
    for row in rows:
        example = next(e for e in RunFolder(tmp_path / "run").questions() if e.id == row["question_id"])
        if row["method"] == "moi":
            wanted = moi.answer(tiny_reader, example, scorer=other, max_new_tokens=3, permutations="cyclic", prune=2)
            assert (row["answer"], row["trace"]["order"]) == (wanted.text, wanted.ranked.indices)
            assert not np.allclose(
                row["trace"]["observations"]["values"],
                moi.rerank(tiny_reader, example, permutations="cyclic", prune=2).observations.values,
            )
        else:
            assert row["trace"]["order"] == moi.baselines.moi_paper(other, example.question, example.passages).order


def test_the_score_has_the_passages_if_asked(tiny_reader):
    passages = [Passage(f"Text {i} of some length.") for i in range(4)]
    how = {"permutations": "random:6", "prune": 2, "seed": 1}
    found = moi.rerank(tiny_reader, "Which one?", passages, kind="joint", **how)
    plain = moi.rerank(tiny_reader, "Which one?", passages, kind="question", **how)
    scores = score_permutations(tiny_reader, "Which one?", passages, score_passages=True, question_only=True, **how)
    np.testing.assert_allclose(
        found.observations.values, scores.question_logprobs + scores.passages_logprobs, atol=1e-9
    )
    np.testing.assert_allclose(plain.observations.values, scores.question_logprobs, atol=1e-4)
    with pytest.raises(InputError, match="kind 'joint': needs a calibration of that kind"):
        moi.rerank(tiny_reader, "Which one?", passages, kind="joint")
    with pytest.raises(InputError, match="kind: expected one of question, joint"):
        moi.rerank(tiny_reader, "Which one?", passages, kind="candidate")


def test_table_6_by_name(tmp_path, tiny_reader):
    methods = ["moi:paper", "moi:paper-cyclic", "moi:paper-pruned", "moi:paper-variable"]
    _, rows = answered(tmp_path, tiny_reader, methods)
    orderings = {row["method"]: row["trace"]["details"]["orderings"] for row in rows}
    assert orderings == {"moi:paper": 6, "moi:paper-cyclic": 3, "moi:paper-pruned": 3, "moi:paper-variable": 3}
    tokens = {row["method"]: row["tokens"]["total_tokens"] for row in rows}
    assert tokens["moi:paper"] > tokens["moi:paper-cyclic"] > tokens["moi:paper-pruned"]


# EoR: one retriever, a saved voter, limits.


def test_one_retriever_and_a_saved_voter(tmp_path):
    from fastreader.eor import Voter

    names = ["R@1", "R", "ReFree"]
    voter = Voter(["exact:words"]).fit([["a", "a", "b"], ["c", "d", "d"]], [[0, 0, 1], [0, 0, 1]])
    voter.retrievers_ = names
    voter.save(tmp_path / "voter.json")
    eor = {"retrievers": names, "voter": str(tmp_path / "voter.json")}
    methods = ["eor", {"method": "eor", "name": "ReFree", "retrievers": ["ReFree"]}, "eor:max"]
    study = study_of(tmp_path, methods, count=3, eor=eor)
    check(study)
    assert run(study, tmp_path / "run").failed == 0
    for row in rows_of(tmp_path / "run").values():
        if row["method"] == "eor":  # all weight is on ReFree
            assert row["trace"]["ensemble"]["vote"]["similarities"] == ["exact:words"]
            assert row["answer"] == row["trace"]["ensemble"]["predictions"]["ReFree"]
        elif row["method"] == "ReFree":
            assert row["trace"]["retrieved"]["retriever"] == "ReFree" and row["answer"] == "nothing"
        else:
            assert row["trace"]["ensemble"]["vote"]["similarities"] == ["exact", "f1"]
    with pytest.raises(InputError, match="eor: voter: expected one fitted on R@1, R, got"):
        check(study_of(tmp_path, [{"method": "eor", "retrievers": ["R@1", "R"]}], eor=eor))
    with pytest.raises(InputError, match="eor: voter: expected no other option"):
        both = {"method": "eor", "similarities": ["f1"], "voter": str(tmp_path / "voter.json")}
        check(study_of(tmp_path, [both], eor={"retrievers": names}))


def test_merged_rankings_as_a_baseline(tmp_path):
    own = load_examples(data(tmp_path, 1))[0].passages
    found = [own[1], Passage("Elsewhere.", "Other", id="other")]
    hits = {"question": "Question 0?", "ctxs": [{"title": p.title, "text": p.text, "id": p.id} for p in found]}
    (tmp_path / "hits.jsonl").write_text(json.dumps(hits))
    merged = {"method": "eor", "name": "merged", "retrievers": ["R+Wiki@2"]}
    study = study_of(tmp_path, [merged], count=1, eor={"sources": {"Wiki": str(tmp_path / "hits.jsonl")}})
    assert run(study, tmp_path / "run").failed == 0
    (row,) = rows_of(tmp_path / "run").values()
    texts = [passage["text"] for passage in row["trace"]["retrieved"]["passages"]]
    assert texts == [own[1].text, own[0].text]  # in both, and first in one


@pytest.mark.parametrize(("limit", "words"), [(3, 3), (1000, 10), (0, 10)])
def test_lengths_of_documents(tmp_path, limit, words):
    eor = {"retrievers": ["R", "ReFree"], "limits": {"document": limit}}
    study = study_of(tmp_path, ["eor"], count=1, eor=eor)
    run(study, tmp_path / "run")
    (row,) = rows_of(tmp_path / "run").values()
    document = row["trace"]["ensemble"]["documents"][0]
    read = " ".join(f"{p['title']} {p['text']}" for p in document["passages"])
    assert len(read.split()) == {3: 3}.get(limit, len(read.split())) and (limit == 3) == (len(read.split()) == words)
    with pytest.raises(InputError, match=r"eor\.limits: expected no keys besides page"):
        check(study_of(tmp_path, ["eor"], eor={"limits": {"pages": 3}}))


# Noise: stop texts, penalty, ids of the corpus.


def test_stop_texts_and_the_penalty_reach_the_reader(tmp_path):
    asked = []

    class Recorder(ScriptedReader):
        def generate(self, prompts, **options):
            asked.append(options)
            return super().generate(prompts, **options)

    noise = {"stop": ["\n"], "repetition_penalty": 1.1}
    methods = ["noise:gold", {"method": "noise:closed_book", "stop": ["."], "repetition_penalty": 1.0}]
    study = study_of(tmp_path, methods, count=1, noise=noise)
    run(study, tmp_path / "run", Recorder(lambda prompt, i: "one. two\nthree"))
    rows = {row["method"]: row["answer"] for row in rows_of(tmp_path / "run").values()}
    assert rows == {"noise:gold": "one. two", "noise:closed_book": "one"}
    found = sorted((tuple(options["stop"]), options.get("repetition_penalty", 1.0)) for options in asked)
    assert found == [(("\n",), 1.1), ((".",), 1.0)]
    with pytest.raises(InputError, match="repetition_penalty: expected a finite number above 0"):
        check(study_of(tmp_path, [{"method": "noise:gold", "repetition_penalty": 0}]))


def test_ids_of_the_corpus_in_the_prompt(tmp_path):
    (tmp_path / "pool.jsonl").write_text('{"id": "w77", "text": "Something else."}\n')
    template = {"document": "Doc [{id}] {title} {text}\n", "document_without_title": "Doc [{id}] {text}\n"}
    study = study_of(tmp_path, ["noise:random:1:near"], count=1,
                     noise={"template": template, "random": str(tmp_path / "pool.jsonl")})  # fmt: skip
    reader = ScriptedReader(write)
    run(study, tmp_path / "run", reader)
    assert "Doc [w77] Something else.\nDoc [0/0] T00" in reader.prompts[0]
    (row,) = rows_of(tmp_path / "run").values()
    assert row["trace"]["order"][0]["id"] == "w77"
    material = gather(Example("q", [Passage("It is a.", is_gold=True)], ["a"]))
    with pytest.raises(InputError, match="NoiseTemplate: expected a passage with an id"):
        ask(reader, [material], ["gold"], template=NoiseTemplate(**template))


# Judges with other prompts.


def test_a_judges_prompt_from_a_file(tmp_path):
    (tmp_path / "judge.toml").write_text('ask = "Same meaning? Reply Yes or No."\nlead = "Q: {question}\\n"\n')
    file = tmp_path / "study.toml"
    values = {"data": data(tmp_path, 1), "readers": ["scripted"], "methods": ["sure:base"]}
    study = Study.of({**values, "measures": ["equivalent:reader:judge"]})
    file.write_text(
        f'data = "{study.data}"\nreader = "scripted"\nmethods = ["sure:base"]\n'
        'measures = ["equivalent:reader:judge"]\n[judges]\nequivalent = "judge.toml"\n'
    )
    judge = ScriptedReader(score=lambda context, reply: 0.0 if reply == "Yes" else -9.0)
    load = {"judge": judge, "scripted": ScriptedReader(write)}.__getitem__
    run_study(study, tmp_path / "run", load=load, progress=False)
    assert not any("Same meaning?" in context for context, _ in judge.requests)
    before = len(judge.requests)
    run_study(Study.load(file), tmp_path / "run", resume=True, load=load, progress=False)
    asked = [context for context, _ in judge.requests[before:]]
    assert asked and all("Same meaning?" in context and "Q: Question 0?" in context for context in asked)
    (values,) = RunFolder(tmp_path / "run").measures().values()
    assert values == {"equivalent:reader:judge": 1.0}
    judged = len(judge.requests)
    run_study(study, tmp_path / "run", resume=True, load=load, progress=False)  # the first prompt's value is kept
    assert len(judge.requests) == judged and len(RunFolder(tmp_path / "run").measures()) == 1
    with pytest.raises(InputError, match=r"judges\.equivalent: .*lead"):
        check(study_of(tmp_path, ["sure:base"], judges={"equivalent": {"lead": "no field"}}))
    with pytest.raises(InputError, match="judges: expected no keys besides equivalent, preferred, citation, grade"):
        check(study_of(tmp_path, ["sure:base"], judges={"better": {}}))


# ask --template, --max-new-tokens.


@pytest.mark.parametrize(
    ("method", "template", "words"),
    [
        ("sure:base", 'passage_without_title = "P{number}: {text}\\n"', "P1: It is yes."),
        ("noise:gold", 'document_without_title = "D {number} {text}\\n"', "D 1 It is yes."),
        ("eor", 'read_lead = "These are true: "', "These are true: It is yes."),
    ],
)
def test_ask_with_a_template(tmp_path, monkeypatch, method, template, words):
    (tmp_path / "words.toml").write_text(template)
    row = {"question": "Is it?", "answers": ["yes"], "ctxs": [{"text": "It is yes.", "isgold": True}]}
    (tmp_path / "q.jsonl").write_text(json.dumps(row) + "\n")
    reader = ScriptedReader(lambda prompt, i: "yes")
    monkeypatch.setattr(Reader, "load", lambda *_, **__: reader)
    output = str(tmp_path / "out.jsonl")
    asked = ["ask", str(tmp_path / "q.jsonl"), "--method", method, "-o", output]
    done = CliRunner().invoke(cli.app, [*asked, "--template", str(tmp_path / "words.toml")])
    assert done.exit_code == 0, done.output
    assert any(words in prompt for prompt in reader.prompts)
    again = CliRunner().invoke(cli.app, [*asked, "--resume"])  # with other texts the file is another run's
    assert isinstance(again.exception, InputError)


def test_ask_with_mois_template_and_a_limit(tmp_path, monkeypatch, tiny_reader):
    (tmp_path / "words.toml").write_text('header = "Read these.\\n"')
    monkeypatch.setattr(Reader, "load", lambda *_, **__: tiny_reader)
    asked = ["ask", "-q", "Is it?", "-p", "It is.", "-f", "jsonl"]
    more = ["--template", str(tmp_path / "words.toml"), "--max-new-tokens", "2"]
    done = CliRunner().invoke(cli.app, [*asked, *more])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    example = Example("Is it?", [Passage("It is.")])
    template = Template(header="Read these.\n")
    assert found["answer"] == read(tiny_reader, example, template=template, max_new_tokens=2).text
    refused = CliRunner().invoke(cli.app, [*asked, "--method", "sure", "--max-new-tokens", "2"])
    assert "--max-new-tokens: does not apply to --method sure" in str(refused.exception)
