import numpy as np
import pytest

import fastreader as fr
from fastreader.errors import InputError
from fastreader.moi import debias, observe

PASSAGES = ["Red is a colour.", "Two is a number, it is.", "Cats sleep."]


@pytest.fixture(scope="module")
def scores(tiny_reader):
    return fr.score_permutations(
        tiny_reader,
        "Which colour?",
        PASSAGES,
        ["red", "blue green"],
        "random:5",
        score_passages=True,
        query_likelihood=True,
    )


def test_passages_alone_cost_the_question_only(tiny_reader):
    def score(**more):
        return fr.score_permutations(tiny_reader, "Which colour?", PASSAGES, question_only=True, **more)

    plain, with_alone = score(), score(query_likelihood=True)
    # A byte-level tokenizer: lead and question after each of three passages, whose last token predicts only.
    template = fr.Template()
    asked = len(template.question_lead) + with_alone.question_tokens - 1
    assert with_alone.stats.computed_tokens - plain.stats.computed_tokens == 3 * asked
    singly = score(permutations=[[0], [1], [2]])
    assert with_alone.query_logprobs == pytest.approx(singly.question_logprobs, abs=1e-4)
    assert with_alone.question_logprobs == pytest.approx(plain.question_logprobs, abs=1e-4)
    assert plain.query_logprobs is None
    cost = fr.permutation_cost(tiny_reader, "Which colour?", PASSAGES, question_only=True, query_likelihood=True)
    assert cost == with_alone.stats


def test_query_likelihoods_survive_the_file(scores):
    again = fr.PermutationScores.from_dict(scores.to_dict())
    assert (again.query_logprobs == scores.query_logprobs).all()
    assert again.template_digest == scores.template_digest == fr.Template().digest()
    assert fr.Template(header="Other.").digest() != fr.Template().digest()


def test_kinds(scores):
    question = observe(scores)
    assert (question.values == scores.question_logprobs).all()
    assert (question.qg == scores.query_logprobs).all()
    assert (question.passages, question.length, question.template) == (3, 3, scores.template_digest)
    assert (observe(scores, "joint").values == scores.question_logprobs + scores.passages_logprobs).all()
    assert (observe(scores, "candidate", candidate="red").values == scores.logprobs[:, 0]).all()
    assert (observe(scores, "candidate", candidate=1).values == scores.logprobs[:, 1]).all()
    each = observe(scores, "candidate", candidate=1, per_token=True)
    assert each.values == pytest.approx(scores.logprobs[:, 1] / scores.candidate_tokens[1])
    assert observe(scores, per_token=True).qg == pytest.approx(scores.query_logprobs / scores.question_tokens)
    assert observe(question) is question


def test_bad_arguments_raise(scores):
    with pytest.raises(InputError, match="kind"):
        observe(scores, "answer")
    with pytest.raises(InputError, match="candidate: expected an index or text, since 2 were scored, got None"):
        observe(scores, "candidate")
    with pytest.raises(InputError, match=r"candidate: expected one of those scored, \['red', .*, got 'green'"):
        observe(scores, "candidate", candidate="green")
    with pytest.raises(InputError, match=r"\[0, 2\)"):
        observe(scores, "candidate", candidate=2)
    with pytest.raises(InputError, match="candidate: expected None with kind='question', got 0"):
        observe(scores, candidate=0)
    with pytest.raises(InputError, match="got 'question'"):
        observe(observe(scores), "joint")
    with pytest.raises(InputError, match=r"expected a PermutationScores .* or an Observations, got float64"):
        observe(np.zeros(3))


def test_joint_needs_the_passages(tiny_reader):
    bare = fr.score_permutations(tiny_reader, "Which colour?", PASSAGES, question_only=True)
    with pytest.raises(InputError, match="score_passages=True"):
        observe(bare, "joint")
    assert observe(bare).qg is None


def test_the_number_of_passages_is_not_guessed(tiny_reader):
    """Prefixes that happen to leave out the last passage still belong to a question with all of them."""
    prefixes = fr.score_permutations(
        tiny_reader, "Which colour?", [*PASSAGES, "Four."], question_only=True, permutations=[[0, 2], [2, 0]]
    )
    with pytest.raises(InputError, match="2 places do not show"):
        debias(prefixes, method="joint")
    assert len(debias(observe(prefixes, passages=4), method="joint")) == 4
    whole = fr.score_permutations(tiny_reader, "Which colour?", PASSAGES, question_only=True)
    assert observe(whole).passages == 3
    assert observe(whole, passages=4).passages == 4  # may be prefixes that never have the fourth
    with pytest.raises(InputError, match="expected at least 3, as in the scores, got 2"):
        observe(whole, passages=2)
    alone = fr.score_permutations(tiny_reader, "Which colour?", PASSAGES, question_only=True, query_likelihood=True)
    with pytest.raises(InputError, match="expected 3, as in the scores, got 4"):
        observe(alone, passages=4)
