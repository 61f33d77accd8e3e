"""The last layer computes only the selected states, and they equal the states of the whole pass."""

import numpy as np
import pytest
import torch
from helpers.support import byte_tokenizer
from test_architectures import tiny

from fastreader import Reader
from fastreader.core.tree import PrefixTree
from fastreader.models.passes import packed_keys
from fastreader.models.passes.key_values import CachedTokens, KeyValues, Reuse

SEQUENCES = [
    ([7 + i % 90 for i in range(40)] + [100 + j, 101 + j], [120 + j + k for k in range(1 + j)]) for j in range(6)
]
FUSED = ["Llama", "Qwen3", "Gemma2, window, caps", "Olmo2", "Granite"]


@pytest.fixture
def queries(monkeypatch):
    """Record the number of queries of each attention call."""
    counts = []
    inner = packed_keys.tree_attention

    def counted(query, *others, **named):
        counts.append(len(query))
        return inner(query, *others, **named)

    monkeypatch.setattr(packed_keys, "tree_attention", counted)
    return counts


def pass_of(family, precision):
    model = Reader.load((tiny(family), byte_tokenizer()), precision=precision).local_model.model
    return model, PrefixTree.build(SEQUENCES)


def close(states, wanted):
    torch.testing.assert_close(states, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["fast", "high", "exact"])
@pytest.mark.parametrize("family", [*FUSED, "Cohere2, window", "GPTNeoX"])
@pytest.mark.long(keep=7)
def test_selected_states_equal_those_of_the_whole_pass(family, precision, queries):
    model, tree = pass_of(family, precision)
    wanted = model.hidden(tree)
    rows = np.array([len(tree) - 1, 3, 44, 3], dtype=np.int64)
    queries.clear()
    close(model.hidden(tree, rows=rows), wanted[torch.from_numpy(rows)])
    assert queries == [len(tree)] * 2 + [3 if family in FUSED else len(tree)]


def test_selection_with_recorded_and_reused_keys():
    model, tree = pass_of("Llama", "high")
    record, again = KeyValues(), KeyValues()
    wanted = model.hidden(tree, key_values=record)
    model.hidden(tree, key_values=again, rows=tree.leaves)
    for one, other in ((record.keys, again.keys), (record.values, again.values)):
        assert len(one) == len(other)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    known = np.arange(40, dtype=np.int64)
    fresh = np.arange(40, len(tree), dtype=np.int64)
    states = model.hidden(tree, reuse=Reuse(fresh, [CachedTokens(known, known, record)]), rows=tree.leaves)
    close(states, wanted[torch.from_numpy(tree.leaves)])


def test_selecting_no_row_and_every_row(queries):
    model, tree = pass_of("Llama", "fast")
    queries.clear()  # from the probe at load
    assert model.hidden(tree, rows=np.array([], dtype=np.int64)).shape == (0, 64)
    everything = np.arange(len(tree), dtype=np.int64)[::-1].copy()
    close(model.hidden(tree, rows=everything), model.hidden(tree).flip(0))
    assert set(queries) == {len(tree)}
