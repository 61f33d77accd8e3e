"""The rewrites of a model's private copy: which apply to which family, and in which order."""

import pytest
from helpers import registry
from helpers.support import tiny_llama

from fastreader.models.rewriting.rewrites import REWRITES
from fastreader.models.tree_model import TreeModel

LLAMA = (
    "attention",
    "linear layers and embeddings",
    "norms, feed-forwards and attention layers",
    "decoder layers",
    "modules that treat tokens independently",
)


def rewrites(model):
    return TreeModel(model, "tiny", "exact", "torch").rewrites


def test_every_rewrite_has_a_name_and_says_how_it_is_checked():
    assert len({step.name for step in REWRITES}) == len(REWRITES)
    assert all(len(step.checked.split()) > 5 for step in REWRITES)


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("gpt_neo", {"scores of attention"}),
        ("lfm2", {"functions of recurrent layers"}),
        ("mixtral", {"experts"}),
        ("llama4_text", {"temperature of queries", "experts"}),
        ("glm_moe_dsa", {"indexes of keys", "experts"}),
    ],
)
def test_a_family_gets_the_rewrites_of_its_parts(family, more):
    found = rewrites(registry.tiny_model(family, registry.patterns(family)[0]))
    assert set(found) == {*LLAMA, *more}
    order = [step.name for step in REWRITES]
    assert sorted(found, key=order.index) == list(found)


def test_a_plain_decoder_gets_only_the_usual_ones():
    assert rewrites(tiny_llama()) == LLAMA


def test_parts_are_not_fused_in_float64():
    assert rewrites(tiny_llama().double()) == LLAMA[:2]
