"""What the order alone does to an answer, compared with direct scores and texts."""

import json

import numpy as np
import pytest

import fastreader as fr
from fastreader.errors import InputError
from fastreader.scoring.reading import reading_prompts
from fastreader.scoring.sensitivity import Sensitivity
from fastreader.statistics.measures.answers import normalise

PASSAGES = [fr.Passage(f"{name} says {i}.") for i, name in enumerate(("alpha", "bravo", "carol"))]


def test_given_candidates_have_the_scores_of_each_order(tiny_reader):
    found = fr.sensitivity(tiny_reader, "who?", PASSAGES, ["ab", "cd"], permutations=[[2, 0, 1], [0, 1, 2], [1, 2, 0]])
    assert found.permutations.tolist() == [[0, 1, 2], [2, 0, 1], [1, 2, 0]] and not found.generated
    for order, row in zip(found.permutations, found.logprobs, strict=True):
        want = fr.score_permutations(tiny_reader, "who?", PASSAGES, ["ab", "cd"], permutations=[order]).logprobs
        np.testing.assert_allclose(row, want[0], atol=1e-4)
    np.testing.assert_allclose(found.ranges, found.logprobs.max(axis=0) - found.logprobs.min(axis=0))
    best = found.logprobs.argmax(axis=1).tolist()
    assert found.answers == best
    assert found.changed == sum(k != best[0] for k in best[1:]) / 2
    assert found.agreement == max(best.count(0), best.count(1)) / 3


def test_generated_answers_are_those_of_each_order(tiny_reader):
    found = fr.sensitivity(tiny_reader, "who?", PASSAGES, max_new_tokens=4)
    orders = found.permutations.tolist()
    assert orders[0] == [0, 1, 2] and len(orders) == 3 and found.generated
    replies = tiny_reader.generate(
        reading_prompts(tiny_reader, "who?", PASSAGES, orders), max_new_tokens=4, stop=["\n"]
    )
    texts = [normalise(reply.text) for (reply,) in replies]
    assert [None if k is None else normalise(found.candidates[k]) for k in found.answers] == [t or None for t in texts]
    assert found.changed == sum(t != texts[0] for t in texts[1:]) / 2
    again = Sensitivity.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again.answers == found.answers and np.array_equal(again.permutations, found.permutations)
    np.testing.assert_allclose(again.logprobs, found.logprobs)


def test_one_passage_cannot_change_place(tiny_reader):
    found = fr.sensitivity(tiny_reader, "who?", PASSAGES[:1], ["ab"])
    assert (found.changed, found.agreement, found.ranges.tolist()) == (0.0, 1.0, [0.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passages": []}, "passages: expected at least one passage"),
        ({"permutations": [[0, 1]]}, "permutations: expected orderings of all 3 passages, got 2 places"),
        ({"candidates": ["  "]}, "candidates"),
    ],
)
def test_bad_input_is_named(tiny_reader, options, message):
    with pytest.raises(InputError, match=message):
        fr.sensitivity(tiny_reader, "who?", **{"passages": PASSAGES, **options})
