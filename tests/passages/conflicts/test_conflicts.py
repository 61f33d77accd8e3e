"""conflicts against the model's own forward, one sequence at a time, and its judgement against plain loops."""

import numpy as np
import pytest
from helpers.support import one_by_one

import fastreader as fr
from fastreader.errors import InputError
from fastreader.passages.conflicts import Conflicts
from fastreader.passages.conflicts.claims import instead, spans, stated
from fastreader.passages.conflicts.judge import judge
from fastreader.reader.prompts.pieces import encode

QUESTION = "Which river is in Cairo?"
PASSAGES = [
    fr.Passage("The Nile flows through Cairo, and the Nile is long.", "Nile"),
    fr.Passage("The Seine flows through Cairo."),
    fr.Passage("Cats sleep a lot."),
]
CANDIDATES = ["Nile", "Seine"]
LONG = "which has been known for a very long time to everybody who has ever lived in the city or near it, " * 3


def own(reader, pairs):
    return [float(values.sum()) for values in one_by_one(reader.local_model.model.original, pairs)]


def test_against_the_model_one_sequence_at_a_time(tiny_reader):
    found = fr.conflicts(tiny_reader, QUESTION, PASSAGES, CANDIDATES)
    pieces = encode(tiny_reader.encoder, fr.Template(), QUESTION, PASSAGES, CANDIDATES)
    closed = own(tiny_reader, [(pieces.head + pieces.tail(), c) for c in pieces.candidates])
    assert closed == pytest.approx(found.closed_book_logprobs, abs=1e-4)
    for i in range(3):
        context = pieces.head + pieces.body([i]) + pieces.tail()
        alone = own(tiny_reader, [(context, c) for c in pieces.candidates])
        assert alone == pytest.approx(found.logprobs[i], abs=1e-4)
    # The whole text with either name, scored from the first token of the passage: what the names share cancels.
    for i, (old, new) in ((0, ("Nile", "Seine")), (1, ("Seine", "Nile"))):
        both = [
            fr.Passage(PASSAGES[i].text.replace(old, name), PASSAGES[i].title.replace(old, name)) for name in (old, new)
        ]
        written = encode(tiny_reader.encoder, fr.Template(), QUESTION, both, [])
        kept, other = own(tiny_reader, [(written.head, written.passages[k][0]) for k in range(2)])
        assert found.texts[i, CANDIDATES.index(new)] == pytest.approx(other - kept, abs=2e-4)
        assert found.texts[i, CANDIDATES.index(old)] == 0
    assert np.isnan(found.texts[2]).all() and found.claims == [0, 1, None] and not found.proposed
    assert np.allclose(found.ratios, found.logprobs - found.closed_book_logprobs)


def test_one_packed_pass(tiny_reader, monkeypatch):
    calls = []
    score = type(tiny_reader).score
    monkeypatch.setattr(type(tiny_reader), "score", lambda *a, **k: calls.append(1) or score(*a, **k))
    found = fr.conflicts(tiny_reader, QUESTION, PASSAGES, CANDIDATES)
    assert len(calls) == 1 and found.stats.computed_tokens < found.stats.total_tokens
    fr.conflicts(tiny_reader, QUESTION, PASSAGES)
    assert len(calls) == 3  # proposals take a separate pass


def test_candidates_from_the_passages(tiny_reader):
    found = fr.conflicts(tiny_reader, QUESTION, PASSAGES)
    own_spans = [spans(p.text) for p in PASSAGES]
    assert found.proposed and set(found.candidates) <= {s for each in own_spans for s in each}
    assert len(found.candidates) == len({c.lower() for c in found.candidates})
    nothing = fr.conflicts(tiny_reader, QUESTION, ["the of and", "is it to"])
    assert nothing.candidates == [] and nothing.odd is None and nothing.consensus is None and nothing.score == 0
    assert nothing.ratios.shape == (2, 0)


def test_an_example_brings_its_candidates(tiny_reader):
    example = fr.Example(QUESTION, PASSAGES, candidates=CANDIDATES, id="q")
    found = fr.conflicts(tiny_reader, example)
    assert found.candidates == CANDIDATES and found.id == "q"
    assert np.allclose(found.logprobs, fr.conflicts(tiny_reader, QUESTION, PASSAGES, CANDIDATES).logprobs, atol=1e-5)


def test_saved_and_loaded(tiny_reader, tmp_path):
    found = fr.conflicts(tiny_reader, QUESTION, PASSAGES, CANDIDATES)
    found.save(tmp_path / "c.json")
    again = Conflicts.load(tmp_path / "c.json")
    assert again.to_dict() == found.to_dict() and repr(again) == repr(found)
    assert "3 passages x 2 candidates" in repr(found)
    with pytest.raises(InputError, match="supports"):
        Conflicts.from_dict({"candidates": []})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((QUESTION, []), "passages: expected at least one passage"),
        ((QUESTION, PASSAGES, ["Nile"]), "candidates: expected two or more that differ"),
        ((QUESTION, PASSAGES, ["Nile", "the Nile!"]), "candidates: expected two or more that differ"),
        ((QUESTION, PASSAGES, []), "candidates: expected at least one candidate"),
        ((QUESTION, PASSAGES, ["Nile", " "]), r"candidates\[1\]: expected text that is not empty"),
    ],
)
def test_rejects(tiny_reader, arguments, message):
    with pytest.raises(InputError, match=message):
        fr.conflicts(tiny_reader, *arguments)


def judged_by_loops(ratios, texts):
    """The docstring's formulas, element by element."""
    n, k = ratios.shape
    total = [0.0] * k
    for i in range(n):
        for c in range(k):
            total[c] += np.clip(ratios[i][c] - max(ratios[i][o] for o in range(k) if o != c), -2, 2)
            others = [texts[i][o] for o in range(k) if o != c and not np.isnan(texts[i][o])]
            if not np.isnan(texts[i][c]) and others:
                total[c] += 0.3 * (texts[i][c] - max(others))
    best = int(np.argmax(total))
    odd = []
    for i in range(n):
        stating = [c for c in range(k) if texts[i][c] == 0]
        rivals = [texts[i][o] for o in range(k) if o not in stating[:1] and not np.isnan(texts[i][o])]
        text = np.clip(max(rivals, default=-10.0), -10, 10) if stating else -2.0
        odd.append(text + 0.2 * (max(ratios[i][o] for o in range(k) if o != best) - ratios[i][best]))
    return best, odd


def test_judgement_against_loops():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, k = rng.integers(1, 6), rng.integers(2, 6)
        ratios, texts = rng.normal(0, 4, (n, k)), rng.normal(0, 8, (n, k))
        texts[rng.random((n, k)) < 0.2] = np.nan
        for i in range(n):
            texts[i] = np.nan if rng.random() < 0.4 else np.where(np.arange(k) == rng.integers(k), 0.0, texts[i])
        found = judge(ratios, texts)
        best, odd = judged_by_loops(ratios, texts)
        assert found.consensus == best and found.odd_scores == pytest.approx(odd)
        assert found.supports == [int(r.argmax()) if r.max() > 0 else None for r in ratios]


def test_who_is_odd():
    """Two passages read and state A, one states B although its text prefers A. One states nothing and is not odd."""
    ratios = np.array([[6.0, 0.0], [4.0, 1.0], [0.0, 5.0], [0.2, 0.1]])
    texts = np.array([[0.0, -9.0], [0.0, -5.0], [7.0, 0.0], [np.nan, np.nan]])
    found = judge(ratios, texts)
    assert found.consensus == 0 and int(found.odd_scores.argmax()) == 2 and found.odd_scores[2] > 0
    assert (found.odd_scores[[0, 1, 3]] < 0).all() and found.supports == [0, 0, 1, 0]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The Treaty of Rome was signed on 25 March 1957.", ["Treaty of Rome", "signed", "25 March 1957"]),
        ("It was May 18, 2018, in Paris.", ["May 18, 2018", "Paris"]),
        ("the cell nucleus holds most of the 20% of DNA", ["cell nucleus holds", "20% of DNA"]),
        ("Charles Darwin (Shrewsbury)", ["Charles Darwin", "Shrewsbury"]),
        ("of the and", []),
        ("Paris, Paris and the Paris.", ["Paris"]),
    ],
)
def test_spans(text, found):
    assert spans(text) == found


def test_claims_are_whole_words():
    passage = fr.Passage("A NILE and a Nilegau.", "Nile")
    assert stated("nile", passage) and not stated("Nil", passage)
    (changed,) = instead(passage, "Nile", [r"Rhine\1"])
    assert changed.text == r"A Rhine\1 and a Nilegau." and changed.title == r"Rhine\1"
    (cut,) = instead(fr.Passage(f"The Nile, {LONG}end."), "Nile", ["Rhine"])
    assert cut.text.startswith("The Rhine, which") and 170 < len(cut.text) < 200 and not cut.text.endswith("end.")


@pytest.mark.parametrize(
    "candidates", [["the Nile", "the Seine"], ["ナイル川", "セーヌ川"], ["แม่น้ำ", "Seine"], ["x", "a b"]]
)
@pytest.mark.parametrize(
    "passages", [["Cats sleep.", "Dogs bark."], ["眠い。"], ["...", "?!", "5"], ["Cats sleep."] * 3]
)
def test_passages_that_state_no_candidate(tiny_reader, passages, candidates):
    found = fr.conflicts(tiny_reader, QUESTION, passages, candidates)
    assert found.claims == [None] * len(passages) and np.isnan(found.texts).all()
    assert found.consensus is None and found.odd is None and found.score == 0
    assert "no passage states a candidate" in found.note and found.note in repr(found)
    assert np.isfinite(found.logprobs).all() and found.logprobs.shape == (len(passages), 2)
    again = Conflicts.from_dict(found.to_dict())
    assert again.note == found.note and np.isnan(again.texts).all()


@pytest.mark.parametrize(
    ("candidate", "text", "wanted"),
    [
        ("東京", "日本の首都は東京です。", True),
        ("京都", "日本の首都は東京です。", False),
        ("กรุงเทพ", "เมืองหลวงคือกรุงเทพครับ", True),
        ("서울", "수도는 서울이다.", True),
        ("NASA", "それはNASAの計画。", True),
        ("NASA", "それはNASAXの計画。", False),
        ("1908", "在1908年。", True),
        ("908", "在1908年。", False),
        ("ភ្នំពេញ", "រាជធានីគឺភ្នំពេញនៅ", True),
        ("Nile", "Niles", False),
        ("Нил", "Река Нил.", True),
        ("Нил", "Нила", False),
        ("C++", "in C++11", False),
        ("C++", "in C++.", True),
    ],
)
def test_words_of_scripts_without_spaces(candidate, text, wanted):
    assert stated(candidate, fr.Passage(text)) is wanted


def test_claims_in_scripts_without_spaces(tiny_reader):
    found = fr.conflicts(tiny_reader, "首都は?", ["首都は東京です。", "京都は古い都です。"], ["東京", "京都"])
    assert found.claims == [0, 1] and not found.note and np.isfinite(found.texts).all()
