"""Check that an untrained student gives the log-likelihoods of the model that it was made from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fastreader.core.tree import PrefixTree
from fastreader.errors import UnsupportedModelError

_SHARED, _BRANCH = 16, 12
# Mean and maximum difference per token, nats. Half types differ from themselves by about 0.05 when only the order of a
# sum changes.
_TOLERANCE = {torch.float64: (1e-6, 1e-5), torch.float32: (2e-4, 2e-3)}
_HALF_TOLERANCE = (0.15, 1.5)


@torch.no_grad()
def compare_with_original(
    name: str, pair_logprobs: Callable[[PrefixTree], torch.Tensor], original: Any, max_length: int | None
) -> None:
    """Compare a branching tree with one sequence at a time, which an untrained adapter leaves equal.

    Args:
        name: of the student, for messages.
        pair_logprobs: returns the student's log-probabilities of a tree's pairs, before its first step.
        original: the transformers model that it was made from, in evaluation mode.
        max_length: its context, to which texts are shortened; None without a limit.

    Raises:
        UnsupportedModelError: if the two differ by more than rounding.
    """
    rng = np.random.default_rng(0)
    length = min(_SHARED + _BRANCH, max_length or _SHARED + _BRANCH)
    if length < 3:  # no branch to check
        return
    branch = min(_BRANCH, length // 2)
    vocabulary = int(original.get_output_embeddings().weight.shape[0])
    shared = rng.integers(0, vocabulary, min(_SHARED, length - branch)).tolist()
    texts = [shared + rng.integers(0, vocabulary, branch).tolist() for _ in range(2)]
    tree = PrefixTree.build([(text[:1], text[1:]) for text in texts])
    packed = pair_logprobs(tree).double().cpu().numpy()[tree.pairs]
    ids = torch.tensor(texts, device=original.device)
    logits = original(input_ids=ids, use_cache=False).logits[:, :-1]
    wide = logits.to(torch.float64 if logits.dtype == torch.float64 else torch.float32)
    own = wide.log_softmax(-1).gather(2, ids[:, 1:, None]).flatten().double().cpu().numpy()
    difference = np.abs(packed - own)
    mean_allowed, max_allowed = _TOLERANCE.get(original.dtype, _HALF_TOLERANCE)
    if not (difference.mean() <= mean_allowed and difference.max() <= max_allowed):
        raise UnsupportedModelError(
            f"{name}: the student and the model it was made from differ by {difference.mean():.3g} nats per "
            f"token on average and by at most {difference.max():.3g} (allowed: {mean_allowed} and {max_allowed}); this "
            "architecture computes something the packed pass does not"
        )
