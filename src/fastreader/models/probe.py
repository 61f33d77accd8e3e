"""A check at load time: the packed pass and the model's own forward must give the same log-likelihoods.

Architectures gain new attention arguments, LM-head scalings and soft caps; the probe detects those that no rule covers,
before a number is reported. With half types a difference smaller than their rounding passes; the fused parts of a
family must agree far more closely, part by part, in `models.fused.match`.
"""

from __future__ import annotations

import numpy as np
import torch

from fastreader.core.tree import PrefixTree
from fastreader.errors import UnsupportedModelError
from fastreader.models.adapter import TreeModel

_SHARED, _BRANCH = 16, 12
# Mean and maximum difference per token, nats. Wrong attention is off by whole nats on trained models; half types differ
# from themselves by about 0.05 when only the order of a sum changes.
_TOLERANCE = {torch.float64: (1e-6, 1e-5), torch.float32: (2e-4, 2e-3)}
_HALF_TOLERANCE = (0.15, 1.5)


def probe(model: TreeModel) -> float:
    """Compare a branching tree with one sequence at a time.

    Args:
        model: the model to check. The texts are shortened to its context; a context of fewer than three tokens has no
            branch to check.

    Returns:
        The largest difference, in nats per token.

    Raises:
        UnsupportedModelError: if the two differ by more than rounding.
    """
    rng = np.random.default_rng(0)
    vocabulary = model.head.weight.shape[0]
    length = min(_SHARED + _BRANCH, model.max_length or _SHARED + _BRANCH)
    if length < 3:
        return 0.0
    branch_length = min(_BRANCH, length // 2)
    shared = rng.integers(0, vocabulary, min(_SHARED, length - branch_length)).tolist()
    branches = [rng.integers(0, vocabulary, branch_length).tolist() for _ in range(2)]
    tree = PrefixTree.build([(shared[:1], shared[1:] + branch) for branch in branches])
    packed = model.score(tree).logprob.double().cpu().numpy()[tree.pairs]
    own = torch.cat([model.original_logprobs(shared + branch) for branch in branches]).double().cpu().numpy()
    difference = np.abs(packed - own)
    exact = model.precision != "fast" and model.dtype in _TOLERANCE
    mean_allowed, max_allowed = _TOLERANCE[model.dtype] if exact else _HALF_TOLERANCE
    if not (difference.mean() <= mean_allowed and difference.max() <= max_allowed):
        raise UnsupportedModelError(
            f"{model.name}: the packed pass and the model's own forward differ by {difference.mean():.3g} nats per "
            f"token on average and by at most {difference.max():.3g} (allowed: {mean_allowed} and {max_allowed}); this "
            "architecture computes something the packed pass does not"
        )
    return float(difference.max())
