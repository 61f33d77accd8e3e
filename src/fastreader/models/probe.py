"""A check at load time: the packed pass and the model's own forward must give the same log-likelihoods.

Architectures grow new attention arguments, LM-head scalings and soft caps; this catches the ones nobody has
written a rule for, before a number is reported. At half types a difference smaller than their rounding passes: what
of a family runs fused is held to far less, part by part, in `models.fused.adopt`.
"""

from __future__ import annotations

import numpy as np
import torch

from fastreader.core.tree import PrefixTree
from fastreader.errors import UnsupportedModelError
from fastreader.models.adapter import TreeModel

_SHARED, _BRANCH = 16, 12
# Mean and maximum difference a token, nats. Wrong attention is off by whole nats on trained models; half
# types differ from themselves by about 0.05 when only the order of a sum changes.
_TOLERANCE = {torch.float64: (1e-6, 1e-5), torch.float32: (2e-4, 2e-3)}
_HALF_TOLERANCE = (0.15, 1.5)


def probe(model: TreeModel) -> float:
    """Compare a branching tree with one sequence at a time.

    Args:
        model: the model to check; the texts are shortened to what it takes, and one that takes fewer than three
            tokens has no branch to check.

    Returns:
        The largest difference seen, nats a token.

    Raises:
        UnsupportedModelError: the two disagree by more than rounding.
    """
    rng = np.random.default_rng(0)
    vocabulary = model.head.weight.shape[0]
    room = min(_SHARED + _BRANCH, model.max_length or _SHARED + _BRANCH)
    if room < 3:
        return 0.0
    branch_length = min(_BRANCH, room // 2)
    shared = rng.integers(0, vocabulary, min(_SHARED, room - branch_length)).tolist()
    branches = [rng.integers(0, vocabulary, branch_length).tolist() for _ in range(2)]
    tree = PrefixTree.build([(shared[:1], shared[1:] + branch) for branch in branches])
    packed = model.score(tree).logprob.double().cpu().numpy()[tree.pairs]
    own = torch.cat([model.own_logprobs(shared + branch) for branch in branches]).double().cpu().numpy()
    difference = np.abs(packed - own)
    exact = model.precision != "fast" and model.dtype in _TOLERANCE
    mean_allowed, most_allowed = _TOLERANCE[model.dtype] if exact else _HALF_TOLERANCE
    if not (difference.mean() <= mean_allowed and difference.max() <= most_allowed):
        raise UnsupportedModelError(
            f"{model.name}: the packed pass and the model's own forward differ by {difference.mean():.3g} nats a token "
            f"on average and {difference.max():.3g} at most (allowed: {mean_allowed} and {most_allowed}); this "
            "architecture computes something the packed pass does not"
        )
    return float(difference.max())
