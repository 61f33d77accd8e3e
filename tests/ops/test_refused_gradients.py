"""Every op is forward only, and raises for a gradient in each of its implementations."""

from __future__ import annotations

import pytest
import torch

from fastreader.errors import InputError
from fastreader.ops import IMPLEMENTATIONS, linear, linear_logprob, merge_state, tree_attention

SUBTREE_END = torch.full((3,), 3, dtype=torch.int32)
TARGET = torch.tensor([0, 1, 4])
# Each op, and the shapes of its floating arguments.
OPS = {
    "tree_attention": (
        lambda q, k, v, impl: tree_attention(q, k, v, SUBTREE_END, scale=1.0, impl=impl),
        [(3, 2, 8), (3, 1, 8), (3, 1, 8)],
    ),
    "linear_logprob": (lambda h, w, b, impl: linear_logprob(h, w, TARGET, bias=b, impl=impl), [(3, 8), (5, 8), (5,)]),
    "linear": (lambda x, w, b, impl: linear(x, w, b, impl=impl), [(3, 8), (5, 8), (5,)]),
    "merge_state": (
        lambda a, la, b, lb, impl: merge_state(a, la, b, lb, impl=impl),
        [(3, 2, 8), (3, 2), (3, 2, 8), (3, 2)],
    ),
}
CASES = [(op, impl, i) for op, (_, shapes) in OPS.items() for impl in IMPLEMENTATIONS for i in range(len(shapes))]


@pytest.mark.parametrize(("op", "impl", "which"), CASES)
def test_an_input_that_needs_a_gradient_raises(op: str, impl: str, which: int) -> None:
    run, shapes = OPS[op]
    tensors = [torch.randn(shape).requires_grad_(i == which) for i, shape in enumerate(shapes)]
    with pytest.raises(InputError, match="requires a gradient"):
        run(*tensors, impl)
    with torch.no_grad():
        run(*tensors, "torch")
