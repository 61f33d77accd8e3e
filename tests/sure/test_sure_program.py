"""SuRe from question to answer, with readers that answer by rules."""

from __future__ import annotations

import pytest
from helpers.scripted import ScriptedReader
from sure_readers import TokenReader, compared, predicted, script, stage_of

from fastreader import Passage, sure
from fastreader.core.protocol import Generation, Results
from fastreader.errors import ContextOverflowError, InputError
from fastreader.sure import SureResult

QUESTION = "Which river is in Cairo?"
PASSAGES = [Passage("The Nile is in Cairo.", title="Nile"), "The Seine is in Paris."]


def test_candidates_summaries_and_vote():
    reader = ScriptedReader(
        **script(
            valid=lambda candidate: 2.0 if "Seine" in candidate else -2.0,
            better=lambda first, second: 3.0 if "Seine" in first else -3.0,
        )
    )
    result = sure.answer(reader, QUESTION, PASSAGES)
    assert result.answer == "the Seine"
    assert result.rationale == "about the Seine"
    assert result.candidates == ["the Nile", "the Seine"]
    assert result.summaries == ["about the Nile", "about the Seine"]
    assert result.validity == [0.0, 1.0]
    assert result.validity_probability == pytest.approx([0.1192, 0.8808], abs=1e-4)
    assert result.pairwise == [[None, 0.0], [1.0, None]]
    assert result.replied == [[None, 0.0], [1.0, None]]
    assert result.preference[1][0] == pytest.approx(0.9526, abs=1e-4)
    assert result.ranking == [0.0, 1.0]
    assert result.scores == [0.0, 2.0]
    assert result.best == 1
    assert result.notes == []
    assert list(result.costs) == ["candidates", "summaries", "validity", "ranking"]
    assert [cost.calls for cost in result.costs.values()] == [1, 2, 4, 4]


def test_k_from_settings():
    reader = ScriptedReader(**script(candidates="(a) the Nile, (b) the Seine, (c) the Po"))
    for options, k in (({}, 3), ({"k": 2}, 2), ({"k": 1}, 1)):
        result = sure.answer(reader, QUESTION, PASSAGES, settings=sure.Settings(k=3), **options)
        assert result.candidates == ["the Nile", "the Seine", "the Po"][:k]
    assert len(sure.answer(reader, QUESTION, PASSAGES).candidates) == 2


def test_no_passages_are_noted():
    assert (
        "there are no passages; the answer is from memory"
        in sure.answer(ScriptedReader(**script()), QUESTION, []).notes
    )
    asked = sure.ask(ScriptedReader(**script()), QUESTION, [], method="no_retrieval")
    assert asked.notes == []


def test_a_text_without_fields_is_no_format_string():
    template = sure.SureTemplate(ranking='Reply as {"best": 1}.\n', first="{1}")
    assert template.ranking == 'Reply as {"best": 1}.\n'
    with pytest.raises(InputError, match="not a format string"):
        sure.SureTemplate(validity_question="{question} {")


def test_the_fields_and_order_of_the_papers_prompts():
    reader = ScriptedReader(**script())
    sure.answer(reader, QUESTION, PASSAGES)
    candidates, *summaries = reader.prompts
    in_order(
        candidates, "two passages", "(a) xx, (b) yy", "three words", "Passage #1 Title: Nile\nPassage #1 Text: The"
    )
    in_order(candidates, "Passage #1 Title", "Passage #2 Text: The Seine", f"Question: {QUESTION}\nAnswer:")
    assert len(summaries) == 2
    for prompt, prediction in zip(summaries, ["(a) the Nile", "(b) the Seine"], strict=True):
        in_order(
            prompt, "Passage #1 Title: Nile", "Passage #2", "[DONE]", f"Question: {QUESTION}\nChoices: (a) the Nile"
        )
        assert prompt.endswith(f"Choices: (a) the Nile (b) the Seine\nPrediction: {prediction}\nPassage:")
    validity = [context for context, label in reader.requests if label in ("True", "False")]
    in_order(validity[0], f"Question: {QUESTION}", "Prediction: the Nile", "Passage: about the Nile\n", "[True, False]")
    assert "Seine" not in validity[0]  # other candidates and the passages disturb there
    ranking = [context for context, label in reader.requests if label.startswith("Passage")]
    in_order(ranking[0], "Passage 1: about the Nile", "Passage 2: about the Seine", "Target Question: ", "Your Task:")
    assert compared(ranking[2]) == ("about the Seine", "about the Nile")
    assert "(a)" not in ranking[0]


def in_order(text: str, *parts: str) -> None:
    places = [text.index(part) for part in parts]
    assert places == sorted(places), text


def test_passages_first_shares_the_summaries_prefix():
    reader = ScriptedReader(**script())
    result = sure.answer(reader, QUESTION, PASSAGES, candidates_prompt="passages_first")
    assert result.candidates_prompt == "passages_first"
    candidates, summary, _ = reader.prompts
    end = candidates.index("\nThe two passages above")
    assert candidates[:end] == summary[:end]
    assert "Passage #2" in candidates[:end]


def test_order_bias_is_a_tie_and_the_earlier_candidate_wins():
    result = sure.answer(ScriptedReader(**script(better=lambda first, second: 5.0)), QUESTION, PASSAGES)
    assert result.pairwise == [[None, 0.5], [0.5, None]]
    assert result.scores == [1.5, 1.5]
    assert result.answer == "the Nile"
    assert "2 candidates score 1.5; the earliest wins" in result.notes


def test_four_candidates():
    order = ["b", "d", "a", "c"]  # from the best on
    reader = ScriptedReader(
        **script(
            "(a) a (b) b (c) c (d) d",
            better=lambda first, second: float(order.index(second[-1]) - order.index(first[-1])),
        )
    )
    reader.write = asks_four(reader.write)
    result = sure.answer(reader, QUESTION, PASSAGES, k=4)
    assert result.ranking == [1.0, 3.0, 0.0, 2.0]
    assert result.answer == "b"
    assert result.costs["ranking"].calls == 2 * 4 * 3


def asks_four(write):
    def checked(prompt, i):
        if "propose four answers" in prompt:
            assert "(a) xx, (b) yy, (c) zz, (d) ww" in prompt
            return "(a) a (b) b (c) c (d) d"
        return write(prompt, i)

    return checked


def test_one_candidate_wins_and_the_result_notes_it():
    reader = ScriptedReader(**script("the Nile", valid=lambda candidate: -1.0))
    result = sure.answer(reader, QUESTION, PASSAGES)
    assert (result.answer, result.rationale) == ("the Nile", "about the Nile")
    assert result.validity == [0.0]
    assert result.pairwise == [[None]]
    assert "there is only one candidate; it wins without a vote" in result.notes
    assert "ranking" not in result.costs


def test_no_candidate_gives_no_answer_and_a_note():
    reader = ScriptedReader(**script("(a) xx, (b) yy"))
    result = sure.answer(reader, QUESTION, PASSAGES)
    assert (result.answer, result.rationale, result.candidates, result.best) == ("", "", [], None)
    assert "there is no candidate, so there is no answer" in result.notes
    assert list(result.costs) == ["candidates"]


def test_a_summary_that_does_not_end_is_cut_and_noted():
    class Endless(ScriptedReader):
        def generate(self, prompts, *, max_new_tokens, **options):
            texts = list(prompts)
            if stage_of(texts[0]) == "candidates":
                return super().generate(texts, **options)
            out = [[Generation("on and on", list(range(max_new_tokens)), "length", 1)] for _ in texts]
            return Results(out, super().generate(texts).stats)

    result = sure.answer(Endless(**script()), QUESTION, PASSAGES, max_summary_tokens=7)
    assert result.finishes == ["length", "length"]
    assert "summaries: the summary of 'the Nile' was cut at 7 tokens before its end" in result.notes
    assert result.rationale == "on and on"


def test_a_candidates_reply_may_begin_with_its_end_mark():
    result = sure.answer(ScriptedReader(**script("[DONE] (a) the Nile, (b) the Seine")), QUESTION, PASSAGES)
    assert result.candidates == ["the Nile", "the Seine"]


def test_an_empty_summary_is_noted():
    reader = ScriptedReader(**script())
    write = reader.write
    reader.write = lambda prompt, i: " [DONE] " if stage_of(prompt) == "summaries" else write(prompt, i)
    result = sure.answer(reader, QUESTION, PASSAGES)
    assert "summaries: the summary of 'the Seine' is empty" in result.notes


def test_mode_generate_parses_labels():
    def other(stage, prompt, i):
        if stage == "validity":
            return "True." if predicted(prompt) == "the Seine" else "I do not know"
        return "Passage 2 is" if compared(prompt)[1] == "about the Seine" else "Passage 1"

    reader = ScriptedReader(**script(other=other))
    result = sure.answer(reader, QUESTION, PASSAGES, mode="generate")
    assert result.answer == "the Seine"
    assert result.scores == [0.0, 2.0]
    assert result.validity_probability == [None, None]
    assert result.mode == "generate"
    assert reader.requests == []
    assert "validity: 1 of 2 replies name neither True nor False" in result.notes


@pytest.mark.parametrize(("use", "scores"), [(("validity",), [1.0, 1.0]), (("ranking",), [0.5, 0.5])])
def test_a_single_evaluation(use, scores):
    result = sure.answer(ScriptedReader(**script()), QUESTION, PASSAGES, use=use)
    assert result.scores == scores
    assert (result.validity is None) == (use == ("ranking",))
    assert result.use == list(use)


def test_another_reader_for_a_stage():
    first = ScriptedReader(**script(valid=lambda c: -1.0))
    judge = ScriptedReader(**script(valid=lambda c: 1.0))
    judge.name = "judge"
    result = sure.answer(first, QUESTION, PASSAGES, readers={"validity": judge})
    assert result.validity == [1.0, 1.0]
    assert all(stage_of(context) == "validity" for context, _ in judge.requests)
    assert all(stage_of(context) == "ranking" for context, _ in first.requests)
    assert result.readers["validity"]["name"] == "judge"
    assert result.readers["all"]["name"] == "scripted"


def test_custom_texts():
    template = sure.SureTemplate(true="Yes", false="No", validity="{prediction}? {summary} correctly supported")
    reader = ScriptedReader(
        write=script()["write"], score=lambda context, label: {"Yes": -1.0, "No": -2.0}.get(label, -3.0)
    )
    result = sure.answer(reader, QUESTION, PASSAGES, template=template)
    assert result.validity == [1.0, 1.0]


def test_answered_questions_stand_before_the_question():
    reader = ScriptedReader(**script())
    sure.answer(reader, QUESTION, PASSAGES, shots=[("Who wrote Faust?", "Goethe")])
    in_order(reader.prompts[0], "Passage #2", "Question: Who wrote Faust?\nAnswer: Goethe", f"Question: {QUESTION}")


def test_no_passages_at_all():
    result = sure.answer(ScriptedReader(**script()), QUESTION, [])
    assert result.num_passages == 0
    assert result.answer == "the Nile"


def test_result_survives_json():
    result = sure.answer(ScriptedReader(**script()), QUESTION, PASSAGES)
    assert SureResult.from_dict(result.to_dict()) == result
    assert "the Nile: 1.5 (v 1, r 0.5)" in repr(result)


@pytest.mark.parametrize("broken", [{}, {"found": {}}, {"costs": 3, "found": {}}])
def test_from_dict_raises_for_other_dictionaries(broken):
    with pytest.raises(InputError, match=r"SureResult\.from_dict"):
        SureResult.from_dict(broken)


def long_passages(count: int) -> list[str]:
    return [f"passage {i} " + "word " * 40 for i in range(count)]


def test_a_prompt_that_is_too_long_raises():
    reader = TokenReader(max_length=300, **script())
    with pytest.raises(ContextOverflowError, match="the context is 300"):
        sure.answer(reader, QUESTION, long_passages(6), max_candidate_tokens=8, max_summary_tokens=8)


def test_drop_passages_leaves_out_passages():
    reader = TokenReader(max_length=500, **script())
    result = sure.answer(
        reader,
        QUESTION,
        long_passages(6),
        max_candidate_tokens=8,
        max_summary_tokens=100,
        on_overflow="drop_passages",
    )
    assert result.answer == "the Nile"
    left_out = [note for note in result.notes if "passages were left out" in note]
    assert [note.split(":")[0] for note in left_out] == ["candidates", "summaries"]
    assert all(
        f"of 6 passages were left out; with {new} new tokens" in note
        for note, new in zip(left_out, (8, 100), strict=True)
    )


def test_a_prompt_too_long_without_passages_raises():
    reader = TokenReader(max_length=20, **script())
    with pytest.raises(ContextOverflowError):
        sure.answer(reader, QUESTION, long_passages(2), on_overflow="drop_passages")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"question": " "}, "question: expected text that is not empty, got ' '"),
        ({"passages": "one text"}, "passages: expected a list, got 'one text'"),
        ({"passages": [3]}, r"passages\[0\]: expected a text, a Passage, .* got 3"),
        ({"k": 0}, "k: expected an integer from 1 to 26, got 0"),
        ({"k": 27}, "k: expected an integer from 1 to 26, got 27"),
        ({"mode": "guess"}, "mode: expected one of loglikelihood, generate, got 'guess'"),
        ({"use": ()}, "use: expected some of validity, ranking, got \\(\\)"),
        ({"use": ("luck",)}, "use: expected one of"),
        ({"max_summary_tokens": 0}, "max_summary_tokens: expected an integer from 1 to 1048576, got 0"),
        ({"on_overflow": "truncate"}, "on_overflow: expected one of error, drop_passages"),
        ({"depth": 3}, r"settings: expected some of k, mode, .*, got \['depth'\]"),
        ({"readers": {"vote": ScriptedReader()}}, "readers: expected no keys besides candidates, .*, got 'vote'"),
        ({"readers": {"ranking": "gpt"}}, r"readers\['ranking'\]: expected a ReaderProtocol, got 'gpt'"),
        ({"temperature": 0}, "temperature: expected a finite number above 0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    given = {"question": QUESTION, "passages": PASSAGES, **arguments}
    with pytest.raises(InputError, match=message):
        sure.answer(ScriptedReader(**script()), **given)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"summary_prediction": "none"}, r"SureTemplate.summary_prediction: the field \{prediction\} must appear"),
        ({"candidates": "{question}"}, r"SureTemplate.candidates: unknown fields \['question'\]"),
        ({"shot": "{question!r} {answer}"}, "fields must be plain"),
        ({"passage": "{text"}, "is not a format string"),
        ({"true": 1}, "SureTemplate.true: expected text, got 1"),
    ],
)
def test_texts_are_checked(texts, message):
    with pytest.raises(InputError, match=message):
        sure.SureTemplate(**texts)


def test_texts_by_name():
    assert sure.SureTemplate.from_dict(sure.SureTemplate().to_dict()) == sure.SureTemplate()
    with pytest.raises(InputError, match=r"SureTemplate: expected no keys besides .*, got 'summmary'"):
        sure.SureTemplate.from_dict({"summmary": ""})
