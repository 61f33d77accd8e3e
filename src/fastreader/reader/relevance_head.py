"""RelevanceHead: the raw score of a prompt of a query and a document, from its last state."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.tree import PrefixTree
from fastreader.models.loading.relevance import RelevanceScheme
from fastreader.models.passes.key_values import KeyValues, Reuse
from fastreader.models.tree_model import TreeModel
from fastreader.ops.linear_logprob import LogprobStats


class RelevanceHead:
    """Scores the last state of a prompt by a model's label tokens or its classification head.

    Args:
        scheme: how the model scores.
    """

    def __init__(self, scheme: RelevanceScheme) -> None:
        self.scheme = scheme
        self._rows: tuple[Tensor, Tensor | None] | None = None

    @torch.inference_mode()
    def read(
        self, model: TreeModel, tree: PrefixTree, reuse: Reuse | None = None, key_values: KeyValues | None = None
    ) -> tuple[LogprobStats, npt.NDArray[np.float64]]:
        """Return what `TreeModel.score` returns, and the raw score float64 [S] of each sequence.

        Args:
            model: runs the tree.
            tree, reuse, key_values: see `TreeModel.hidden`.
        """
        rows = np.concatenate([tree.sources, tree.leaves])
        states = model.hidden(tree, reuse=reuse, key_values=key_values, rows=rows)
        count = len(tree.sources)
        return model.pair_logprobs(states[:count], tree), self._logits(model, states[count:])

    def _logits(self, model: TreeModel, states: Tensor) -> npt.NDArray[np.float64]:
        """Return the scores [S] of final states [S, E]."""
        weight, bias = self._rows = self._rows or self._chosen(model)
        states = states if states.dtype == torch.float64 else states.float()
        logits = states @ weight.to(states.dtype).T
        if bias is not None:
            logits = logits + bias
        if self.scheme.weight is None:
            logits = logits * model.logit_scale
            if model.logit_softcap is not None:
                logits = model.logit_softcap * torch.tanh(logits / model.logit_softcap)
        values: Any = logits.double().cpu().numpy()
        found: npt.NDArray[np.float64] = values[:, 0] if values.shape[1] == 1 else values[:, 0] - values[:, 1]
        return found

    def _chosen(self, model: TreeModel) -> tuple[Tensor, Tensor | None]:
        """Return the rows that score, [1 or 2, E], and their bias."""
        rows = torch.tensor(self.scheme.rows)
        if self.scheme.weight is not None:
            own = self.scheme.bias
            return self.scheme.weight[rows].to(model.device), None if own is None else own[rows].to(model.device)
        weight, bias = model.head.weight.detach(), model.head.bias
        rows = rows.to(weight.device)
        chosen = weight[rows]
        chosen = chosen if chosen.dtype == torch.float64 else chosen.float()
        return chosen, None if bias is None else bias.detach()[rows].float()
