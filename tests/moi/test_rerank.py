from dataclasses import replace

import numpy as np
import pytest
from helpers.support import byte_tokenizer, tiny_llama
from lib.simulate import bias_shape
from test_debias import known

import fastreader as fr
from fastreader.errors import ContextOverflowError, InputError
from fastreader.moi import Stopping, answer, debias, observe, plan, rerank
from fastreader.moi.calibration.store import find, keep
from fastreader.moi.quantities.designs import prefixes
from fastreader.moi.quantities.utilities import matched

WORDS = ["red", "green blue", "a cat", "ten dogs ran", "the sea", "low", "up and off"]
QUESTION = "Which colour is it?"


def passages(n):
    return [fr.Passage(f"It is {w}.", title=f"T{i}", id=f"d{i}", score=float(9 - i)) for i, w in enumerate(WORDS[:n])]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))


@pytest.fixture
def bias(tiny_reader):
    def make(n, shape="last-dominant", **more):
        of = {"reader": tiny_reader.describe(), "template": fr.Template().digest(), **more}
        return known(bias_shape(shape, n), **of)

    return make


def test_with_a_bias(tiny_reader, bias):
    of = bias(5)
    ranked = rerank(tiny_reader, QUESTION, passages(5), of)
    assert (ranked.order, ranked.bias_source, ranked.tail) == ("matched", "given", 0)
    # The same by hand: score its orderings, debias, match.
    scores = fr.score_permutations(
        tiny_reader,
        QUESTION,
        passages(5),
        permutations=ranked.observations.permutations,
        question_only=True,
        query_likelihood=True,
    )
    utilities = debias(observe(scores), of)
    assert ranked.indices == matched(utilities.utility, of.bias).tolist()
    at = {p.index: p for p in ranked}
    for i in range(5):
        assert at[i].utility == pytest.approx(utilities.utility[i], abs=1e-3)
        assert at[i].relevance == pytest.approx(1 / (1 + np.exp(-at[i].utility)))
        assert at[i].interval[0] < at[i].utility < at[i].interval[1]
        assert at[i].passage is not None
    assert sum(p.p_best for p in ranked) == pytest.approx(1)
    assert ranked[4].utility == max(p.utility for p in ranked)  # the last place dominates


def test_passages_of_an_example_may_be_texts(tiny_reader, bias):
    texts = [f"It is {w}." for w in WORDS[:3]]
    of = bias(3)
    assert (
        rerank(tiny_reader, fr.Example(QUESTION, texts), None, of).indices
        == rerank(tiny_reader, QUESTION, texts, of).indices
    )


def test_descending(tiny_reader, bias):
    ranked = rerank(tiny_reader, QUESTION, passages(4), bias(4), "descending")
    utilities = [p.utility for p in ranked]
    assert utilities == sorted(utilities, reverse=True)
    assert [p.index for p in ranked.by_utility()] == ranked.indices
    with pytest.raises(InputError, match="undetermined"):
        rerank(tiny_reader, QUESTION, passages(4), bias(4, sign="undetermined"), "descending")
    assert len(rerank(tiny_reader, QUESTION, passages(4), bias(4, sign="undetermined"))) == 4


def test_the_cost_is_known_before(tiny_reader, bias):
    planned = plan(tiny_reader, QUESTION, passages(5), bias(5))
    assert planned.cost == rerank(tiny_reader, QUESTION, passages(5), bias(5)).cost
    scores = fr.score_permutations(tiny_reader, QUESTION, passages(5), question_only=True, permutations="random:15")
    assert planned.cost.full == scores.stats.total_tokens
    assert planned.cost.share == planned.cost.computed_tokens / scores.stats.total_tokens < 0.5


@pytest.mark.parametrize("n", [2, 3, 5])
def test_without_a_bias_the_retrievers_order_is_read_and_query_likelihoods_rank(n, tiny_reader):
    ranked = rerank(tiny_reader, QUESTION, passages(n))
    assert (ranked.bias_source, ranked.order) == ("none: query likelihood", "given")
    assert "no calibration" in ranked.note and "retriever's order" in ranked.note
    assert ranked.indices == list(range(n))
    alone = fr.score_permutations(
        tiny_reader, QUESTION, passages(n), question_only=True, permutations=np.arange(n)[:, None]
    ).question_logprobs
    assert [p.index for p in ranked.by_utility()] == np.argsort(-alone).tolist()
    assert ranked.utilities.utility == pytest.approx(alone - alone.mean(), abs=1e-4)
    assert all(p.interval is None and p.p_best is None for p in ranked)
    falling = rerank(tiny_reader, QUESTION, passages(n), order="descending")
    assert (falling.order, falling.indices) == ("descending", np.argsort(-alone).tolist())
    assert plan(tiny_reader, QUESTION, passages(n)).cost == ranked.cost
    read = answer(tiny_reader, QUESTION, passages(n), max_new_tokens=3)
    assert read.ranked.indices == list(range(n)) and "retriever's order" in read.note


def test_options_of_orderings_without_a_calibration_are_reported(tiny_reader):
    ranked = rerank(tiny_reader, QUESTION, passages(4), prune=2, stopping=Stopping())
    assert "prune, stopping: without a calibration there are no orderings" in ranked.note
    assert ranked.cost.passes == 1
    with pytest.raises(InputError, match="need a calibration"):
        rerank(tiny_reader, QUESTION, passages(4), permutations="cyclic")
    joint = rerank(tiny_reader, QUESTION, passages(4), permutations=prefixes(4))
    assert (joint.bias_source, joint.order) == ("none: joint solve", "descending")
    assert joint.observations.length == 2


def test_a_kept_calibration_is_found(tiny_reader, bias):
    kept = bias(5)
    about, template = tiny_reader.describe(), fr.Template().digest()
    assert find(about, template, 5) is None
    keep(kept)
    found, origin = find(about, template, 5)
    assert origin == "cached"
    assert (found.bias == kept.bias).all()
    assert rerank(tiny_reader, QUESTION, passages(5)).bias_source == "cached"
    assert rerank(tiny_reader, QUESTION, passages(4)).bias_source == "none: query likelihood"
    other = fr.Template(header="Other.\n")
    assert rerank(tiny_reader, QUESTION, passages(5), template=other).bias_source == "none: query likelihood"


def test_a_bias_for_another_use_raises(tiny_reader, bias):
    with pytest.raises(InputError, match="passages N: bias 4, scores 5; places L: bias 4, scores 5"):
        rerank(tiny_reader, QUESTION, passages(5), bias(4))
    with pytest.raises(InputError, match=r"reader: bias 'other', scores 'LlamaForCausalLM'"):
        rerank(tiny_reader, QUESTION, passages(5), bias(5, reader={"name": "other"}))
    trained = tiny_reader.describe() | {"revision": "0a1b"}
    with pytest.raises(InputError, match=r"the reader's revision: bias '0a1b', scores '[0-9a-f]{12}'"):
        rerank(tiny_reader, QUESTION, passages(5), bias(5, reader=trained))
    moved = tiny_reader.describe() | {"name": "elsewhere"}
    assert rerank(tiny_reader, QUESTION, passages(5), bias(5, reader=moved)).bias_source == "given"
    with pytest.raises(InputError, match="template: bias"):
        rerank(tiny_reader, QUESTION, passages(5), bias(5), template=fr.Template(header="Other.\n"))
    with pytest.raises(InputError, match="candidate"):
        rerank(tiny_reader, QUESTION, passages(5), bias(5, kind="candidate"))


def test_repr_fits_a_screen(tiny_reader, bias):
    many = [fr.Passage("a long\ntext " * 30, title=f"T{i}") for i in range(30)]
    ranked = rerank(tiny_reader, "Which\ncolour? " * 20, many, bias(4), max_passages=4)
    lines = repr(replace(ranked, note="careful " * 40)).split("\n")
    assert len(lines) <= 20 and max(map(len, lines)) <= 110
    assert lines[0].startswith("Ranked: 30 passages in matched order; bias: given; ")
    place, index, utility, p_best, title, *_ = lines[3].split()
    assert (place, int(index), title) == ("1", ranked[0].index, f"T{ranked[0].index}")
    assert (utility, p_best) == (f"{ranked[0].utility:+.2f}", f"{ranked[0].p_best:.2f}")
    assert lines[-2:] == ["... and 18 more", lines[-1]] and lines[-1].startswith("note: careful")
    assert len(repr(rerank(tiny_reader, QUESTION, passages(1))).split("\n")) == 4


def test_a_single_passage_is_returned_as_it_is(tiny_reader):
    ranked = rerank(tiny_reader, QUESTION, passages(1))
    assert (ranked.indices, ranked.order, ranked.cost.computed_tokens) == ([0], "given", 0)
    assert ranked[0].relevance == 0.5
    only = rerank(tiny_reader, QUESTION, passages(3), max_passages=1)
    assert (only.indices, only.tail) == ([0, 1, 2], 2)


def test_passages_beyond_max_passages_keep_their_order(tiny_reader, bias):
    ranked = rerank(tiny_reader, QUESTION, passages(7), bias(4), max_passages=4)
    assert ranked.indices[4:] == [4, 5, 6]
    assert sorted(ranked.indices[:4]) == [0, 1, 2, 3]
    assert ranked.tail == 3
    assert all(p.utility is None for p in ranked.passages[4:])
    assert [p.index for p in ranked.by_utility()][4:] == [4, 5, 6]


def test_pruning(tiny_reader, bias):
    of = replace(known([0.5, 0.4, 0.6], 5), reader=tiny_reader.describe(), template=fr.Template().digest())
    pruned = rerank(tiny_reader, QUESTION, passages(5), of, prune=3)
    whole = rerank(tiny_reader, QUESTION, passages(5), bias(5))
    assert pruned.observations.length == 3
    assert pruned.cost.computed_tokens < whole.cost.computed_tokens
    assert pruned.cost.full == whole.cost.full
    assert rerank(tiny_reader, QUESTION, passages(5), of, prune=np.int64(3)).indices == pruned.indices
    some = rerank(tiny_reader, QUESTION, passages(5), prune_mass=0.99)
    assert "prune_mass: without a calibration" in some.note
    with pytest.raises(InputError, match="score of every passage"):
        rerank(tiny_reader, QUESTION, WORDS[:3], prune_mass=0.9)


def test_adaptive(tiny_reader, bias):
    of = bias(4)
    never = rerank(tiny_reader, QUESTION, passages(4), of, stopping=Stopping(p_best=None, same_order=None))
    assert (never.cost.passes, len(never.observations)) == (3, 12)  # up to 3N
    assert len({tuple(r) for r in never.observations.permutations.tolist()}) == 12
    once = rerank(tiny_reader, QUESTION, passages(4), of, stopping=Stopping(p_best=0.01))
    assert once.cost.passes == 1
    assert (
        never.cost.computed_tokens
        > once.cost.computed_tokens
        == rerank(tiny_reader, QUESTION, passages(4), of).cost.computed_tokens
    )
    some = rerank(tiny_reader, QUESTION, passages(4), of, stopping=Stopping(p_best=None, same_order=2))
    assert 2 <= some.cost.passes <= 3
    all_orders = rerank(tiny_reader, QUESTION, passages(3), bias(3), stopping=Stopping(None, None, most=100))
    assert len(all_orders.observations) == 6
    for wrong in ({"p_best": 0}, {"same_order": 1}, {"most": 0}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Stopping(**wrong)


def test_answer_reads_once_in_that_order(tiny_reader, bias):
    of = bias(4)
    got = answer(tiny_reader, QUESTION, passages(6), of, max_passages=4, candidates=["red", "ten dogs"])
    ordered = [p.passage for p in got.ranked.passages[:4]]
    again = fr.score_permutations(tiny_reader, QUESTION, ordered, ["red", "ten dogs"], "identity")
    assert [got.reading.candidates[c] for c in ("red", "ten dogs")] == pytest.approx(
        again.logprobs[0].tolist(), abs=1e-3
    )
    assert got.text == again.best
    assert got.cost.answer > 0
    assert got.cost.computed_tokens == got.ranked.cost.computed_tokens
    written = answer(tiny_reader, QUESTION, passages(4), of, max_new_tokens=3)
    assert written.reading.candidates is None
    assert written.reading.finish_reason in ("length", "eos", "stop")
    assert written.to_dict()["answer"] == written.text


@pytest.fixture
def small(tmp_path):
    """Return another reader, with its own name."""
    tiny_llama(seed=3, num_hidden_layers=1).save_pretrained(tmp_path / "small")
    byte_tokenizer(chat=True).save_pretrained(tmp_path / "small")
    return fr.Reader.load(tmp_path / "small", device="cpu")


def test_one_reader_scores_and_another_answers_in_the_order_of_its_own_bias(tiny_reader, small, bias):
    of_small = bias(4, reader=small.describe())
    utility = rerank(small, QUESTION, passages(4), of_small).utilities.utility

    def ask(**more):
        candidates = ["red", "low"]
        return answer(tiny_reader, QUESTION, passages(4), of_small, scorer=small, candidates=candidates, **more)

    got = ask()
    assert (got.ranked.order, got.ranked.indices) == ("descending", np.argsort(-utility).tolist())
    assert "descending order: LlamaForCausalLM, which answers, has no calibration" in got.note
    keep(bias(4, "decreasing", sign="undetermined"))
    assert "a calibration of undetermined sign" in ask().note
    own = bias(4, "u-shaped")
    keep(own)
    got = ask()
    assert got.ranked.indices == matched(utility, own.bias).tolist() != matched(utility, of_small.bias).tolist()
    assert "placed by the cached calibration of LlamaForCausalLM" in got.note
    order = [p.passage for p in got.ranked]
    expected = fr.score_permutations(tiny_reader, QUESTION, order, ["red", "low"], "identity").logprobs[0]
    assert got.reading.candidates["low"] == pytest.approx(expected[1], abs=1e-3)
    assert ask(order="descending").ranked.indices == np.argsort(-utility).tolist()
    # A scorer without a calibration gives query likelihoods; the order is still the answering reader's.
    got = answer(tiny_reader, QUESTION, passages(4), scorer=small, candidates=["red", "low"])
    assert (got.ranked.bias_source, got.ranked.order) == ("none: query likelihood", "matched")
    assert got.ranked.indices == matched(got.ranked.utilities.utility, own.bias).tolist()
    assert "placed by the cached calibration of LlamaForCausalLM" in got.note
    keep(replace(own, flat=True, reason="none found"))
    got = answer(tiny_reader, QUESTION, passages(4), scorer=small, candidates=["red", "low"])
    assert (got.ranked.order, got.ranked.indices) == ("given", [0, 1, 2, 3])
    assert "a calibration that found no bias" in got.note
    keep(own)
    of_small = bias(4, reader=small.describe(), sign="undetermined")
    assert ask().ranked.indices == rerank(small, QUESTION, passages(4), of_small).indices
    assert "its sign undetermined" in ask().note


def counting(reader):
    """Return the reader, and a list that grows with every scoring pass."""
    passes = []
    score = reader.score

    def counted(*arguments, **more):
        passes.append(1)
        return score(*arguments, **more)

    reader.score = counted
    return reader, passes


def short(context, **more):
    """Return a new reader with a short context, and its passes."""
    model = tiny_llama(max_position_embeddings=context)
    return counting(fr.Reader.load((model, byte_tokenizer(chat=True)), device="cpu", precision="exact", **more))


def test_what_cannot_be_debiased_raises_before_any_pass(bias):
    reader, passes = short(2048)
    wrong = [
        ({"bias": bias(4)}, "passages N: bias 4, scores 5"),
        ({"bias": bias(5, reader={"name": "other"})}, "reader: bias 'other', scores 'LlamaForCausalLM'"),
        ({"bias": bias(5), "template": fr.Template(header="Other.\n")}, "template: bias"),
        ({"bias": bias(5), "permutations": [[0, 1], [2, 3], [4, 0]]}, "bias's L = 5 places .*, got 2"),
        ({"bias": bias(5), "permutations": "identity"}, "at least two orderings"),
        ({"bias": bias(5, kind="candidate")}, "bias: expected kind .*, got 'candidate'"),
        ({"bias": bias(5), "stopping": Stopping(most=3)}, "most >= 5"),
        ({"bias": bias(5), "on_overflow": "drop_passages"}, "on_overflow"),
    ]
    for arguments, message in wrong:
        with pytest.raises(InputError, match=message):
            rerank(reader, QUESTION, passages(5), **arguments)
        if "stopping" not in arguments:
            with pytest.raises(InputError, match=message):
                plan(reader, QUESTION, passages(5), **arguments)
    with pytest.raises(InputError, match="max_new_tokens: expected an integer of at least 1, got 0"):
        answer(reader, QUESTION, passages(5), bias(5), max_new_tokens=0)
    assert not passes
    rerank(reader, QUESTION, passages(5), bias(5))
    assert passes


def test_a_short_context(bias):
    long = [fr.Passage(f"It is {w}. " + "and so on " * 8) for w in WORDS[:4]]
    reader, passes = short(400)
    for call in (plan, rerank, answer):
        with pytest.raises(ContextOverflowError, match=r"context.* 400.*on_overflow"):
            call(reader, QUESTION, long, bias(4))
    assert not passes
    planned = plan(reader, QUESTION, long, bias(4), on_overflow="truncate")
    ranked = rerank(reader, QUESTION, long, bias(4), on_overflow="truncate")
    assert planned.cost == ranked.cost
    assert set(planned.truncated) == {0, 1, 2, 3}
    assert planned.truncated == ranked.observations.truncated
    assert f"4 passages were cut by up to {max(planned.truncated.values())} tokens" in ranked.note
    got = answer(reader, QUESTION, long, bias(4), on_overflow="truncate", max_new_tokens=40)
    assert "to fit the context when answering" in got.note
    # Scoring needs room for the question alone, the reading also for what is written.
    assert max(got.reading.truncated.values()) > max(planned.truncated.values())
    assert got.to_dict()["reading"]["truncated"]["0"] == got.reading.truncated[0]
    chosen = answer(reader, QUESTION, long, bias(4), on_overflow="truncate", candidates=["red", "low " * 30])
    assert set(chosen.reading.candidates) == {"red", "low " * 30}


def test_rounds_of_prefixes_that_would_be_cut_differently_raise():
    long = [fr.Passage(f"It is {w}. " + "and so on " * 9 * i) for i, w in enumerate(WORDS[:4])]
    reader, passes = short(400)
    more = {"on_overflow": "truncate", "permutations": prefixes(4, 2)}
    assert "cut" in rerank(reader, QUESTION, long, **more).note
    passes.clear()
    with pytest.raises(ContextOverflowError, match="stopping: prefixes of the 2 longest passages do not fit"):
        rerank(reader, QUESTION, long, stopping=Stopping(), **more)
    assert not passes
    two = more | {"permutations": prefixes(2, 1)}
    assert rerank(reader, QUESTION, long[:2], stopping=Stopping(), **two).note


def test_prefixes_fit_where_the_reading_of_all_does_not(bias):
    of = replace(known([0.5, 0.7], 4), reader=bias(4).reader, template=fr.Template().digest())
    long = [fr.Passage(f"It is {w}. " + "and so on " * 8) for w in WORDS[:4]]
    reader, passes = short(400)
    assert rerank(reader, QUESTION, long, of, prune=2).note == ""
    passes.clear()
    with pytest.raises(ContextOverflowError, match="the prompt that answers"):
        answer(reader, QUESTION, long, of, prune=2)
    assert not passes
    got = answer(reader, QUESTION, long, of, prune=2, on_overflow="truncate")
    assert got.ranked.note == ""
    assert "when answering" in got.note


def test_a_question_that_comes_first_scores_constant_and_is_flagged(tiny_reader, bias):
    first = fr.Template(question_first=True)
    ranked = rerank(tiny_reader, QUESTION, passages(3), bias(3, template=first.digest(), beta=0.0), template=first)
    assert "all orderings scored the same" in ranked.note
    assert ranked.indices == [0, 1, 2]


def test_bad_input(tiny_reader, bias):
    with pytest.raises(InputError, match="at least one passage"):
        rerank(tiny_reader, QUESTION, [])
    with pytest.raises(InputError, match="passages: expected a list"):
        rerank(tiny_reader, QUESTION, "text")
    with pytest.raises(InputError, match="order"):
        rerank(tiny_reader, QUESTION, passages(3), order="best")
    for wrong in (0, 1.5):
        with pytest.raises(InputError, match="max_passages: expected an integer"):
            rerank(tiny_reader, QUESTION, passages(3), max_passages=wrong)
    for call in (rerank, plan, answer):
        with pytest.raises(InputError, match=r"passages\[0\]: expected a text, a Passage, .* got a mapping with"):
            call(tiny_reader, QUESTION, [{"words": "a"}, "b"])
        with pytest.raises(InputError, match=r"passages\[1\]: text: expected text that is not empty"):
            call(tiny_reader, fr.Example(QUESTION, ["a", " "]))
    with pytest.raises(InputError, match="prune"):
        rerank(tiny_reader, QUESTION, passages(3), prune=0)
    with pytest.raises(InputError, match="on_overflow"):
        rerank(tiny_reader, QUESTION, passages(3), on_overflow="drop_passages")
    with pytest.raises(InputError, match="expected None with an Example"):
        rerank(tiny_reader, fr.Example(QUESTION, passages(3)), passages(3))
