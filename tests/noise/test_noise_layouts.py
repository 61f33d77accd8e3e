"""Layouts hold the paper's definitions, on hand-made cases and by property."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise_cases import FIRST, GOLD, OTHER, SECOND, example, pool

from fastreader import noise
from fastreader.data import Passage
from fastreader.errors import InputError
from fastreader.noise import Kind, LayoutSpec, MissingPassages
from fastreader.noise.layouts import POSITIONS

MATERIALS = noise.gather(example(), random=noise.DistractorPool(pool()), random_count=8)
R = MATERIALS.random


@pytest.mark.parametrize(
    ("name", "passages"),
    [
        ("closed_book", []),
        ("gold", [GOLD]),
        ("distracting:1:far", [GOLD, FIRST]),
        ("distracting:2:far", [GOLD, FIRST, SECOND]),
        ("distracting:2:mid", [FIRST, GOLD, SECOND]),
        ("distracting:2:near", [FIRST, SECOND, GOLD]),
        ("relevant:1:near", [OTHER, GOLD]),
        ("random:3:mid", [R[0], GOLD, R[1], R[2]]),
        ("random:4:mid", [R[0], R[1], GOLD, R[2], R[3]]),
        ("retrieved:3", [OTHER, GOLD, FIRST]),
        ("retrieved:2+random:3", [R[0], R[1], R[2], GOLD, FIRST]),
    ],
)
def test_layouts_by_hand(name, passages):
    laid = noise.layout(MATERIALS, name)
    assert (laid.name, list(laid.passages)) == (name, passages)


def test_kinds_follow_the_passages():
    assert noise.layout(MATERIALS, "retrieved:4+random:1").kinds == (
        Kind.RANDOM,
        Kind.DISTRACTING,
        Kind.RELEVANT,
        Kind.GOLD,
        Kind.DISTRACTING,
    )
    assert noise.layout(MATERIALS, "random:2:mid").kinds == (Kind.RANDOM, Kind.GOLD, Kind.RANDOM)


passages_lists = st.lists(st.text("abc ", min_size=1, max_size=6), max_size=12, unique_by=lambda t: " ".join(t.split()))


@given(
    texts=passages_lists,
    gold_at=st.integers(0, 11),
    name=st.builds(
        lambda kind, n, position: f"{kind}:{n}:{position}",
        st.sampled_from(["distracting", "random"]),
        st.integers(2, 9),
        st.sampled_from(POSITIONS),
    ),
    seed=st.integers(0, 3),
)
def test_oracle_layouts_hold_the_definitions(texts, gold_at, name, seed):
    """Gold is at its place, no passage is repeated, the others have their kind, and a seed fixes the layout."""
    passages = [Passage(f"{t} q", f"t{i}") for i, t in enumerate(texts)]
    gold = Passage("the answer is gold", "g", is_gold=True)
    passages.insert(min(gold_at, len(passages)), gold)
    m = noise.gather(
        example(passages=passages, answers=["gold"]), random=noise.DistractorPool(pool(), seed=seed), random_count=9
    )
    kind, count, position = name.split(":")
    n = int(count)
    try:
        laid = noise.layout(m, name)
    except MissingPassages:
        assert kind == "distracting" and len(m.distracting) < n
        return
    texts_laid = [(p.title, p.text) for p in laid.passages]
    assert len(texts_laid) == n + 1 == len(set(texts_laid))
    assert [i for i, p in enumerate(laid.passages) if p.is_gold] == [{"far": 0, "mid": n // 2, "near": n}[position]]
    assert [k for k in laid.kinds if k is not Kind.GOLD] == [Kind(kind)] * n
    others = [p for p in laid.passages if not p.is_gold]
    assert others == list(m.distracting[:n] if kind == "distracting" else m.random[:n])
    again = noise.gather(
        example(passages=passages, answers=["gold"]), random=noise.DistractorPool(pool(), seed=seed), random_count=9
    )
    assert noise.layout(again, name) == laid


@given(k=st.integers(1, 4), m=st.integers(0, 8))
def test_realistic_layouts_hold_the_definition(k, m):
    laid = noise.layout(MATERIALS, f"retrieved:{k}+random:{m}").passages
    assert laid[:m] == R[:m]
    assert laid[m:][::-1] == MATERIALS.retrieved[:k]


@given(st.integers(0, 8))
def test_fill_takes_as_many_as_fit(room):
    laid = noise.layout(
        noise.gather(example(), random=noise.DistractorPool(pool()), random_count=9),
        "retrieved:2+random:fill",
        fits=lambda passages: len(passages) <= 2 + room,
    )
    assert len(laid.passages) == 2 + room and laid.passages[-1] == FIRST


def test_fill_that_runs_out_says_so():
    with pytest.raises(MissingPassages, match=r"all 8 random passages of 'q1' fit; draw more"):
        noise.layout(MATERIALS, "random:fill:near", fits=lambda passages: True)
    with pytest.raises(InputError, match="needs `fits`"):
        noise.layout(MATERIALS, "random:fill:near")


def test_grids():
    assert noise.oracle_grid(["random"], [1, 2]) == [
        "gold",
        "random:1:far",
        "random:1:near",
        "random:2:far",
        "random:2:mid",
        "random:2:near",
    ]
    assert len(noise.oracle_grid()) == 23
    assert noise.realistic_grid([1, 4], [0, 8, "fill"]) == [
        "retrieved:1",
        "retrieved:1+random:8",
        "retrieved:1+random:fill",
        "retrieved:4",
        "retrieved:4+random:8",
        "retrieved:4+random:fill",
    ]


@pytest.mark.parametrize(
    "name",
    ["closed_book", "hard:2:far", "random:fill:mid", *noise.oracle_grid(), *noise.realistic_grid([3], [0, 2, "fill"])],
)
def test_names_survive_parsing(name):
    assert LayoutSpec.parse(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "Gold",
        "random",
        "random:0:near",
        "random:1:mid",
        "random:-1:near",
        "random:2:nearby",
        "noise:2:near",
        "distracting:fill:near",
        "retrieved:0",
        "retrieved:2+distracting:3",
        "retrieved:2+random:3 ",
    ],
)
def test_invalid_names(name):
    with pytest.raises(InputError, match=name.replace("+", r"\+")):
        noise.layout(MATERIALS, name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("distracting:3:near", "needs 3 distracting passages, 'q1' has 2"),
        ("random:9:far", "needs 9 random passages, 'q1' has 8"),
        ("hard:1:far", "needs 1 hard passages, 'q1' has 0"),
        ("retrieved:5", "needs 5 retrieved passages, 'q1' has 4"),
    ],
)
def test_too_few_passages(name, message):
    with pytest.raises(MissingPassages, match=message):
        noise.layout(MATERIALS, name)


def test_without_a_gold_flag():
    m = noise.gather(example(passages=[FIRST, SECOND]))
    with pytest.raises(MissingPassages, match="no retrieved passage of 'q1' is flagged as gold"):
        noise.layout(m, "gold")
    assert noise.layout(m, "retrieved:2").passages == (SECOND, FIRST)
    with pytest.raises(InputError, match="place: position: expected one of far, mid, near, got 'close'"):
        noise.place(GOLD, [FIRST], "close")
