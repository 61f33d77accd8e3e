"""Whole passes on the path of a GPU, with Triton's kernels in the interpreter, against transformers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.support import one_by_one, tiny_llama

from fastreader.core.tree import PrefixTree
from fastreader.models.tree_model import TreeModel

pytestmark = pytest.mark.interpreter
sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

SEQUENCES = [(list(range(20)), [7, 9, i]) for i in range(3)] + [([1, 2, 3], [5, 200])]


@pytest.mark.parametrize(
    ("precision", "products", "tolerance"), [("exact", "torch", 2e-5), ("high", "bf16x3", 2e-4), ("fast", "bf16", 0.05)]
)
def test_a_pass_gives_the_numbers_of_transformers(precision: str, products: str, tolerance: float) -> None:
    from pretended import pretended

    given = tiny_llama()
    want = np.concatenate(one_by_one(given, SEQUENCES))
    tree = PrefixTree.build(SEQUENCES)
    with pretended():  # the interpreter cuts bfloat16 off, too far from rounding to match layers by
        model = TreeModel(given, "tiny", precision, products, own=True)  # type: ignore[arg-type]
        assert "2 layer" in model.forward_path
    with pretended(kernels=None):
        got = model.score(tree).logprob.double().numpy()[tree.pairs]
    assert np.abs(got - want).max() <= tolerance


@pytest.mark.parametrize("family", ["qwen3_next", "recurrent_gemma"])
def test_a_hybrid_pass_gives_the_numbers_of_transformers(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers.registry import patterns, tiny_model
    from pretended import pretended

    from fastreader.ops.recurrent import ScanPlan

    given = tiny_model(family, patterns(family)[0])
    sequences = [([3, 1, 4], [9, 2]), ([3, 1, 4], [6]), ([3, 5], [6])]
    want = np.concatenate(one_by_one(given, sequences))
    tree = PrefixTree.build(sequences)
    with pretended():
        model = TreeModel(given, "tiny", "exact", "torch", own=True)
    monkeypatch.setattr(ScanPlan, "run", None)  # what the PyTorch forms call
    with pretended(kernels=None):
        got = model.score(tree).logprob.double().numpy()[tree.pairs]
    assert np.abs(got - want).max() <= 1e-4
