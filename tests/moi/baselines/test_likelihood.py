"""Baselines that score with the reader, against one sequence at a time through transformers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers.support import byte_tokenizer, one_by_one, tiny_llama

from fastreader import Passage, Reader, Template
from fastreader.core.tree import PrefixTree
from fastreader.errors import InputError
from fastreader.moi.baselines import METHODS
from fastreader.moi.baselines.alone import printed_score
from fastreader.reader import loglikelihood as likelihood
from fastreader.reader.prompts.pieces import encode

QUESTION = "Which river is in Cairo?"
PASSAGES = [Passage("The Seine is in Paris."), Passage("It is the Nile.", title="Cairo"), Passage("Po, Turin.")]
TEMPLATE = Template(header="Read:\n")


@pytest.fixture(scope="module")
def both():
    model = tiny_llama()
    return Reader.load((model, byte_tokenizer()), device="cpu", precision="exact"), model


def pieces(reader):
    return encode(reader.encoder, TEMPLATE, QUESTION, PASSAGES, [])


def question_after(both, order):
    """Token log-probabilities of the question after these passages."""
    reader, model = both
    p = pieces(reader)
    return one_by_one(model, [(p.head + p.body(order) + p.question_lead, p.question)])[0]


def passages_after_header(both, order):
    reader, model = both
    p = pieces(reader)
    return float(one_by_one(model, [(p.head, p.body(order))])[0].sum())


def run(name, both, **settings):
    return METHODS[name](both[0], QUESTION, PASSAGES, template=TEMPLATE, **settings)


def test_qg(both):
    want = [question_after(both, [p]).sum() for p in range(3)]
    found = run("qg", both)
    np.testing.assert_allclose(found.scores, want, atol=1e-4)
    assert found.order == np.argsort(-np.array(want)).tolist()
    assert 0 < found.stats.computed_tokens < found.stats.total_tokens


def test_bayes_saliency(both):
    want = [question_after(both, [p]).sum() + passages_after_header(both, [p]) for p in range(3)]
    np.testing.assert_allclose(run("bayes-saliency", both).scores, want, atol=1e-3)


def test_long_llm_lingua(both):
    want = []
    for p in range(3):
        logs = question_after(both, [p])
        want.append(sum(float(np.exp(x)) * float(x) for x in logs))
    np.testing.assert_allclose(run("longllmlingua", both).scores, want, atol=1e-5)


def test_the_printed_score_is_not_monotone():
    assert printed_score([0.0]) == 0.0
    assert printed_score([-1.0]) == pytest.approx(-np.exp(-1))
    assert printed_score([-1.0]) < printed_score([-0.1]) < printed_score([-20.0]) < 0
    assert printed_score([-2.0, -0.5]) == pytest.approx(-2 * np.exp(-2) - 0.5 * np.exp(-0.5))


def test_bayes_saliency_plus(both):
    """Greedy by P(q | picked, p) P(p | picked), the latter as a ratio of whole likelihoods."""
    picked, values, left = [], [], [0, 1, 2]
    while len(left) > 1:
        before = passages_after_header(both, picked) if picked else 0.0
        score = {
            p: question_after(both, [*picked, p]).sum() + passages_after_header(both, [*picked, p]) - before
            for p in left
        }
        best = max(left, key=lambda p: score[p])
        picked.append(best)
        values.append(score[best])
        left.remove(best)
    found = run("bayes-saliency-plus", both)
    assert found.order == [*picked, *left]
    np.testing.assert_allclose(found.details["values"], values, atol=1e-3)
    assert found.stats.computed_tokens < found.stats.total_tokens


def test_bayes_saliency_plus_runs_one_pass_a_step(both, monkeypatch):
    calls = []
    real = likelihood.score
    monkeypatch.setattr("fastreader.reader.base.score", lambda r, s, **more: calls.append(len(s)) or real(r, s, **more))
    run("bayes-saliency-plus", both)
    assert calls == [6, 4]  # question and passage of three, then of two


def steps(both, order):
    """The sequences of each step that picks in this order, and what they all begin with."""
    p = pieces(both[0])
    for k in range(len(order) - 1):
        before, added = p.head + p.body(order[:k]), [p.passage(i, k) for i in order[k:]]
        asked = [(before + tokens + p.question_lead, p.question) for tokens in added]
        yield before, asked + [(before, tokens) for tokens in added]


def test_bayes_saliency_plus_reads_what_was_picked_once(both, monkeypatch):
    kept = run("bayes-saliency-plus", both)
    monkeypatch.setattr(both[0], "session", None)
    plain = run("bayes-saliency-plus", both)
    assert kept.order == plain.order
    np.testing.assert_allclose(kept.details["values"], plain.details["values"], atol=1e-4)
    begins, trees = zip(*((b, len(PrefixTree.build(asked))) for b, asked in steps(both, plain.order)), strict=True)
    assert plain.stats.computed_tokens == sum(trees)
    # The last beginning with all before it is read once; its last token again in each step, for what comes next.
    assert kept.stats.computed_tokens == len(begins[-1]) + sum(
        t - len(b) + 1 for t, b in zip(trees, begins, strict=True)
    )
    assert kept.stats.computed_tokens < plain.stats.computed_tokens
    assert (kept.stats.total_tokens, kept.stats.sequences) == (plain.stats.total_tokens, plain.stats.sequences)


def test_bayes_saliency_plus_continues_if_its_beginning_does_not_fit(both, monkeypatch):
    reader, real = both[0], both[0].session
    want = run("bayes-saliency-plus", both)
    p = pieces(reader)
    for tokens in (len(p.head), len(p.head) - 1):
        limit = tokens * reader.local_model.model.key_value_bytes
        monkeypatch.setattr(reader, "session", lambda *a, limit=limit: real(*a, max_bytes=limit))
        found = run("bayes-saliency-plus", both)
        assert found.order == want.order
        np.testing.assert_allclose(found.details["values"], want.details["values"], atol=1e-4)
        (note,) = found.details["notes"]
        assert "read again in each step" in note and f"{limit:,} are allowed" in note
        assert found.stats.cached_tokens == (0 if tokens < len(p.head) else 2 * (len(p.head) - 1) + 1)


def test_one_passage(both):
    one = PASSAGES[:1]
    for name in ("qg", "bayes-saliency", "longllmlingua", "bayes-saliency-plus", "pairwise"):
        assert METHODS[name](both[0], QUESTION, one, template=TEMPLATE).order == [0]
    assert METHODS["bayes-saliency-plus"](both[0], QUESTION, one, template=TEMPLATE).stats.computed_tokens == 0


def test_the_question_first_is_rejected(both):
    with pytest.raises(InputError, match="got 'the question first'"):
        METHODS["bayes-saliency-plus"](both[0], QUESTION, PASSAGES, template=Template(question_first=True))


def test_pairwise_scores_every_ordered_pair_in_one_pass(both, monkeypatch):
    from fastreader.moi.baselines.pairwise import PairwisePrompt, wins

    reader, model = both
    texts = PairwisePrompt()
    margin = np.zeros((3, 3))
    for a, b in itertools.permutations(range(3), 2):
        shown = [PASSAGES[0].text, "Cairo: It is the Nile.", PASSAGES[2].text]
        context = reader.prompt(
            [texts.instruction.format(question=QUESTION), f"Passage A: {shown[a]}\n\n", f"Passage B: {shown[b]}\n\n",
             texts.ask]
        )  # fmt: skip
        labels = [(context, reader.continuation(label)) for label in ("Passage A", "Passage B")]
        first, second = (x.sum() for x in one_by_one(model, labels))
        margin[a, b] = first - second
    results = []
    real = reader.loglikelihood
    monkeypatch.setattr(reader, "loglikelihood", lambda *a, **k: results.append(real(*a, **k)) or results[-1])
    found = METHODS["pairwise"](reader, QUESTION, PASSAGES, aggregate="margin")
    np.testing.assert_allclose(found.scores, [(margin[p] - margin[:, p]).sum() / 4 for p in range(3)], atol=1e-4)
    assert METHODS["pairwise"](reader, QUESTION, PASSAGES).scores.tolist() == wins(margin).tolist()
    assert [r.passes for r in results] == [1, 1]
    assert results[0].stats.computed_tokens < results[0].stats.total_tokens / 1.5
