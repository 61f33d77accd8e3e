"""The variants: their prompts, and their answers from the replies."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers.scripted import ScriptedReader
from sure_readers import TokenReader, script, stage_of

from fastreader import Passage, sure
from fastreader.errors import InputError
from fastreader.sure import MethodResult, variants
from fastreader.sure.types import result_from_dict
from fastreader.sure.variants.ablations import chosen
from fastreader.sure.variants.per_passage import mixture, softmax, tfidf_similarity, weighted_votes

QUESTION = "Which river is in Cairo?"
PASSAGES = [
    Passage("The Seine is in Paris.", title="Seine", score=3.0),
    Passage("The Nile is in Cairo, a river.", title="Nile", score=2.0),
    Passage("Rome was not built in a day.", score=1.0),
]


def encoder(texts):
    """Return a row per text: counts of the Nile and of the Seine, normalised."""
    rows = np.array([[t.count("Nile") + t.count("Cairo"), t.count("Seine"), 0.1] for t in texts], dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def asked(method, reader=None, **options):
    reader = reader or ScriptedReader(**script())
    result = sure.ask(reader, QUESTION, PASSAGES, method=method, encoder=encoder, **options)
    assert result.method == method
    assert result_from_dict(result.to_dict()) == result
    return result, reader


@pytest.mark.parametrize("name", list(variants.METHODS))
def test_every_method_answers_and_survives_json(name):
    reader = ScriptedReader(write=script()["write"], score=lambda context, label: -float(len(label)))
    result, _ = asked(name, reader, answers=["the Nile"], shots=[("Who?", "He")] if "few_shot" in name else ())
    assert result.answer
    assert result.costs


def shifted(texts):
    """Return the rows of `encoder`, shifted by one passage."""
    rows = encoder(texts)
    return np.concatenate([rows[:1], np.roll(rows[1:], 1, axis=0)])


def asked_what(method, **settings):
    """Return a method's calls and result, without the settings that the result repeats."""
    calls = []

    class Recorded(TokenReader):
        def generate(self, prompts, **options):
            calls.append(("write", [list(p) for p in prompts], options))
            return super().generate(prompts, **options)

        def loglikelihood(self, requests, **options):
            pairs = list(requests)
            calls.append(("score", pairs))
            return super().loglikelihood(pairs, **options)

        def check(self, tokens):
            """Accept any length, which the settings limit."""

    long = [replace(p, text=f"{p.text} {'and so on ' * 500}") for p in PASSAGES]
    reader = Recorded(2000, write=script()["write"], score=lambda context, label: -float(len(label)))
    defaults = {"shots": [("Who?", "He")], "encoder": encoder, "answers": ["the Nile"]}
    result = sure.ask(reader, QUESTION, long, method=method, **{**defaults, **settings}).to_dict()
    return calls, {k: v for k, v in result.items() if k not in ("costs", "mode", "candidates_prompt", "use")}


@pytest.mark.parametrize("name", list(variants.METHODS))
@pytest.mark.long(keep=7)
def test_every_method_depends_on_exactly_the_settings_it_takes(name):
    others = {
        "k": {"k": 3},
        "mode": {"mode": "generate"},
        "max_summary_tokens": {"max_summary_tokens": 7},
        "candidates_prompt": {"candidates_prompt": "passages_first"},
        "shots": {"shots": [("Where?", "There")]},
        "weights": {"weights": "equal"},
        "encoder": {"encoder": shifted},
        "on_overflow": {"on_overflow": "drop_passages"},
    }
    common = {"weights": "encoder"}
    before = asked_what(name, **common)
    assert asked_what(name, **common) == before
    found = {setting for setting, other in others.items() if asked_what(name, **{**common, **other}) != before}
    assert found == set(variants.METHODS[name].takes)


def test_base_reads_the_passages_then_task_and_question():
    result, reader = asked("base")
    (prompt,) = reader.prompts
    assert prompt.index("Passage #3 Text: Rome") < prompt.index("Task description:") < prompt.index(QUESTION)
    assert "three words" in prompt
    assert result.answer == "an answer"


def test_no_retrieval_reads_the_question_alone():
    _, reader = asked("no_retrieval")
    assert "Passage" not in reader.prompts[0]


def test_few_shot_needs_its_examples_and_shows_them():
    with pytest.raises(InputError, match="'base_few_shot': needs shots, got none"):
        asked("base_few_shot")
    _, reader = asked("base_few_shot", shots=[("Who wrote Faust?", "Goethe")])
    prompt = reader.prompts[0]
    assert prompt.index("Task description") < prompt.index("Answer: Goethe") < prompt.index(QUESTION)


def test_all_summaries_stand_between_passages_and_task():
    result, reader = asked("summaries")
    prompt = reader.prompts[-1]
    assert prompt.index("Passage #3") < prompt.index("Summary #1: about the Nile\nSummary #2: about the Seine")
    assert prompt.index("Summary #2") < prompt.index("Task description")
    assert result.details["candidates"] == ["the Nile", "the Seine"]


def test_multiple_choice_by_letter():
    reader = ScriptedReader(write=script()["write"], score=lambda c, label: {"(a)": -3.0, "(b)": -2.0}[label])
    result, _ = asked("multiple_choice", reader)
    assert result.answer == "the Seine"
    assert "Choices: (a) the Nile (b) the Seine\nAnswer:" in reader.requests[0][0]
    written, _ = asked("multiple_choice", ScriptedReader(**script(other=lambda s, p, i: "(b).")), mode="generate")
    assert written.answer == "the Seine"


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("(b) the Seine", "the Seine"),
        ("It is the nile", "the Nile"),
        ("(b), not (a)", "the Seine"),
        ("Po", "Po"),
        ("", ""),
    ],
)
def test_a_written_choice(reply, answer):
    assert chosen(reply, ["the Nile", "the Seine"]) == answer


@pytest.mark.parametrize(
    ("reply", "candidates", "answer"),
    [
        ("I do not know.", ["no", "yes"], "I do not know"),
        ("It was in 2011", ["1", "2"], "It was in 2011"),
        ("No, never.", ["no", "yes"], "no"),
        ("It is C++.", ["C", "C++"], "C++"),
        ("答案是尼罗河。", ["尼罗河", "塞纳河"], "尼罗河"),
        ("답은 파리입니다", ["리옹", "파리"], "파리"),
        ("答案是Paris。", ["Lyon", "Paris"], "Paris"),
    ],
)
def test_a_candidate_is_named_as_a_word(reply, candidates, answer):
    assert chosen(reply, candidates) == answer


@pytest.mark.parametrize("method", ["generic_summary", "top1_generic"])
def test_an_empty_generic_summary_is_noted(method):
    write = script(other=lambda s, p, i: " [DONE]" if s == "generic" else "an answer")["write"]
    result, _ = asked(method, ScriptedReader(write=write))
    assert "the summary is empty" in result.notes
    if method == "top1_generic":
        assert result.details["order"][0] == 1 and "the question was used instead" in result.notes[-1]


def test_generic_summary_is_read_in_place_of_the_passages():
    reader = ScriptedReader(
        **script(other=lambda stage, p, i: "a summary [DONE]" if stage == "generic" else "an answer")
    )
    result, _ = asked("generic_summary", reader)
    assert result.details["summary"] == "a summary"
    assert "Passage #1 Text: a summary\n" in reader.prompts[-1]
    assert "Seine" not in reader.prompts[-1]
    assert result.num_passages == 3


def test_ablations_use_one_evaluation():
    ranking, _ = asked("ranking")
    assert (ranking.use, ranking.validity) == (["ranking"], None)
    validity, _ = asked("validity")
    assert (validity.use, validity.ranking) == (["validity"], None)


def test_the_oracle_takes_the_right_candidate():
    result, _ = asked("oracle", answers=["Seine"])
    assert result.answer == "the Seine"
    near, _ = asked("oracle", ScriptedReader(**script("(a) Po, (b) Nile delta")), answers=["the Nile"])
    assert near.answer == "Nile delta"
    with pytest.raises(InputError, match="needs answers"):
        asked("oracle")


def by_passage(stage, prompt, i):
    return "the Nile." if "Nile" in prompt else "Seine" if "Seine" in prompt else "The Seine"


def test_rerank_votes_with_the_weights_of_the_passages():
    reader = ScriptedReader(**script(other=by_passage))
    equal, _ = asked("rerank", reader, weights="equal")
    assert equal.details["answers"] == ["Seine", "the Nile", "The Seine"]
    assert equal.answer == "Seine"
    assert equal.details["votes"] == pytest.approx([2 / 3, 1 / 3])
    nearest, _ = asked("rerank", ScriptedReader(**script(other=by_passage)))
    assert nearest.answer == "the Nile"  # TF-IDF: the only passage with "river" and "Cairo"
    scored, _ = asked("rerank", ScriptedReader(**script(other=by_passage)), weights="retriever")
    assert scored.answer == "Seine"


def test_replug_mixes_the_likelihoods_of_all_passages():
    def score(context, label):
        return np.log(0.9 if ("Nile" in context) == ("Nile" in label) else 0.1)

    reader = ScriptedReader(write=script(other=by_passage)["write"], score=score)
    result, _ = asked("replug", reader, weights="equal")
    assert result.details["kinds"] == ["Seine", "the Nile"]
    expected = np.log([(0.9 + 0.1 + 0.9) / 3, (0.1 + 0.9 + 0.1) / 3])
    np.testing.assert_allclose(result.details["logprobs"], expected)
    assert result.answer == "Seine"
    near, _ = asked("replug", reader)  # the encoder's weights: the question names Cairo
    assert near.answer == "the Nile"


def test_replug_scores_whole_answers():
    """A reader that writes "New York" with 0.81, and "New" alone with 0.09."""
    steps = {"New": 0.9, "York": 0.9, "\n": 1.0}

    def score(context, label):
        words = label.split() + (["\n"] if label.endswith("\n") else [])
        return float(sum(np.log(0.1 if words[i:] == ["\n"] and i == 1 else steps[w]) for i, w in enumerate(words)))

    replies = iter(["New", "New York", "New York"])
    reader = ScriptedReader(write=lambda prompt, i: next(replies), score=score)
    result, _ = asked("replug", reader, weights="equal")
    assert result.details["kinds"] == ["New", "New York"]
    np.testing.assert_allclose(result.details["logprobs"], np.log([0.9 * 0.1, 0.9 * 0.9]))
    assert result.answer == "New York"


class Cut(ScriptedReader):
    """A reader whose texts are all cut at the limit."""

    def generate(self, prompts, *, max_new_tokens, **options):
        results = super().generate(prompts, **options)
        for texts in results:
            texts[:] = [replace(g, finish_reason="length", token_ids=list(range(max_new_tokens))) for g in texts]
        return results


@pytest.mark.parametrize(
    ("method", "options", "notes"),
    [
        ("base", {}, ["answers: the reply was cut at 32 tokens before its end"]),
        ("rerank", {}, ["answers: 3 of 3 replies were cut at 32 tokens before its end"]),
        ("self_verification", {"samples": 2}, ["answers: 2 of 2 replies were cut at 32 tokens before its end"]),
        (
            "selection_inference",
            {"mode": "generate"},
            [
                "selection: 3 of 3 replies were cut at 8 tokens before its end",
                "answers: 3 of 3 replies were cut at 32 tokens before its end",
            ],
        ),
        (
            "chain_of_thought",
            {},
            ["reasoning: the reply was cut at 256 tokens", "answers: the reply was cut at 32 tokens before its end"],
        ),
        ("generic_summary", {}, ["summaries: the reply was cut at 512", "answers: the reply was cut at 32"]),
        ("oracle", {"answers": ["Nile"]}, ["candidates: the reply was cut at 64 tokens before its end"]),
        (
            "multiple_choice",
            {"mode": "generate"},
            ["candidates: the reply was cut at 64", "answers: the reply was cut at 32 tokens before its end"],
        ),
    ],
)
def test_replies_that_were_cut_are_noted(method, options, notes):
    reader = Cut(write=script(other=lambda stage, prompt, i: "Yes")["write"])
    result, _ = asked(method, reader, **options)
    found = [note for note in result.notes if "before its end" in note]
    assert len(found) == len(notes)
    assert all(a.startswith(b) for a, b in zip(found, notes, strict=True))


def test_a_cut_after_the_answer_is_not_noted():
    result, _ = asked("base", Cut(**script(other=lambda stage, prompt, i: "Nile\nThat is because")))
    assert (result.answer, result.notes) == ("Nile", [])
    oracle, _ = asked("oracle", Cut(**script("(a) Nile, (b) Seine\n\nBoth ar")), answers=["Nile"])
    assert oracle.notes == []


def test_mixture_and_softmax_against_scipy():
    from scipy import special

    rng = np.random.default_rng(0)
    table, weights = rng.normal(-800, 20, (5, 3)), rng.dirichlet(np.ones(5))
    np.testing.assert_allclose(mixture(table, weights), special.logsumexp(table, axis=0, b=weights[:, None]))
    np.testing.assert_allclose(softmax(table[:, 0]), special.softmax(table[:, 0]))


def test_votes_by_hand():
    kinds, votes = weighted_votes(["The Nile", "nile.", "", "Po"], np.array([0.1, 0.2, 0.4, 0.3]))
    assert kinds == ["The Nile", "Po"]
    np.testing.assert_allclose(votes, [0.3, 0.3])


def test_tfidf_finds_the_passage_of_the_question():
    similarity = tfidf_similarity(QUESTION, PASSAGES)
    assert similarity.shape == (3,)
    assert similarity.argmax() == 1
    assert similarity[2] == pytest.approx(tfidf_similarity(QUESTION, PASSAGES)[2])


def test_retriever_weights_need_scores():
    with pytest.raises(InputError, match=r"passages\[0\]\.score: expected a finite number .*, got None"):
        sure.ask(ScriptedReader(**script()), QUESTION, ["a text"], method="rerank", weights="retriever")


def test_methods_that_read_single_passages_need_passages():
    with pytest.raises(InputError, match="'rerank': needs passages"):
        sure.ask(ScriptedReader(**script()), QUESTION, [], method="rerank")


def test_chain_of_thought_answers_after_its_reasoning():
    reader = ScriptedReader(**script(other=lambda s, p, i: "Nile" if "So the answer" in p else "Cairo is in Egypt."))
    result, _ = asked("chain_of_thought", reader)
    assert result.details["reasoning"] == "Cairo is in Egypt."
    assert "Reasoning: Cairo is in Egypt.\nSo the answer, in no more than three words, is:" in reader.prompts[1]
    assert result.answer == "Nile"


def test_self_verification_takes_the_answer_the_question_is_likeliest_from():
    reader = ScriptedReader(
        write=lambda prompt, i: ["Seine", "the Nile", "Nile", "", "Seine"][i],
        score=lambda context, label: -1.0 if "is: the Nile" in context else -2.0,
    )
    result, _ = asked("self_verification", reader, samples=5)
    assert result.details["kinds"] == ["Seine", "the Nile"]
    assert result.answer == "the Nile"
    assert {label for _, label in reader.requests} == {QUESTION}


def test_selection_inference_reads_passages_until_there_is_an_answer():
    def write(prompt, i):
        return "Nile" if "Rome" in prompt else "Unknown."

    def helpful(context, label):
        rank = ["Nile", "Rome", "Seine"].index(next(w for w in ("Nile", "Rome", "Seine") if w in context))
        return -float(rank) if label == "Yes" else -1.0

    result, reader = asked("selection_inference", ScriptedReader(write=write, score=helpful))
    assert result.details["order"] == [1, 2, 0]
    assert result.details["answers"] == ["Unknown", "Nile", "Nile"]
    assert (result.answer, result.details["passages_used"]) == ("Nile", 2)
    assert [p.count("Passage #") for p in reader.prompts] == [2, 3, 5]


def test_selection_inference_without_an_answer_adds_a_note():
    reader = ScriptedReader(write=lambda prompt, i: "unknown")
    result, _ = asked("selection_inference", reader)
    assert result.answer == ""
    assert result.notes == ["no number of passages gave an answer"]


@pytest.mark.parametrize(
    ("unknown", "replies", "answer"),
    [
        ("unknown", ["The Unknown Soldier", "Nile", "Nile"], "The Unknown Soldier"),
        ("not known", ["Not known.", "not known", "Nile"], "Nile"),
    ],
)
def test_only_the_template_word_means_no_answer(unknown, replies, answer):
    texts = iter(replies)
    reader = ScriptedReader(write=lambda prompt, i: next(texts))
    result, _ = asked("selection_inference", reader, variant_template=sure.VariantTemplate(unknown=unknown))
    assert result.answer == answer


@pytest.mark.parametrize(
    ("method", "first"),
    [("top1_retriever", 0), ("top1_question", 1), ("top1_generic", 0), ("top1_sure", 1), ("top1_reader", 2)],
)
def test_one_passage_is_chosen_and_read(method, first):
    write = script(other=lambda s, p, i: "the Seine" if s == "generic" else "an answer")["write"]
    reader = ScriptedReader(
        write=write,
        score=lambda c, label: -1.0 if stage_of(c) != "selection" or ("Rome" in c) == (label == "Yes") else -2.0,
    )
    result, _ = asked(method, reader)
    assert result.details["order"][0] == first
    only = reader.prompts[-1]
    assert [p.text in only for p in PASSAGES] == [i == first for i in range(3)]


def test_reranking_by_a_summary():
    order = variants.rerank_passages("about the Seine", PASSAGES, sure.Settings(encoder=encoder))
    assert order[0] == 0


def test_reranking_texts():
    settings = sure.Settings(encoder=encoder)
    assert variants.rerank_passages("about the Nile", [p.text for p in PASSAGES], settings)[0] == 1
    assert variants.rerank_passages("about the Nile", [], settings) == []
    with pytest.raises(InputError, match=r"passages\[0\]: expected a text, a Passage, .* got 3"):
        variants.rerank_passages("about the Nile", [3], settings)


def test_reading_more_passages_one_at_a_time_shares_them():
    reader = TokenReader(write=lambda prompt, i: "unknown")
    passages = [f"Passage {i} says that " + "much " * 60 for i in range(9)]
    cost = sure.ask(reader, QUESTION, passages, method="selection_inference").costs["answers"]
    assert cost.calls == 9
    assert cost.computed_tokens < 0.4 * cost.total_tokens  # 2 / (9 + 1) but for the questions


def test_importing_imports_no_torch():
    code = "import sys, fastreader as fr; fr.sure.variants.METHODS; fr.sure.answer; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_method_result_repr():
    result, _ = asked("base")
    assert isinstance(result, MethodResult)
    assert repr(result) == f"MethodResult({QUESTION!r} -> 'an answer', base)"
