"""fastreader ask: answers of the study's methods, one prompt per method in both, and files of results that resume."""

import json
from dataclasses import replace
from unittest import mock

import pytest
from helpers.commands import run as run_command

import fastreader as fr
from fastreader import moi
from fastreader.cli.asking import Asking, answers
from fastreader.errors import InputError
from fastreader.study.cells import questions_of
from fastreader.study.registry import names
from studies import data, rows_of, run, study_of

PLAIN = [
    *("base", "closed_book", "moi", "moi:descending", "order:reversed", "order:qg", "noise:random:2:near"),
    *("rerank", "marginal"),
]


@pytest.mark.parametrize("method", PLAIN)
def test_ask_answers_as_a_study_does(tmp_path, tiny_reader, method):
    study = study_of(tmp_path, [method], count=3)
    run(study, tmp_path / "run", tiny_reader)
    found = list(answers(tiny_reader, iter(questions_of(study)), Asking.of(method, {}), batch_size=2))
    rows = {row["question_id"]: row for row in rows_of(tmp_path / "run").values()}
    assert [(a.row["id"], a.row["answer"]) for a in found] == [(id, row["answer"]) for id, row in rows.items()]
    for answer in found:
        assert answer.row["question"] and answer.line() and answer.explain()
        if method != "moi" and "details" in answer.row:
            assert answer.row["details"] == rows[answer.row["id"]]["trace"]
            costs = answer.row["costs"].values()
            assert sum(c["total_tokens"] for c in costs) == rows[answer.row["id"]]["tokens"]["total_tokens"]


def test_moi_has_the_answer_and_the_cost_of_its_function(tmp_path, tiny_reader):
    examples = questions_of(study_of(tmp_path, ["moi"], count=2))
    for example, found in zip(
        examples, answers(tiny_reader, iter(examples), Asking.of("moi@2", {"order": "descending"})), strict=True
    ):
        wanted = moi.answer(tiny_reader, example, order="descending", max_passages=2, candidates=[]).to_dict()
        assert found.row["answer"] == wanted["answer"] and found.row["cost"] == wanted["cost"]
        assert found.row["reading"] == wanted["reading"] and found.row["ranked"].keys() == wanted["ranked"].keys()
        assert [p["index"] for p in found.row["ranked"]["passages"]] == [
            p["index"] for p in wanted["ranked"]["passages"]
        ]


def test_moi_truncates_long_passages(tmp_path, tiny_reader):
    study = study_of(tmp_path, ["moi"], count=1)
    (example,) = questions_of(study)
    for passage in example.passages:
        object.__setattr__(passage, "text", passage.text + " more" * tiny_reader.max_length)
    with pytest.raises(InputError, match=r"id q0: .*the model's context"):
        list(answers(tiny_reader, iter([example]), Asking.of("moi", {})))
    (found,) = answers(tiny_reader, iter([example]), Asking.of("moi", {"on_overflow": "truncate"}))
    wanted = moi.answer(tiny_reader, example, candidates=[], on_overflow="truncate", pool=moi.Pool()).to_dict()
    assert found.row["reading"] == wanted["reading"] and found.row["note"] == wanted["note"]


def test_arrange_reads_the_best_passages_where_the_bias_is_largest(tmp_path, tiny_reader):
    fr.Arranger({3: [0.1, -0.9, 0.8]}).save(tmp_path / "arranger.json")
    (example,) = questions_of(study_of(tmp_path, ["base"], count=1))
    with pytest.raises(InputError, match=r"id q0: reader: no calibration of .* can place passages"):
        list(answers(tiny_reader, iter([example]), Asking.of("arrange", {})))
    asking = Asking.of("arrange", {"bias": str(tmp_path / "arranger.json")})
    for scores, order in (([3.0, 2.0, 1.0], [1, 2, 0]), ([1.0, 2.0, 3.0], [1, 0, 2]), ([None] * 3, [1, 2, 0])):
        passages = [replace(p, score=score) for p, score in zip(example.passages, scores, strict=True)]
        (found,) = answers(tiny_reader, iter([replace(example, passages=passages)]), asking)
        assert found.row["details"]["order"] == order
    some = replace(example, passages=[replace(example.passages[0], score=1.0), *example.passages[1:]])
    unscored = [replace(p, score=None) for p in some.passages[1:]]
    with pytest.raises(InputError, match="arrange: 1 of 3 passages have a score"):
        list(answers(tiny_reader, iter([replace(some, passages=[some.passages[0], *unscored])]), asking))


@pytest.mark.parametrize("method", ["base@2", "sure:base@2", "order:reversed@2"])
def test_the_first_passages(tmp_path, tiny_reader, method):
    examples = questions_of(study_of(tmp_path, ["base"], count=1))
    (found,) = answers(tiny_reader, iter(examples), Asking.of(method, {}))
    assert (found.row["num_passages"], found.row["method"]) == (2, method)


def test_a_killed_file_of_results_loses_no_reply(tmp_path, tiny_reader):
    examples, output = questions_of(study_of(tmp_path, ["base"], count=3)), tmp_path / "out.jsonl"
    asking = Asking.of("sure", {"max_summary_tokens": 4})
    whole = [answer.row for answer in answers(tiny_reader, iter(examples), asking)]
    calls = []
    generate = type(tiny_reader).generate

    def dying(self, prompts, **options):
        calls.append(len(list(prompts)))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return generate(self, prompts, **options)

    with mock.patch.object(type(tiny_reader), "generate", dying), pytest.raises(KeyboardInterrupt):
        list(answers(tiny_reader, iter(examples), asking, batch_size=2, output=output))
    assert (tmp_path / "out.jsonl.cache").exists() and len(output.read_text().splitlines()) == 2
    with pytest.raises(InputError, match="other settings: options"):
        other = Asking.of("sure", {"max_summary_tokens": 5})
        list(answers(tiny_reader, iter(examples), other, output=output, resume=True))
    resumed = list(answers(tiny_reader, iter(examples), asking, batch_size=2, output=output, resume=True))
    assert [a.row["answer"] for a in resumed] == [row["answer"] for row in whole]
    assert [a.explain() is not None for a in resumed] == [True] * 3
    assert not (tmp_path / "out.jsonl.cache").exists()


def test_base_is_the_default(tmp_path, tiny_reader):
    with mock.patch("fastreader.reader.reader.Reader.load", lambda *a, **o: tiny_reader):
        done = run_command("ask", data(tmp_path, 2), "-f", "json", COLUMNS="120")
    assert [row["method"] for row in json.loads(done.stdout)] == ["base"] * 2


def test_every_name_of_the_study_is_known():
    for name in names():
        if name.startswith(("base", "closed", "moi", "sure", "eor")):
            assert Asking.of(name, {}).name == name
    with pytest.raises(InputError, match="--method: expected a number of passages after @, got 'base@x'"):
        Asking.of("base@x", {})
