"""conflicts against the model's own forward, one sequence at a time, and its judgement against plain loops."""

import itertools
import math

import numpy as np
import pytest
from helpers.support import one_by_one

import fastreader as fr
from fastreader.errors import InputError
from fastreader.passages.conflicts import Conflicts
from fastreader.passages.conflicts.claims import proposed, spans
from fastreader.passages.conflicts.evidence import undecided
from fastreader.passages.conflicts.find import EQUAL, TIED, comparable
from fastreader.passages.conflicts.judge import READING, TEXT, WEIGHTS, Evidence, judge
from fastreader.passages.conflicts.statements import statements
from fastreader.reader.prompts.pieces import encode

QUESTION = "Which river is in Cairo?"
PASSAGES = [
    fr.Passage("The Nile flows through Cairo, and the Nile is long.", "Nile"),
    fr.Passage("The Seine flows through Cairo."),
    fr.Passage("Cats sleep a lot."),
]
CANDIDATES = ["Nile", "Seine"]


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
    assert len(found.candidates) == len({c.lower() for c in found.candidates}) and "Cairo" not in found.candidates
    nothing = fr.conflicts(tiny_reader, QUESTION, ["the of and", "is it to"])
    assert nothing.candidates == [] and nothing.odd is None and nothing.consensus is None and nothing.score == 0
    assert nothing.ratios.shape == (2, 0) and "not enough to say" in nothing.note
    same = fr.conflicts(tiny_reader, "Who?", ["Ann.", "Ann."])
    assert same.candidates == ["Ann"] and same.odd is None and same.consensus == 0 and "one answer" in same.note
    differ = fr.conflicts(tiny_reader, "Who?", ["Ann.", "Bob."])
    assert differ.candidates == ["Ann", "Bob"] and differ.odd is None and differ.consensus is None
    assert differ.score == 0 and "no two passages" in differ.note
    agreed = fr.conflicts(tiny_reader, "Who?", ["Ann.", "Bob.", "It is Ann."])
    assert agreed.consensus == agreed.candidates.index("Ann") and agreed.odd == 1 and "may both be right" in agreed.note
    nested = fr.conflicts(tiny_reader, "Who?", ["Charles Darwin.", "Darwin."])
    assert nested.candidates == ["Charles Darwin"] and nested.stated.tolist() == [[1], [1]]


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
        ((QUESTION, PASSAGES, ["Nile", "the Nile!"]), "two or more that differ, got 'Nile' and 'the Nile!'"),
        ((QUESTION, PASSAGES, ["Nile", "Nile"]), "two or more that differ, got 'Nile' and 'Nile'"),
        ((QUESTION, PASSAGES, ["4 July 1776", "1776-07-04"]), "got '4 July 1776' and '1776-07-04'"),
        ((QUESTION, PASSAGES, []), "candidates: expected at least one candidate"),
        ((QUESTION, PASSAGES, ["Nile", " "]), r"candidates\[1\]: expected text that is not empty"),
    ],
)
def test_rejects(tiny_reader, arguments, message):
    with pytest.raises(InputError, match=message):
        fr.conflicts(tiny_reader, *arguments)


@pytest.mark.parametrize(
    ("aliases", "message"),
    [
        ({"Rhine": ["Rhein"]}, "aliases: expected candidates as keys"),
        ({"Nile": ["the Seine"]}, "'the Seine' is also a name of the candidate 'Seine'"),
        ({"Nile": ["x"], "Seine": ["X."]}, "'X.' is also a name of the candidate 'Nile'"),
        ({"Nile": [" "]}, "expected text that is not empty"),
        ({"Nile": "x"}, "aliases"),
    ],
)
def test_rejects_aliases(tiny_reader, aliases, message):
    with pytest.raises(InputError, match=message):
        fr.conflicts(tiny_reader, QUESTION, PASSAGES, CANDIDATES, aliases=aliases)


def test_aliases_given_twice_count_once(tiny_reader):
    passages = ["It is Father Nile.", "The Nile.", "It is the Seine."]
    plain = fr.conflicts(tiny_reader, QUESTION, passages, CANDIDATES, aliases={"Nile": ["River of Egypt"]})
    found = fr.conflicts(tiny_reader, QUESTION, passages, CANDIDATES, aliases={"Nile": ["Father Nile"] * 2 + ["Nile"]})
    assert found.stated.tolist() == plain.stated.tolist() == [[1, 0], [1, 0], [0, 1]]
    assert found.odd_scores == pytest.approx(plain.odd_scores)


def test_two_statements_against_one_decide_it_and_the_texts_are_not_scored(tiny_reader):
    passages = ["The Nile flows through Cairo.", "Cairo lies on the Seine.", "It is the Nile in Cairo."]
    found = fr.conflicts(tiny_reader, QUESTION, passages, CANDIDATES)
    assert found.consensus == 0 and found.odd == 1 and found.probabilities[0] > 0.8 and found.score > 0.9
    assert np.isnan(found.texts).all() and found.odd_scores[[0, 2]].max() < 0.2
    denied = fr.conflicts(tiny_reader, QUESTION, [passages[0], "It is not the Nile in Cairo.", passages[2]], CANDIDATES)
    assert denied.odd == 1 and denied.consensus == 0 and denied.denied.tolist() == [[0, 0], [1, 0], [0, 0]]
    agreed = fr.conflicts(tiny_reader, QUESTION, passages[::2], CANDIDATES)
    assert agreed.odd is None and agreed.consensus == 0 and agreed.score < 0.2


def made(rng, n, k):
    ratios, texts = rng.normal(0, 4, (n, k)), rng.normal(0, 8, (n, k))
    stated = rng.choice([0, 0, 0.5, 1], (n, k))
    denied = (rng.random((n, k)) < 0.2) & (stated == 0)
    claims = [
        int(np.where(s == 1, r, -np.inf).argmax()) if (s == 1).any() else None
        for s, r in zip(stated, ratios, strict=True)
    ]
    for i, claim in enumerate(claims):
        texts[i] = np.nan if claim is None or rng.random() < 0.4 else np.where(np.arange(k) == claim, 0.0, texts[i])
    return Evidence(stated, denied, rng.random(n), ratios, texts, numbers(claims))


def numbers(claims):
    return np.array([-1 if claim is None else claim for claim in claims])


def judged_by_enumeration(e):
    """All right candidates and all that the passages can say, one by one."""
    n, k = e.ratios.shape
    w = WEIGHTS
    mentioned = [any(e.stated[i, c] > 0 or e.denied[i, c] for i in range(n)) for c in range(k)]
    rest = mentioned.count(False)
    total, false, some, right = 0.0, [0.0] * n, 0.0, [0.0] * k
    for t in range(k):
        options = []
        for i in range(n):
            own = [(math.exp(w.silent - w.about * math.sqrt(e.about[i] / max(e.about))), False)]
            for c in range(k):
                lead = e.ratios[i, c] - max(e.ratios[i, o] for o in range(k) if o != c)
                value = w.statement * e.stated[i, c] + w.reading * min(max(lead, -READING), READING)
                if c != t:
                    value += w.altered
                    if e.claims[i] == c and not math.isnan(e.texts[i, t]):
                        value += w.text * min(max(e.texts[i, t], -TEXT), TEXT)
                    if not mentioned[c]:
                        value -= math.log(sum(not mentioned[o] for o in range(k) if o != t))
                own.append((math.exp(value), c != t))
                if e.denied[i, c]:
                    own.append((math.exp(w.denial + w.altered * (c == t)), c == t))
            options.append(own)
        prior = 1.0 if mentioned[t] else 1.0 / rest
        if not any(e.stated[i, t] > 0 for i in range(n)):
            prior *= math.exp(w.unstated)
        for said in itertools.product(*options):
            value = prior * math.prod(weight for weight, _ in said)
            total += value
            right[t] += value
            some += value * any(wrong for _, wrong in said)
            for i, (_, wrong) in enumerate(said):
                false[i] += value * wrong
    return np.array(right) / total, np.array(false) / total, some / total


def test_judgement_against_enumeration():
    rng = np.random.default_rng(0)
    seen = 0
    for _ in range(60):
        evidence = made(rng, rng.integers(1, 4), rng.integers(2, 5))
        found = judge(evidence)
        assert found.supports == [int(r.argmax()) if r.max() > 0 else None for r in evidence.ratios]
        if not (evidence.stated.any() or evidence.denied.any()):
            assert found.consensus is None and not found.odd_scores.any() and found.probability == 0
            continue
        right, odd, some = judged_by_enumeration(evidence)
        seen += 1
        assert found.probabilities == pytest.approx(right) and found.consensus == int(right.argmax())
        assert found.odd_scores == pytest.approx(odd) and found.probability == pytest.approx(some)
    assert seen > 40


def simple(claims, k=2, ratios=None, texts=None):
    """Evidence of passages that state one candidate each, or none."""
    n = len(claims)
    stated = np.array([[float(c == claim) for c in range(k)] for claim in claims])
    nothing = np.full((n, k), np.nan)
    return Evidence(
        stated, np.zeros((n, k), bool), np.ones(n), np.zeros((n, k)) if ratios is None else np.array(ratios, float),
        nothing if texts is None else np.array(texts, float), numbers(claims),
    )  # fmt: skip


def test_an_answer_that_passages_state_is_preferred_to_one_that_none_does():
    # two state the first candidate, two deny it, and nobody states the second
    found = simple([0, 0, None, None])
    found.denied[2:, 0] = True
    verdict = judge(found)
    assert verdict.consensus == 0 and verdict.probability > 0.9
    assert verdict.odd_scores[2:].min() > 0.5 > verdict.odd_scores[:2].max()
    as_before = judge(found, WEIGHTS._replace(unstated=0.0))
    assert as_before.odd_scores[2:].max() < verdict.odd_scores[2:].min()


def test_who_is_odd():
    two_to_one = judge(simple([0, 1, 0, None]))
    assert two_to_one.consensus == 0 and int(two_to_one.odd_scores.argmax()) == 1 and two_to_one.odd_scores[3] < 0.2
    one_to_one = judge(simple([0, 1]))
    assert one_to_one.probabilities == pytest.approx([0.5, 0.5]) and one_to_one.probability > 0.8
    assert one_to_one.odd_scores[0] == pytest.approx(one_to_one.odd_scores[1])
    texts = judge(simple([0, 1], texts=[[0, -8], [8, 0]]))
    assert texts.probabilities[0] > 0.8 and texts.odd_scores[1] > 0.8 > 0.2 > texts.odd_scores[0]
    readings = judge(simple([0, 1], ratios=[[3, 0], [2, 2]]))
    assert readings.probabilities[0] > 0.5
    alone = judge(simple([0, None, None]))
    assert alone.probability < 0.3 and alone.consensus == 0


def test_a_passage_about_something_else_counts_less():
    own = simple([0, 0, 1])
    odd = [judge(own._replace(about=np.array(about))).odd_scores[2] for about in ([1, 1, 1], [1, 1, 0.2], [1, 1, 0])]
    assert odd[0] > odd[1] > odd[2]
    scores = [judge(own._replace(about=np.full(3, share))).odd_scores for share in (1.0, 0.3, 0.0)]
    assert np.allclose(scores, scores[0])  # where no passage differs, the question's wording does not matter


def test_candidates_that_no_passage_mentions_change_little():
    few, many = judge(simple([0, 1, 0])), judge(simple([0, 1, 0], k=40))
    assert many.odd_scores == pytest.approx(few.odd_scores, abs=0.05) and many.consensus == 0


def test_texts_are_scored_where_statements_tie():
    def tied(*texts):
        return undecided(statements("", [fr.Passage(text) for text in texts], ["Nile", "Seine", "Rhine"], {}))

    assert tied("Nile", "Seine") == [0, 1] and tied("Nile", "Seine", "Rhine") == [0, 1, 2]
    assert tied("Nile", "Seine", "Nile") == [] and tied("Nile") == [] and tied("Cats") == []
    assert tied("Nile and Seine") == [0, 1] and tied("Nile and Seine", "Nile") == []
    assert tied("Nile", "not the Nile") == []


@pytest.mark.parametrize(
    ("question", "text", "found"),
    [
        ("Who wrote Emma?", "In 1815 Jane Austen wrote Emma.", ["Jane Austen"]),
        ("When was Emma written?", "In 1815 Jane Austen wrote Emma.", ["1815"]),
        ("How many rivers are there?", "There are 12 rivers and a lake in Peru.", ["12"]),
        ("Where is it?", "It lies in Peru, of 1815.", ["Peru"]),
        ("where is it?", "it lies in peru", ["lies", "peru"]),
        ("Who is it?", "It is 1815.", []),
    ],
)
def test_spans_of_the_kind_that_is_asked_for(question, text, found):
    assert proposed(question, text) == found


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


def test_claims_in_scripts_without_spaces(tiny_reader):
    found = fr.conflicts(tiny_reader, "首都は?", ["首都は東京です。", "京都は古い都です。"], ["東京", "京都"])
    assert found.claims == [0, 1] and np.isfinite(found.texts).all()


def test_a_tie_and_equal_passages_are_cautioned_about(tiny_reader):
    ann, paul = "It was Ann who wrote it.", "It was Paul who wrote it."
    names = ["Ann", "Paul"]
    tied = fr.conflicts(tiny_reader, "Who wrote it?", [ann, paul], names)
    assert tied.odd is not None and tied.note == TIED
    assert fr.conflicts(tiny_reader, "Who wrote it?", [ann, paul, "Ann wrote it."], names).note == ""
    assert fr.conflicts(tiny_reader, "Who wrote it?", [ann, paul, ann], names).note == EQUAL
    assert fr.conflicts(tiny_reader, "Who wrote it?", [ann, ann], names).note == ""  # nothing to be cautious about


def test_of_proposals_only_passages_that_are_about_the_question_as_much_count():
    """Two agree on the first. One of less about the question states the second, and one of as much denies the first."""
    stated = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    denied = np.array([[0, 0], [0, 0], [0, 0], [1, 0]], dtype=bool)
    nothing = np.full((4, 2), np.nan)
    for about, kept in (([0.8, 0.7, 0.4, 0.8], [0, 1, 3]), ([0.5, 1.0, 0.8, 0.79], [1, 2]), ([0, 0, 0, 0], range(4))):
        got = comparable(Evidence(stated, denied, np.array(about), nothing, nothing, np.array([0, 0, 1, -1])))
        own = np.isin(np.arange(4), kept)[:, None]
        assert (got.stated == stated * own).all() and (got.denied == denied & own).all()
