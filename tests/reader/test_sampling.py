"""Drawing tokens, against the definition written out and against transformers' own warpers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fastreader.core.options import Sampling
from fastreader.errors import InputError
from fastreader.reader.generation.sampling import choose, invert, row_generator


def logits_of(rows: int, vocabulary: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def warped(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Probabilities as transformers leaves them."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    values = TemperatureLogitsWarper(sampling.temperature)(None, logits.double())
    if sampling.top_k is not None:
        values = TopKLogitsWarper(sampling.top_k)(None, values)
    if sampling.top_p is not None and sampling.top_p < 1:
        values = TopPLogitsWarper(sampling.top_p)(None, values)
    return values.softmax(-1)


CASES = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.3),
    Sampling(temperature=2.0, top_k=7),
    Sampling(temperature=1.0, top_k=1),
    Sampling(temperature=1.0, top_k=10_000),
    Sampling(temperature=1.0, top_p=0.5),
    Sampling(temperature=1.5, top_p=0.9),
    Sampling(temperature=1.0, top_p=1.0),
    Sampling(temperature=0.7, top_k=50, top_p=0.8),
]


@pytest.mark.parametrize("vocabulary", [1, 5, 256, 257, 700])
@pytest.mark.parametrize("sampling", CASES, ids=str)
@pytest.mark.long(keep=20)
def test_every_tokens_share_is_its_probability(sampling, vocabulary):
    """Numbers on a fine grid: each token must take its probability's share of them, and no other token any."""
    logits = logits_of(1, vocabulary)
    count = 10_000
    grid = (np.arange(count) + 0.5) / count
    drawn = choose(logits.expand(count, -1), sampling, grid.tolist()).numpy()
    share = np.bincount(drawn, minlength=vocabulary) / count
    want = warped(logits, sampling)[0].numpy()
    assert np.abs(share - want).max() <= 1.5 / count + 1e-5
    assert not share[want == 0].any()


def test_flat_distributions_need_the_whole_vocabulary():
    """The nucleus is looked for among the most likely first. Here it is nearly everything."""
    logits = logits_of(3, 5000, spread=0.01)
    drawn = choose(logits, Sampling(temperature=1.0, top_p=0.999), [0.0, 0.5, 1 - 2**-53])
    assert (warped(logits, Sampling(temperature=1.0, top_p=0.999)).gather(1, drawn[:, None]) > 0).all()


def test_temperature_0_takes_the_most_likely():
    logits = logits_of(4, 100)
    assert choose(logits, Sampling(temperature=0.0, top_k=3, top_p=0.1), []).tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-40, 5e-324])
@pytest.mark.parametrize("more", [{}, {"top_k": 3}, {"top_p": 0.5}])
def test_tiny_temperatures_take_the_most_likely(temperature, more):
    logits = logits_of(4, 300)
    assert (
        choose(logits, Sampling(temperature=temperature, **more), [0.0, 0.3, 0.6, 0.99]).tolist()
        == logits.argmax(-1).tolist()
    )
    tied = torch.tensor([[1.0, 2.0, 2.0]])
    assert [choose(tied, Sampling(temperature=temperature), [u]).item() for u in (0.0, 0.49, 0.51, 0.99)] == [
        1,
        1,
        2,
        2,
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"top_k": 2.5}, "top_k: expected an integer of at least 1 or None, got 2.5"),
        ({"top_k": True}, "top_k: expected an integer of at least 1 or None, got True"),
        ({"temperature": "a"}, "temperature: expected a finite number of at least 0, got 'a'"),
        ({"temperature": None}, "temperature: .*got None"),
        ({"top_p": "most"}, "top_p: expected a finite number above 0 .*got 'most'"),
    ],
)
def test_values_of_another_kind_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        Sampling(**values)


def test_rows_are_drawn_apart():
    logits = logits_of(6, 300)
    numbers = [0.1, 0.9, 0.5, 0.0, 0.99, 0.3]
    for sampling in CASES:
        together = choose(logits, sampling, numbers).tolist()
        assert together == [choose(logits[i : i + 1], sampling, numbers[i : i + 1]).item() for i in range(6)]


@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(1e-30, 1e30)), min_size=1, max_size=600).filter(lambda w: sum(w) > 0),
    st.floats(0, 1, exclude_max=True),
)
def test_inverting_gives_an_index_of_some_weight(weights, uniform):
    found = invert(torch.tensor([weights], dtype=torch.float64), torch.tensor([uniform], dtype=torch.float64)).item()
    assert weights[found] > 0
    running = np.cumsum(np.array(weights) / sum(weights))
    assert running[found] >= uniform - 1e-9
    assert found == 0 or running[found - 1] <= uniform + 1e-9


def test_a_rows_numbers_follow_from_seed_prompt_and_sample():
    def first(*key):
        return row_generator(*key).random()

    same = first(1, [5, 6], 0)
    assert first(1, [5, 6], 0) == same
    assert first(1, np.array([5, 6]), 0) == same
    others = {first(2, [5, 6], 0), first(1, [5, 7], 0), first(1, [5, 6], 1), first(1, [6, 5], 0), first(-1, [5, 6], 0)}
    assert same not in others and len(others) == 5
