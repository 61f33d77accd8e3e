import copy
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers.support import QUESTIONS, one_by_one

from fastreader import (
    Example,
    Passage,
    PermutationScores,
    Reader,
    Template,
    load_examples,
    permutation_cost,
    score_permutations,
)
from fastreader import permutations as designs
from fastreader.errors import ContextOverflowError, InputError, MissingExtraError, NumericsError, OutOfBudgetError
from fastreader.models.machine import memory
from fastreader.reader.prompts.pieces import encode
from fastreader.statistics.measures.answers import contained, exact_match, f1

QUESTION = "Which colour is the sky?"
PASSAGES = [
    Passage("The sky is blue.", title="Sky"),
    Passage("Grass is green."),
    Passage("Roses are red.", title="Rose"),
]
CANDIDATES = ["blue", "green", "a very deep red"]


def sequences_by_hand(reader, template, order, passages=PASSAGES, candidates=CANDIDATES):
    """Question and candidates of one ordering as token sequences, put together from the definition."""
    pieces = encode(reader.encoder, template, QUESTION, passages, candidates)
    body = [t for place, p in enumerate(order) for t in pieces.passage(p, place)]
    context = pieces.head + body
    question = (context + pieces.question_lead, pieces.question)
    return question, [(context + pieces.tail(), c) for c in pieces.candidates], (pieces.head, body)


@pytest.mark.parametrize("design", ["cyclic", "random:5", "latin", "identity", np.array([[2, 0], [1, 2]])])
def test_against_the_model_one_sequence_at_a_time(tiny_reader, design):
    scores = score_permutations(
        tiny_reader, QUESTION, PASSAGES, CANDIDATES, design, score_passages=True, closed_book=True, token_logprobs=True
    )
    own = lambda sequences: [w.sum() for w in one_by_own(tiny_reader, sequences)]  # noqa: E731
    for m, order in enumerate(scores.permutations.tolist()):
        question, candidates, passages = sequences_by_hand(tiny_reader, Template(), order)
        assert own([question])[0] == pytest.approx(scores.question_logprobs[m], abs=1e-4)
        assert own(candidates) == pytest.approx(scores.logprobs[m], abs=1e-4)
        assert own([passages])[0] == pytest.approx(scores.passages_logprobs[m], abs=1e-3)
        assert len(passages[1]) == scores.passages_tokens[m]
        assert sum(scores.token_logprobs.question[m]) == pytest.approx(scores.question_logprobs[m])
        assert [sum(c) for c in scores.token_logprobs.candidates[m]] == pytest.approx(scores.logprobs[m])
        assert sum(scores.token_logprobs.passages[m]) == pytest.approx(scores.passages_logprobs[m])
    pieces = encode(tiny_reader.encoder, Template(), QUESTION, PASSAGES, CANDIDATES)
    priors = [(pieces.head + pieces.tail(), c) for c in pieces.candidates]
    assert own(priors) == pytest.approx(scores.closed_book_logprobs, abs=1e-4)
    assert scores.candidate_tokens.tolist() == [len(c) for c in pieces.candidates]
    assert scores.question_tokens == len(pieces.question)


def one_by_own(reader, sequences):
    """`one_by_one` with the reader's own copy, which answers through its original attention."""
    return one_by_one(reader.local_model.model.original, sequences)


def test_question_first_scores_the_question_without_passages(tiny_reader):
    scores = score_permutations(tiny_reader, QUESTION, PASSAGES, CANDIDATES, template=Template(question_first=True))
    assert np.ptp(scores.question_logprobs) == 0
    assert np.ptp(scores.logprobs[:, 0]) > 0


def test_texts_do_for_passages_and_question_only_needs_no_candidates(tiny_reader):
    scores = score_permutations(tiny_reader, QUESTION, ["The sky is blue.", "Grass is green."], question_only=True)
    assert scores.logprobs.shape == (2, 0)
    assert scores.best is None
    assert "question  mean" in repr(scores)


def test_many_examples_equal_one_at_a_time(tiny_reader):
    examples = [Example(f"{QUESTION} {i}", PASSAGES[: 1 + i % 3], candidates=CANDIDATES[: 1 + i % 2]) for i in range(7)]
    alone = [score_permutations(tiny_reader, e) for e in examples]
    for max_batch_tokens in (None, 300, 2000):
        together = list(score_permutations(tiny_reader, examples, max_batch_tokens=max_batch_tokens, progress=False))
        assert [t.question for t in together] == [a.question for a in alone]
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
            assert one.stats.total_tokens == other.stats.total_tokens


def test_many_examples_are_read_as_they_are_needed(tiny_reader):
    read = []

    def stream():
        for i in range(50):
            read.append(i)
            yield Example(QUESTION, PASSAGES, candidates=CANDIDATES)

    results = score_permutations(tiny_reader, stream(), max_batch_tokens=1000)
    next(results)
    assert len(read) < 10


def test_on_error_leaves_out_and_goes_on(tiny_reader):
    examples = [Example(QUESTION, PASSAGES, candidates=["a"], id="x"), Example("", PASSAGES), Example(QUESTION, [])]
    with pytest.raises(InputError, match="example 1: question"):
        list(score_permutations(tiny_reader, examples, candidates=["a"]))
    seen = []
    results = list(score_permutations(tiny_reader, examples, on_error=lambda i, e, error: seen.append((i, str(error)))))
    assert [r.id for r in results] == ["x"]
    assert [i for i, _ in seen] == [1, 2]


def test_an_error_of_the_pass_is_told_of_its_example(tiny_reader, monkeypatch):
    """Examples that were packed with it are scored all the same, and those before it given first."""
    examples = [Example(QUESTION, PASSAGES, candidates=[c], id=c) for c in ("a", "bad", "c")]
    bad, score = tiny_reader.continuation("bad"), tiny_reader.score

    def broken(sequences, **options):
        if any(list(continuation)[: len(bad)] == bad for _, continuation in sequences):
            raise NumericsError("sequence 5: a log-likelihood is not finite")
        return score(sequences, **options)

    monkeypatch.setattr(tiny_reader, "score", broken)
    results = score_permutations(tiny_reader, examples)
    assert next(results).id == "a"
    with pytest.raises(NumericsError, match=r"example 1 \(id bad\): sequence 5"):
        next(results)
    seen = []
    results = score_permutations(tiny_reader, examples, on_error=lambda i, e, error: seen.append((i, e.id, str(error))))
    assert [r.id for r in results] == ["a", "c"]
    assert [(i, name) for i, name, _ in seen] == [(1, "bad")]


def test_one_failing_example_of_sixteen_costs_nine_calls(tiny_reader, monkeypatch):
    """Found by halving: 1 + 2 log2(16) calls of the reader, not 17."""
    examples = [Example("Who?", PASSAGES[:2], candidates=["bad" if i == 11 else "good"], id=str(i)) for i in range(16)]
    bad, score, calls = tiny_reader.continuation("bad"), tiny_reader.score, []

    def broken(sequences, **options):
        calls.append(len(sequences))
        if any(list(continuation)[: len(bad)] == bad for _, continuation in sequences):
            raise NumericsError("a log-likelihood is not finite")
        return score(sequences, **options)

    monkeypatch.setattr(tiny_reader, "score", broken)
    seen = []
    results = list(score_permutations(tiny_reader, examples, on_error=lambda i, e, error: seen.append(i)))
    assert [r.id for r in results] == [str(i) for i in range(16) if i != 11]
    assert seen == [11] and len(calls) == 9


@pytest.mark.parametrize("template", ["my.toml", "", {}])
def test_a_template_is_no_text(tiny_reader, template):
    with pytest.raises(InputError, match=r"template: expected a Template \(Template.load reads one\) or None, got"):
        score_permutations(tiny_reader, QUESTION, PASSAGES, ["a"], template=template)


def test_one_text_is_no_list(tiny_reader):
    for name in ("passages", "answers", "candidates"):
        with pytest.raises(InputError, match=f"Example.{name}: expected a list.*, got 'Paris'"):
            Example(**{"question": QUESTION, "passages": PASSAGES, name: "Paris"})
    for measure in (exact_match, contained, f1):
        with pytest.raises(InputError, match="right: expected a list, got 'Nice'"):
            measure("the capital is Lyon", "Nice")


def test_an_example_that_does_not_fit_in_memory_is_skipped_like_any_other(tiny_reader, monkeypatch):
    monkeypatch.setattr(tiny_reader.local_model.model, "overhead", memory.NO_OVERHEAD)
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1300 * tiny_reader.local_model.model.bytes_per_token)
    big = Example(QUESTION, [Passage("word " * 250)], candidates=["a"], id="big")
    small = Example(QUESTION, PASSAGES[:1], candidates=["a"], id="small")
    with pytest.raises(OutOfBudgetError, match=r"example 0 \(id big\): sequences: one sequence of"):
        list(score_permutations(tiny_reader, [big, small]))
    seen = []
    results = score_permutations(tiny_reader, [big, small], on_error=lambda i, e, error: seen.append(e.id))
    assert [r.id for r in results] == ["small"] and seen == ["big"]


def test_texts_do_for_the_passages_of_an_example(tiny_reader):
    by_text = score_permutations(tiny_reader, Example(QUESTION, ["The sky is blue."], candidates=["a"]))
    by_passage = score_permutations(tiny_reader, Example(QUESTION, [Passage("The sky is blue.")], candidates=["a"]))
    np.testing.assert_array_equal(by_text.logprobs, by_passage.logprobs)


def test_pruning_by_places_and_by_the_retrievers_scores(tiny_reader):
    scored = [Passage(p.text, p.title, score=s) for p, s in zip(PASSAGES, (5.0, 4.0, -9.0), strict=True)]
    two = score_permutations(tiny_reader, QUESTION, scored, ["a"], prune=2)
    assert two.permutations.tolist() == [[0, 1], [1, 2], [2, 0]]
    share = score_permutations(tiny_reader, QUESTION, scored, ["a"], prune_mass=0.9)
    np.testing.assert_array_equal(share.logprobs, two.logprobs)
    assert score_permutations(tiny_reader, QUESTION, scored, ["a"], prune=9).permutations.shape == (3, 3)
    for bad in (0, 1.5, "two", True):
        with pytest.raises(InputError, match="prune"):
            score_permutations(tiny_reader, QUESTION, scored, ["a"], prune=bad)
    with pytest.raises(InputError, match="score of every passage"):
        score_permutations(tiny_reader, QUESTION, PASSAGES, ["a"], prune_mass=0.5)


def test_cost_is_what_the_run_takes(tiny_reader):
    cost = permutation_cost(tiny_reader, QUESTION, PASSAGES, CANDIDATES, closed_book=True)
    assert cost == score_permutations(tiny_reader, QUESTION, PASSAGES, CANDIDATES, closed_book=True).stats


def test_the_question_is_scored_at_no_extra_token(tiny_reader):
    alone = permutation_cost(tiny_reader, QUESTION, PASSAGES, question_only=True).computed_tokens
    full = permutation_cost(tiny_reader, QUESTION, PASSAGES, ["z"]).computed_tokens
    pieces = encode(tiny_reader.encoder, Template(), QUESTION, PASSAGES, ["z"])
    # Per ordering: the last question token becomes an input, then the answer lead-in and all but "z"'s last token.
    assert full - alone == 3 * (1 + len(pieces.answer) + len(pieces.candidates[0]) - 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"passages": []}, "at least one passage"),
        ({"passages": None}, "at least one passage"),
        ({"passages": "text"}, "passages: expected a list or None, got 'text'"),
        ({"passages": ["a", " "]}, r"passages\[1\]: text: expected text that is not empty, got ' '"),
        ({"passages": [3]}, r"passages\[0\]: expected a text, a Passage, .* got 3"),
        ({"passages": Passage("a")}, "passages: expected a list or None, got Passage"),
        ({"max_batch_tokens": 0}, "max_batch_tokens: expected an integer of at least 1 or None, got 0"),
        ({"max_batch_tokens": "4000"}, "max_batch_tokens: expected an integer or None, got '4000'"),
        ({"candidates": []}, "at least one candidate"),
        ({"candidates": None}, "at least one candidate"),
        ({"candidates": "blue"}, "candidates: expected a list of texts or None, got 'blue'"),
        ({"candidates": ["blue", ""]}, r"candidates\[1\]"),
        ({"question": "  \n"}, "question: expected text that is not empty"),
        ({"question": ""}, "question: expected text that is not empty"),
        ({"permutations": "sideways"}, "sideways"),
        ({"permutations": [[0, 1, 2], [0, 0, 1]]}, "row 1"),
        ({"permutations": [[0, 1, 3]]}, "row 0"),
        ({"permutations": [[0, 1], [0]]}, "row 1: expected 2 places"),
        ({"on_overflow": "shorten"}, "on_overflow"),
    ],
)
def test_bad_input_is_named(tiny_reader, arguments, message):
    good = {"question": QUESTION, "passages": PASSAGES, "candidates": CANDIDATES}
    with pytest.raises(InputError, match=message):
        score_permutations(tiny_reader, **{**good, **arguments})


def test_a_bad_budget_is_refused_before_the_first_of_many(tiny_reader):
    with pytest.raises(InputError, match="max_batch_tokens: expected an integer of at least 1 or None, got 0"):
        score_permutations(tiny_reader, iter([]), max_batch_tokens=0)


LONG = [Passage("word " * n, title=f"t{n}") for n in (100, 20, 150, 200)]


def test_overflow_is_an_error_unless_named(tiny_reader):
    with pytest.raises(ContextOverflowError, match=r"has \d+ tokens, the model's context 2048"):
        score_permutations(tiny_reader, QUESTION, LONG, ["blue"])


def test_passages_read_alone_are_cut_and_dropped_with_the_others(tiny_reader):
    passages = [Passage("a"), Passage("b"), Passage("word " * 500)]
    only_two = {"permutations": "identity", "prune": 2, "question_only": True}
    score_permutations(tiny_reader, QUESTION, passages, **only_two)
    with pytest.raises(ContextOverflowError, match="the question: its longest prompt has"):
        score_permutations(tiny_reader, QUESTION, passages, query_likelihood=True, **only_two)
    cut = score_permutations(tiny_reader, QUESTION, passages, query_likelihood=True, on_overflow="truncate", **only_two)
    assert set(cut.truncated_tokens) == {2} and len(cut.query_logprobs) == 3
    dropped = score_permutations(
        tiny_reader, QUESTION, passages, query_likelihood=True, on_overflow="drop_passages", **only_two
    )
    assert dropped.dropped_passages == [2] and len(dropped.query_logprobs) == 2


def test_half_a_surrogate_pair_is_an_error_of_its_example(tiny_reader):
    bad = "cut \ud83d"
    examples = [Example(QUESTION, ["a"], candidates=["x"]), Example(QUESTION, ["a", bad], candidates=["x"], id="b")]
    failed = {}
    scores = list(
        score_permutations(tiny_reader, examples, on_error=lambda i, example, error: failed.update({i: error}))
    )
    assert len(scores) == 1
    assert str(failed[1]).startswith("example 1 (id b): passages[1]: text: expected text that UTF-8 can hold")
    with pytest.raises(InputError, match=r"the question: candidates\[0\]: .* surrogate pair at character 4"):
        score_permutations(tiny_reader, QUESTION, ["a"], [bad])
    with pytest.raises(InputError, match="question: expected text that UTF-8 can hold"):
        score_permutations(tiny_reader, bad, ["a"], ["x"])


def test_drop_passages_reports_what_it_dropped(tiny_reader):
    scores = score_permutations(tiny_reader, QUESTION, LONG, ["blue"], on_overflow="drop_passages")
    assert scores.dropped_passages == [3]
    same = score_permutations(tiny_reader, QUESTION, LONG[:3], ["blue"])
    np.testing.assert_array_equal(scores.permutations, same.permutations)
    np.testing.assert_allclose(scores.logprobs, same.logprobs, atol=1e-4)
    explicit = score_permutations(
        tiny_reader, QUESTION, LONG, ["blue"], [[3, 0, 1, 2], [0, 1, 2, 3], [2, 1, 3, 0]], on_overflow="drop_passages"
    )
    assert explicit.permutations.tolist() == [[0, 1, 2], [2, 1, 0]]
    pruned = score_permutations(
        tiny_reader, QUESTION, LONG, ["blue"], [[3, 0, 1, 2], [2, 3, 0, 1]], prune=3, on_overflow="drop_passages"
    )
    assert pruned.permutations.tolist() == [[0, 1, 2], [2, 0, 1]]
    with pytest.raises(InputError, match="the question: on_overflow='drop_passages': orderings of part"):
        score_permutations(tiny_reader, QUESTION, LONG, ["blue"], [[3, 0, 2], [0, 1, 2]], on_overflow="drop_passages")


def test_dropping_makes_named_designs_anew(tiny_reader):
    six = [*LONG, Passage("x"), Passage("y")]

    def dropped(design):
        return score_permutations(tiny_reader, QUESTION, six, ["blue"], design, on_overflow="drop_passages")

    random = dropped("random:30")
    assert random.permutations.shape == (6, 3) and random.design == "random"
    assert dropped("prefix_sharing:12").permutations.shape == (6, 3)
    assert dropped("prefix_sharing:60").permutations.shape == (6, 3)
    assert dropped("latin:100").permutations.shape == (6, 3)
    pruned = dropped(lambda n: designs.pruned(designs.cyclic(n), min(n, 4)))
    assert pruned.dropped_passages == [3, 4, 5]


def test_the_question_alone_may_use_the_whole_context(tiny_reader):
    pieces = encode(tiny_reader.encoder, Template(), QUESTION, [Passage("x")], [])
    fixed = len(pieces.head) + len(pieces.separator) + len(pieces.question_lead) + len(pieces.question) - 1
    around = len(pieces.passages[0][0]) - 1
    passage = Passage("x" * (2048 - fixed - around))
    assert score_permutations(tiny_reader, QUESTION, [passage], question_only=True).question_tokens
    with pytest.raises(ContextOverflowError):
        score_permutations(tiny_reader, QUESTION, [Passage(passage.text + "x")], question_only=True)


def test_truncate_reports_what_it_cut(tiny_reader):
    scores = score_permutations(tiny_reader, QUESTION, LONG, ["blue"], on_overflow="truncate")
    assert set(scores.truncated_tokens) <= {0, 2, 3} and 3 in scores.truncated_tokens
    assert not scores.dropped_passages
    whole = encode(tiny_reader.encoder, Template(), QUESTION, LONG, ["blue"])
    lengths = [len(whole.passages[p][0]) - scores.truncated_tokens.get(p, 0) for p in range(4)]
    assert scores.passages_tokens[0] == sum(lengths) + 4 * len(whole.separator)
    # The context is used up: one token more for the longest passages would not fit.
    used = len(whole.head) + scores.passages_tokens[0] + len(whole.tail()) + len(whole.candidates[0]) - 1
    cut = len(scores.truncated_tokens)
    assert 2048 - cut < used <= 2048


def test_even_one_passage_may_be_too_long(tiny_reader):
    huge = [Passage("word " * 600)]
    with pytest.raises(ContextOverflowError, match="even one passage"):
        score_permutations(tiny_reader, QUESTION, huge, ["blue"], on_overflow="drop_passages")
    with pytest.raises(ContextOverflowError, match="no room"):
        score_permutations(tiny_reader, "why? " * 500, huge, ["blue"], on_overflow="truncate")


def test_round_trip_through_a_file(tiny_reader, tmp_path):
    scores = score_permutations(
        tiny_reader, QUESTION, PASSAGES, CANDIDATES, score_passages=True, closed_book=True, token_logprobs=True
    )
    scores.save(tmp_path / "scores.json")
    back = PermutationScores.load(tmp_path / "scores.json")
    assert back.to_dict() == scores.to_dict()
    for name in ("logprobs", "permutations", "greedy", "closed_book_logprobs", "passages_logprobs"):
        got, want = getattr(back, name), getattr(scores, name)
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype
    assert back.stats == scores.stats and back.token_logprobs == scores.token_logprobs
    assert repr(back) == repr(scores)


def test_files_that_are_no_scores(tmp_path):
    file = tmp_path / "scores.json"
    for content, message in (("{", "not JSON"), ("[]", "an object"), ('{"loglik": []}', "permutations")):
        file.write_text(content)
        with pytest.raises(InputError, match=message):
            PermutationScores.load(file)
    for wrong in (
        {"closed_book_logprobs": [1.0]},
        {"candidates": "xy"},
        {"truncated_tokens": None},
        {"logprobs": [[1.0]]},
    ):
        with pytest.raises(InputError):
            hand_scores(**wrong)


def test_a_data_frame_has_a_row_for_each_ordering_and_candidate():
    frame = hand_scores(id="a").to_pandas()
    assert list(frame.logprob) == [-1.0, -2.0, -4.0, -3.0] and list(frame.candidate) == ["x", "y"] * 2
    assert list(frame.permutation) == [(0, 1), (0, 1), (1, 0), (1, 0)] and set(frame.id) == {"a"}
    assert frame.groupby("ordering").probability.sum().tolist() == pytest.approx([1.0, 1.0])
    alone = hand_scores(candidates=[], logprobs=[[], []], greedy=[[], []], candidate_tokens=[]).to_pandas()
    assert list(alone.question_logprob) == [-5.0, -6.0] and alone.candidate.isna().all()


def test_a_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pandas"):
        hand_scores().to_pandas()


def test_figures_and_notebooks_show_every_candidate(tmp_path):
    scores = hand_scores(question="is 1 < 2?")
    lines = scores.plot(tmp_path / "scores.svg").axes[0].get_lines()
    assert [line.get_ydata().tolist() for line in lines] == [[-1.0, -4.0], [-2.0, -3.0]]
    assert (tmp_path / "scores.svg").stat().st_size > 1000
    page = scores._repr_html_()
    assert "is 1 &lt; 2?" in page and page.count("<tr>") == 3


def hand_scores(**more):
    rows = {
        "permutations": [[0, 1], [1, 0]],
        "logprobs": [[-1.0, -2.0], [-4.0, -3.0]],
        "greedy": [[False] * 2] * 2,
        "question_logprobs": [-5.0, -6.0],
        "candidate_tokens": [1, 4],
        "passages_tokens": [9, 9],
        "question_tokens": 3,
        "question": "q",
        "candidates": ["x", "y"],
        "stats": {"sequences": 6, "total_tokens": 60, "computed_tokens": 30, "scored": 6},
        "seconds": 1.0,
        "reader": {},
        "design": "cyclic",
    }
    return PermutationScores.from_dict({**rows, **more})


def test_normalisations_by_hand():
    scores = hand_scores(closed_book_logprobs=[-3.0, -1.0])
    assert scores.normalised("token").tolist() == [[-1.0, -0.5], [-4.0, -0.75]]
    assert scores.normalised("pmi").tolist() == [[2.0, -1.0], [-1.0, -2.0]]
    share = 1 / (1 + np.exp(-1.0))
    assert scores.probabilities() == pytest.approx(np.array([[share, 1 - share], [1 - share, share]]))
    assert scores.consensus() == pytest.approx([0.5, 0.5])
    assert hand_scores(logprobs=[[-1.0, -2.0], [-3.0, -4.0]]).best == "x"
    with pytest.raises(InputError, match="closed_book=True"):
        hand_scores().normalised("pmi")
    with pytest.raises(InputError, match="must be one of"):
        scores.normalised("average")


def test_real_reader_on_a_bundled_question(packaged_reader, packaged_model):
    """End to end, real text and model: the packed numbers are the model's own."""
    example = load_examples(QUESTIONS)[0]
    passages, candidates = example.passages[:3], example.candidates[:2]  # in float64, one after another
    scores = score_permutations(packaged_reader, example.question, passages, candidates, permutations="cyclic")
    assert scores.stats.sharing_ratio > 1.5
    pieces = encode(packaged_reader.encoder, Template(), example.question, passages, candidates)
    model = copy.deepcopy(packaged_model).double()  # in float32 it is off by as much as ours
    context = pieces.head + pieces.body(scores.permutations[2].tolist()) + pieces.tail()
    (own,) = one_by_one(model, [(context, pieces.candidates[1])])  # of two that share the context
    assert own.sum() == pytest.approx(scores.logprobs[2, 1], abs=1e-4)


@pytest.mark.usefixtures("loaded_once")
@pytest.mark.parametrize(("precision", "mean", "most"), [("high", 0.001, 0.005), ("fast", 0.15, 0.5)])
@pytest.mark.long(keep=1)
def test_real_reader_in_lower_precision(packaged_reader, packaged_folder, precision, mean, most):
    """The promise of each precision, in nats a candidate, on the real weights."""
    example = load_examples(QUESTIONS)[1]
    example = replace(example, passages=example.passages[:4])
    exact = score_permutations(packaged_reader, example, permutations="identity")
    lower = score_permutations(
        Reader.load("smollm2-135m", "cpu", precision=precision), example, permutations="identity"
    )
    error = np.abs(lower.logprobs - exact.logprobs)
    assert error.mean() <= mean and error.max() <= most


def test_real_reader_learns_from_a_gold_passage(packaged_reader):
    """The right answer gets likelier when the passage that holds it is read. Else the prompt is broken."""
    gold = [
        Example(
            e.question, [p for p in e.passages if p.is_gold], candidates=[c for c in e.candidates if c in e.answers]
        )
        for e in load_examples(QUESTIONS)[:6]
    ]
    results = list(score_permutations(packaged_reader, gold, permutations="identity", closed_book=True))
    assert np.mean([s.logprobs[0, 0] - s.closed_book_logprobs[0] for s in results]) > 1.0


def test_designs_can_be_functions_and_objects(tiny_reader):
    by_object = score_permutations(tiny_reader, QUESTION, PASSAGES, ["blue"], designs.pruned(designs.cyclic(3), 2))
    by_function = score_permutations(
        tiny_reader, QUESTION, PASSAGES, ["blue"], lambda n: designs.pruned(designs.cyclic(n), 2)
    )
    np.testing.assert_array_equal(by_object.logprobs, by_function.logprobs)
    assert by_object.permutations.tolist() == [[0, 1], [1, 2], [2, 0]]
