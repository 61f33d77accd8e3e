"""answer_many: packing across questions, errors of single questions, runs killed and resumed."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
from helpers.scripted import ScriptedReader
from sure_readers import TokenReader, script

from fastreader import Example, Passage, sure
from fastreader.data.arguments import keyed
from fastreader.errors import ContextOverflowError, InputError


def examples(count: int = 5) -> list[Example]:
    return [
        Example(f"Question {i}?", [Passage(f"Fact {i} is so."), Passage("Another fact.")], id=f"q{i}")
        for i in range(count)
    ]


def answers(reader, questions, **options):
    return list(sure.answer_many(reader, questions, **options))


def without_costs(results):
    return [{k: v for k, v in r.to_dict().items() if k != "costs"} for r in results]


def test_results_equal_those_one_by_one():
    reader = TokenReader(**script())
    together = answers(reader, examples(), batch_size=3)
    alone = [sure.answer(reader, e.question, e.passages) for e in examples()]
    assert [r.id for r in together] == ["q0", "q1", "q2", "q3", "q4"]
    for one, many in zip(alone, together, strict=True):
        assert without_costs([one])[0] == {**without_costs([many])[0], "id": None}
        for stage, cost in one.costs.items():  # tokens are counted as if each question had run alone
            other = many.costs[stage]
            assert (cost.calls, cost.total_tokens, cost.computed_tokens, cost.new_tokens) == (
                other.calls,
                other.total_tokens,
                other.computed_tokens,
                other.new_tokens,
            )


def test_each_stage_is_one_call_per_batch():
    reader = TokenReader(**script())
    answers(reader, examples(4), batch_size=4)
    assert reader.calls == [("generate", 4), ("generate", 8), ("loglikelihood", 16), ("loglikelihood", 16)]


def test_costs_are_unknown_if_only_the_reader_can_count():
    first, *_ = answers(ScriptedReader(**script()), examples(2))
    assert first.costs["summaries"].total_tokens is None
    assert first.total().total_tokens is None
    assert first.total().calls == 11


def test_white_space_around_a_question_does_not_make_it_another(tmp_path):
    questions = [Example(" Question 0?\n", examples(1)[0].passages, id="q0")]
    first = answers(ScriptedReader(**script()), questions, output=tmp_path / "a.jsonl")
    again = answers(ScriptedReader(), questions, output=tmp_path / "a.jsonl", resume=True)
    assert without_costs(again) == without_costs(first)


def test_an_empty_question_raises_after_the_rest_of_its_batch_is_saved(tmp_path):
    questions = [*examples(1), Example(" ", [Passage("A fact.")], id="empty"), *examples(3)[1:]]
    with pytest.raises(InputError, match=r"example empty: .*question"):
        answers(ScriptedReader(**script()), questions, output=tmp_path / "a.jsonl", batch_size=4)
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 3


def test_runs_with_nameless_encoders_cannot_be_resumed(tmp_path):
    def made(sign):
        def encode(texts):
            return np.array([[sign * len(text), 1.0] for text in texts], dtype=np.float32)

        return encode

    class Encoder:
        encode = __call__ = lambda self, texts: made(1)(texts)

    options = {"method": "top1_question", "output": tmp_path / "a.jsonl"}
    first, second = made(1), made(-1)
    first.__qualname__, second.__qualname__ = "first", "second"
    done = answers(ScriptedReader(**script()), examples(1), encoder=first, **options)
    nameless = [made(1), partial(first), Encoder(), Encoder().encode]
    for other in (*nameless, second):
        message = (
            "other settings" if other is second else "encoder: expected a name or a function with a unique __qualname__"
        )
        with pytest.raises(InputError, match=message):
            answers(ScriptedReader(**script()), examples(2), encoder=other, resume=True, **options)
    assert without_costs(answers(ScriptedReader(**script()), examples(2), encoder=first, resume=True, **options))[
        :1
    ] == without_costs(done)


def test_other_methods_by_name():
    first, *_ = answers(ScriptedReader(**script()), examples(2), method="base")
    assert (first.method, first.answer, first.id) == ("base", "an answer", "q0")
    limited = answers(ScriptedReader(**script()), examples(1), method="base@1")[0]
    assert (limited.method, limited.num_passages) == ("base@1", 1)
    for name in ("nothing", "base@", "base@0", "base@x", "@3"):
        with pytest.raises(InputError, match="method: expected one of sure, base"):
            sure.answer_many(ScriptedReader(), examples(1), method=name)


def too_long(index: int = 1, words: int = 400) -> list[Example]:
    questions = examples(3)
    questions[index] = Example("Long?", [Passage("word " * words)], id="long")
    return questions


def test_a_failing_question_leaves_the_others():
    failed = []
    results = answers(
        TokenReader(max_length=700, **script()),
        too_long(),
        on_error=lambda i, example, error: failed.append((i, example.id, str(error))),
    )
    assert [r.id for r in results] == ["q0", "q2"]
    assert failed[0][:2] == (1, "long")
    assert "the context is 700" in failed[0][2]


def test_without_on_error_the_error_names_the_question(tmp_path):
    output = tmp_path / "out.jsonl"
    with pytest.raises(ContextOverflowError, match="example long: a prompt of"):
        answers(TokenReader(max_length=700, **script()), too_long(), output=output)
    assert [json.loads(line)["id"] for line in output.read_text().splitlines()] == ["q0", "q2"]


def test_an_empty_question_is_reported():
    failed = []
    questions = [*examples(1), Example(" ", [])]
    assert len(answers(ScriptedReader(**script()), questions, on_error=lambda *e: failed.append(e))) == 1
    assert failed[0][0] == 1


def test_a_question_that_a_method_cannot_answer_is_reported(tmp_path):
    questions = [*examples(1), Example("Without?", [], id="bare"), *examples(3)[2:]]
    failed = []
    results = answers(
        ScriptedReader(**script()), questions, method="rerank", on_error=lambda *e: failed.append((e[0], str(e[2])))
    )
    assert [r.id for r in results] == ["q0", "q2"]
    assert failed == [(1, "method 'rerank': needs passages, got none")]
    with pytest.raises(InputError, match="example bare: method 'rerank': needs passages, got none"):
        answers(ScriptedReader(**script()), questions, method="rerank", output=tmp_path / "out.jsonl")
    assert [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == ["q0", "q2"]


def test_a_missing_chat_template_is_reported_for_each_question(tmp_path):
    from helpers.support import byte_tokenizer, tiny_llama

    from fastreader import Reader

    reader = Reader.load((tiny_llama(), byte_tokenizer()), precision="exact")
    failed = []
    options = {"template": sure.SureTemplate(chat=True), "candidates_prompt": "passages_first"}
    assert answers(reader, examples(2), on_error=lambda *e: failed.append(str(e[2])), **options) == []
    assert len(failed) == 2
    assert all("no chat template" in error for error in failed)


class Killed(BaseException):
    """Raised to simulate a kill."""


@pytest.mark.parametrize("calls", range(8))
def test_a_killed_run_loses_nothing_that_was_computed(tmp_path, calls):
    """Kill a run after `calls` calls, and check that the resumed run makes only the others."""
    output = tmp_path / "out.jsonl"
    whole = TokenReader(**script())
    expected = answers(whole, examples(4), batch_size=2)

    reader = TokenReader(**script())
    for name in ("generate", "loglikelihood"):
        setattr(reader, name, dying(getattr(reader, name), reader, calls))
    with pytest.raises(Killed):
        answers(reader, examples(4), batch_size=2, output=output)
    assert len(reader.calls) == calls

    second = TokenReader(**script())
    results = answers(second, examples(4), batch_size=2, output=output, resume=True)
    assert without_costs(results) == without_costs(expected)
    assert reader.calls + second.calls == whole.calls
    assert [file.name for file in tmp_path.iterdir()] == ["out.jsonl"]


def test_replies_of_other_settings_are_not_used(tmp_path):
    output, reader = tmp_path / "out.jsonl", TokenReader(**script())
    reader.loglikelihood = dying(reader.loglikelihood, reader, 2)
    with pytest.raises(Killed):
        answers(reader, examples(2), output=output)
    other = {"longest_candidate": 1}  # changes how replies are read, not the first request
    whole, second = TokenReader(**script()), TokenReader(**script())
    expected = answers(whole, examples(2), **other)
    assert without_costs(answers(second, examples(2), output=output, resume=True, **other)) == without_costs(expected)
    assert second.calls == whole.calls


def dying(call, reader, calls):
    def until(*arguments, **options):
        if len(reader.calls) == calls:
            raise Killed
        return call(*arguments, **options)

    return until


def test_resuming_a_finished_run_makes_no_call(tmp_path):
    output = tmp_path / "out.jsonl"
    first = answers(TokenReader(**script()), examples(3), output=output)
    reader = TokenReader(**script())
    assert answers(reader, examples(3), output=output, resume=True) == first
    assert reader.calls == []


def test_resuming_with_other_settings_or_questions_raises(tmp_path):
    output = tmp_path / "out.jsonl"
    answers(TokenReader(**script()), examples(2), output=output)
    with pytest.raises(InputError, match="holds results already"):
        answers(TokenReader(**script()), examples(2), output=output)
    with pytest.raises(InputError, match="made with other settings"):
        answers(TokenReader(**script()), examples(2), output=output, resume=True, k=3)
    with pytest.raises(InputError, match="made from another question"):
        answers(TokenReader(**script()), [Example("Other?", [], id="q0")], output=output, resume=True)


def test_a_run_resumes_on_another_machine_but_not_with_another_model(tmp_path, monkeypatch):
    output, reader = tmp_path / "out.jsonl", TokenReader(**script())
    about = reader.describe()
    answers(reader, examples(2), output=output)
    there = about | {"device": "cuda:0", "forward": "other parts"}
    monkeypatch.setattr(reader, "describe", lambda: there)
    results = answers(reader, examples(3), output=output, resume=True)
    assert [result.readers["all"] for result in results] == [about, about, there]
    monkeypatch.setattr(reader, "describe", lambda: there | {"precision": "high"})
    with pytest.raises(InputError, match="made with other settings: readers"):
        answers(reader, examples(3), output=output, resume=True)


def test_results_that_were_yielded_before_the_caller_stopped_are_kept(tmp_path):
    output = tmp_path / "out.jsonl"
    results = sure.answer_many(TokenReader(**script()), examples(4), batch_size=2, output=output)
    next(results)
    results.close()
    assert len(output.read_text().splitlines()) == 2
    assert len(answers(TokenReader(**script()), examples(4), batch_size=2, output=output, resume=True)) == 4


def test_ids_are_made_unique():
    ids = [None, "a", "a", "0", "a#2"]
    assert [e.id for e in keyed(Example("?", [], id=i) for i in ids)] == ["0", "a", "a#2", "0#2", "a#2#2"]


@pytest.mark.parametrize("batch_size", [0, True, 1.5])
def test_batch_size_is_checked(batch_size):
    with pytest.raises(InputError, match="batch_size: expected an integer"):
        sure.answer_many(ScriptedReader(), [], batch_size=batch_size)


def test_equal_greedy_prompts_of_several_methods_are_written_once():
    from fastreader.reader.programs.readers import Readers
    from fastreader.sure.pipeline import SureJob, run_group

    reader = TokenReader(**script())
    settings = sure.Settings(mode="generate")
    names = ("sure", "ranking", "multiple_choice")
    outcomes = run_group([SureJob(examples(1)[0], name, settings, Readers(reader)) for name in names])
    assert [o.value.method for o in outcomes] == ["sure", "ranking", "multiple_choice"]
    assert reader.calls[0] == ("generate", 1)
    assert ("generate", 2) in reader.calls  # both summaries, once for both methods
