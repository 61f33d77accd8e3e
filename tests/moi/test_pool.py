import json
from dataclasses import replace

import numpy as np
import pytest
from lib.simulate import bias_shape, simulate

import fastreader as fr
from fastreader.cli.asking import Asking, answers
from fastreader.errors import InputError
from fastreader.moi import Observations, Pool, answer, rerank
from fastreader.permutations import latin

ABOUT = {"name": "simulated"}


def questions(shape, count, n=5, **more):
    data = simulate(bias_shape(shape, n), count, lambda s: latin(n, 1, s), **more)
    return [replace(o, reader=ABOUT, template="t") for o in data.observations]


@pytest.mark.parametrize("shape", ["decreasing", "last-dominant"])
def test_a_pool_settles_the_bias_and_says_so(shape):
    pool = Pool()
    assert pool.bias(ABOUT, "t", 5) is None
    for count, o in enumerate(questions(shape, 40), 1):
        pool.add(o)
        if count == 19:
            assert pool.state(ABOUT, "t", 5) == "19 questions pooled, not enough to settle a bias yet"
    found = pool.bias(ABOUT, "t", 5)
    assert found.bias.argmax() == bias_shape(shape, 5).argmax()
    assert (found.sign, found.flat) == ("query_likelihood", False)
    assert "of this pool settle the bias" in pool.state(ABOUT, "t", 5)
    assert pool.bias(ABOUT, "t", 4) is pool.bias(ABOUT, "u", 5) is pool.bias({"name": "other"}, "t", 5) is None
    assert pool.count(ABOUT, "t", 5) <= 40 and "'simulated', N = 5" in repr(pool)


def test_a_pool_of_a_flat_reader_settles_nothing_and_stays_bounded():
    pool = Pool(most=30)
    for o in questions("flat", 40, beta=1.0):
        pool.add(o)
        pool.add(replace(o, values=o.values[::-1], permutations=o.permutations[::-1]))  # the same question again
    assert pool.count(ABOUT, "t", 5) == 30
    assert pool.bias(ABOUT, "t", 5) is None
    assert "no position bias beyond chance" in pool.state(ABOUT, "t", 5)


def test_a_pool_takes_only_scores_that_can_settle_a_bias():
    good = questions("decreasing", 1)[0]
    pool = Pool()
    for wrong in (
        replace(good, qg=None),
        replace(good, kind="joint"),
        Observations(np.zeros(2), np.array([[0, 1], [1, 0]]), 2, qg=np.zeros(2)),
        Observations(np.zeros(2), np.array([[0, 1], [1, 2]]), 3, qg=np.zeros(3)),
    ):
        with pytest.raises(InputError, match="observed: expected question scores of whole orderings"):
            pool.add(wrong)
    with pytest.raises(InputError, match="most: expected an integer of at least 20, got 5"):
        Pool(5)


def test_calls_add_to_the_pool_and_use_it_once_settled(tiny_reader, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))
    passages = ["It is red.", "It is a green dog.", "Blue."]
    about, template, pool = tiny_reader.describe(), fr.Template().digest(), Pool()
    first = rerank(tiny_reader, "Which colour?", passages, pool=pool)
    assert (first.order, first.bias_source) == ("given", "none: query likelihood")
    assert "1 question pooled" in first.note
    rerank(tiny_reader, "Which colour?", passages, pool=pool)
    assert pool.count(about, template, 3) == 1  # the same question
    alone = rerank(tiny_reader, "Which colour?", passages)
    assert first.utilities.utility == pytest.approx(alone.utilities.utility, abs=1e-4)
    for o in questions("last-dominant", 60, 3, beta=3.0, sigma=0.2):
        pool.add(replace(o, reader=about, template=template))
    settled = pool.bias(about, template, 3)
    ranked = rerank(tiny_reader, "Which colour?", passages, pool=pool)
    assert (ranked.order, ranked.bias_source) == ("matched", "pool")
    given = rerank(tiny_reader, "Which colour?", passages, settled)
    assert ranked.indices == given.indices
    assert answer(tiny_reader, "Which colour?", passages, pool=pool, max_new_tokens=2).ranked.bias_source == "pool"
    two = rerank(tiny_reader, "Which colour?", passages[:2], pool=pool)  # N = 2 has no bias to learn
    assert two.bias_source == "none: query likelihood" and two.observations.length == 1


def test_ask_learns_from_its_questions_and_resumes_as_if_it_had_not_stopped(tiny_reader, tmp_path, monkeypatch):
    monkeypatch.setenv("FASTREADER_CACHE", str(tmp_path))
    examples = [
        fr.Example(
            f"Which colour is {i}?", [fr.Passage(f"{i} is {w}.") for w in ("red", "green", "a blue")], id=f"q{i}"
        )
        for i in range(5)
    ]

    def asked(output, count, resume=False):
        asking = Asking.of("moi", {})
        list(answers(tiny_reader, iter(examples[:count]), asking, output=output, resume=resume))
        return asking.method.options["pool"]

    whole = asked(tmp_path / "whole.jsonl", 5)
    asked(tmp_path / "parts.jsonl", 2)
    parts = asked(tmp_path / "parts.jsonl", 5, resume=True)
    about, template = tiny_reader.describe(), fr.Template().digest()
    assert whole.count(about, template, 3) == parts.count(about, template, 3) == 5
    rows = [[json.loads(line) for line in (tmp_path / f"{name}.jsonl").open()] for name in ("whole", "parts")]
    assert [row["ranked"] for row in rows[0]] == [row["ranked"] for row in rows[1]]
    assert "5 questions pooled" in rows[1][4]["note"]
    assert "pool" not in Asking.of("base", {}).config.options
