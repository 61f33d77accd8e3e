"""fr.rerank by the yes or no of any reader, and by the first token of a listwise answer."""

import numpy as np
import pytest
from helpers.support import byte_tokenizer, one_by_one, tiny_llama

import fastreader as fr
from fastreader.errors import ContextOverflowError, InputError
from fastreader.moi.baselines import FirstTokenPrompt, first_token
from fastreader.passages.ranking.yes_no import YesNoPrompt

QUESTION = "Which river is long?"
PASSAGES = ["The Nile is a river.", "Bread is baked.", fr.Passage("It flows north.", title="Nile"), "Cats sleep."]


def odds(reader, texts, question, passage):
    """Return log P(yes) - log P(no), one sequence at a time, in float64."""
    query = texts.query.format(question=question, instruction=texts.instruction)
    prompt = reader.prompt([query, texts.passage.format(passage=passage), texts.ask])
    pairs = [(prompt, reader.continuation(label)) for label in (texts.yes, texts.no)]
    yes, no = (float(values.sum()) for values in one_by_one(tiny_llama().double(), pairs))
    return yes - no


@pytest.mark.parametrize("labels", [("Yes", "No"), ("relevant", "not relevant"), ("yes", "yes, but no")])
def test_values_are_log_odds_of_labels_of_any_length(tiny_reader, labels):
    texts = YesNoPrompt(yes=labels[0], no=labels[1])
    ranking = fr.rerank(tiny_reader, QUESTION, PASSAGES, method="yes_no", prompt=texts)
    shown = [PASSAGES[0], PASSAGES[1], "Nile\nIt flows north.", PASSAGES[3]]
    for result in ranking:
        want = odds(tiny_reader, texts, QUESTION, shown[result.index])
        assert result.value == pytest.approx(want, abs=2e-5)
        assert result.relevance == pytest.approx(1 / (1 + np.exp(-result.value)))
    assert [r.value for r in ranking] == sorted((r.value for r in ranking), reverse=True)


def test_calibration_subtracts_the_empty_passage(tiny_reader):
    plain = fr.rerank(tiny_reader, QUESTION, PASSAGES, method="yes_no")
    fair = fr.rerank(tiny_reader, QUESTION, PASSAGES, method="yes_no", calibrate=True)
    blank = odds(tiny_reader, YesNoPrompt(), QUESTION, "")
    assert fair.indices == plain.indices
    assert [r.value for r in fair] == pytest.approx([r.value - blank for r in plain], abs=2e-5)


def test_questions_together_as_alone(tiny_reader):
    questions, lists = ["a?", "b?", "c?"], [PASSAGES, [], ["", *PASSAGES[:2]]]
    together = fr.rerank(tiny_reader, questions, lists, method="yes_no", calibrate=True)
    for ranking, question, passages in zip(together, questions, lists, strict=True):
        alone = fr.rerank(tiny_reader, question, passages, method="yes_no", calibrate=True)
        assert alone.indices == ranking.indices and alone.stats == ranking.stats
        assert [r.value for r in alone] == pytest.approx([r.value for r in ranking], abs=1e-5)
    assert together[2][-1].note == "no text, so not scored"


def test_an_instruction_takes_the_place_of_the_prompts(tiny_reader):
    own = fr.rerank(tiny_reader, QUESTION, PASSAGES, method="yes_no", instruction="Find food.")
    same = fr.rerank(tiny_reader, QUESTION, PASSAGES, method="yes_no", prompt=YesNoPrompt(instruction="Find food."))
    assert [r.value for r in own] == [r.value for r in same]
    with pytest.raises(InputError, match="instruction: expected None, since 'query_likelihood' has a template"):
        fr.rerank(tiny_reader, QUESTION, PASSAGES, instruction="Find food.")


def test_long_passages_are_cut():
    reader = fr.Reader.load((tiny_llama(max_position_embeddings=256), byte_tokenizer()), check="off")
    long = "word " * 80
    ranking = fr.rerank(reader, "Which?", [long, "short"], method="yes_no")
    notes = {result.index: result.note for result in ranking}
    assert notes[0].startswith("cut by") and notes[1] == ""
    cut = int(notes[0].split()[2])
    kept = ("Passage: " + long.strip() + "\n\n")[:-cut]
    texts = YesNoPrompt()
    query = texts.query.format(question="Which?", instruction=texts.instruction)
    prompt = reader.prompt([query, kept, texts.ask])
    assert len(prompt) == 256 - len(reader.continuation("Yes")) + 1
    with pytest.raises(ContextOverflowError, match=r"question 0: passages\[0\] is \d+ tokens too long"):
        fr.rerank(reader, "Which?", [long], method="yes_no", on_overflow="error")
    with pytest.raises(ContextOverflowError, match="leaves no room"):
        fr.rerank(reader, long, ["short"], method="yes_no")


def test_equal_labels_and_unknown_settings_are_refused(tiny_reader):
    with pytest.raises(InputError, match="got 'Yes' twice"):
        fr.rerank(tiny_reader, QUESTION, PASSAGES, method="yes_no", prompt=YesNoPrompt(no="Yes "))
    with pytest.raises(InputError, match="window: expected a setting of 'yes_no'"):
        fr.rerank(tiny_reader, QUESTION, PASSAGES, method="yes_no", window=3)


def test_first_token_orders_by_the_identifiers(tiny_reader):
    texts = [passage if isinstance(passage, str) else f"{passage.title}: {passage.text}" for passage in PASSAGES]
    prompt = FirstTokenPrompt()
    about = {"question": QUESTION, "count": 4}
    shown = [prompt.passage.format(identifier=letter, passage=text) for letter, text in zip("ABCD", texts, strict=True)]
    context = tiny_reader.prompt([prompt.instruction.format(**about), *shown, prompt.ask.format(**about)])
    pairs = [(context, tiny_reader.continuation(letter)) for letter in "ABCD"]
    values = np.array([float(v.sum()) for v in one_by_one(tiny_llama().double(), pairs)])
    ranking = fr.rerank(tiny_reader, QUESTION, PASSAGES, method="first_token")
    assert ranking.indices == np.argsort(-values, kind="stable").tolist()
    found = {result.index: result.value for result in ranking}
    assert [found[i] for i in range(4)] == pytest.approx(values - np.logaddexp.reduce(values), abs=2e-5)


def test_first_token_over_orders_is_the_mean(tiny_reader):
    passages = [fr.Passage(text) for text in ("a", "b", "c")]
    orders = first_token(tiny_reader, QUESTION, passages, orders=6)  # all of them
    assert orders.details == {"orders": 6}
    for change in ([2, 0, 1], [1, 0, 2]):
        moved = first_token(tiny_reader, QUESTION, [passages[i] for i in change], orders=6)
        assert moved.scores == pytest.approx(orders.scores[change], abs=1e-5)
    assert orders.stats.computed_tokens < orders.stats.total_tokens


def test_first_token_windows_move_the_best_along(tiny_reader):
    passages = [fr.Passage(f"passage {i}") for i in range(7)]
    slid = first_token(tiny_reader, QUESTION, passages, window=3, step=2)
    assert sorted(slid.order) == list(range(7)) and sorted(slid.scores) == list(range(7))
    order, end = list(range(7)), 7
    while True:
        part = order[max(0, end - 3) : end]
        own = first_token(tiny_reader, QUESTION, [passages[i] for i in part]).order
        order[max(0, end - 3) : end] = [part[i] for i in own]
        if end <= 3:
            break
        end -= 2
    assert slid.order == order
    assert first_token(tiny_reader, QUESTION, passages[:1]).order == [0]
    for wrong in ({"window": 27}, {"window": 1}, {"step": 0}, {"orders": 0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            first_token(tiny_reader, QUESTION, passages, **wrong)
