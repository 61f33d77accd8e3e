"""Relevance: scores of queries with documents by a model that was trained for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fastreader.core.checks import check_choice, check_text, expect, located
from fastreader.core.tree import PrefixTree, TreeStats
from fastreader.errors import ContextOverflowError, NumericsError
from fastreader.models.loading.relevance import RelevanceScheme
from fastreader.models.passes.prefix_cache import PrefixCache
from fastreader.models.tree_model import TreeModel
from fastreader.reader.local_model import LocalModel
from fastreader.reader.prompts.pairs import PairWriter


@dataclass(frozen=True, eq=False)
class RelevanceScores:
    """Scores of N pairs.

    Attributes:
        logits: float64 [N], the raw scores; larger is more relevant.
        scores: float64 [N], after the model's activation, as its card gives them.
        prompts: token ids of each prompt, up to the token whose state scores it.
        truncated: tokens cut off the end of each document.
        stats: tokens read and computed.
        passes: number of passes.
    """

    logits: npt.NDArray[np.float64]
    scores: npt.NDArray[np.float64]
    prompts: list[list[int]]
    truncated: list[int]
    stats: TreeStats
    passes: int


class Relevance:
    """Scores pairs by a model's labels or head.

    Args:
        local_model: the model.
        scheme: how the model scores.
    """

    def __init__(self, local_model: LocalModel, scheme: RelevanceScheme) -> None:
        self.scheme = scheme
        self._local_model = local_model
        self._encoder = local_model.encoder
        self._writer = PairWriter(local_model.encoder, scheme.template, scheme.structured)
        self._rows: tuple[Tensor, Tensor | None] | None = None

    def scores(
        self,
        pairs: Iterable[tuple[str, str]],
        instruction: str | None,
        *,
        on_overflow: str,
        max_batch_tokens: int | None,
        kept: PrefixCache | None = None,
        keep: Callable[[Sequence[PrefixTree]], None] | None = None,
    ) -> RelevanceScores:
        """Do the work of `Reader.relevance_scores`, reusing the keys and values in `kept`."""
        local_model = self._local_model
        check_choice("on_overflow", on_overflow, ("error", "truncate"))
        check_text("instruction", instruction, optional=True)
        instruction = self.scheme.prompts.get(instruction or "", instruction) or self.scheme.prompt
        limits = [limit for limit in (self.scheme.longest, local_model.max_length) if limit is not None]
        limit = min(limits, default=None)
        prompts: list[tuple[list[int], list[int]]] = []
        truncated = []
        for i, pair in enumerate(pairs):
            texts = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
            expect(texts, f"pairs[{i}]", "two texts, a query and a document", pair)
            with located(f"pairs[{i}]"):
                whole = self._writer.prompt(*pair, instruction)
            tokens, cut = self._fitting(whole, pair, instruction, limit, f"pairs[{i}]", on_overflow)
            prompts.append((self._counted(tokens), []))
            truncated.append(cut)
        logits, stats, passes = np.zeros(len(prompts)), TreeStats(0, 0, 0, 0), 0
        if prompts:
            local_model.require_unchanged()
            trees = local_model.plan(prompts, max_batch_tokens, new_tokens=0 if keep is None else 2)
            if keep is not None:
                keep(trees)
            passes = len(trees)
            for tree in trees:
                reuse = None if kept is None else kept.lookup(tree)
                with local_model.lock:
                    model = local_model.model
                    key_values = None if keep is None else model.new_key_values(tree, reuse)
                    states = model.hidden(tree, reuse=reuse, key_values=key_values, rows=tree.leaves)
                    logits[tree.sequence_ids] = self._logits(model, states)
                stats = stats + (tree.stats if reuse is None else reuse.stats(tree.stats))
                if kept is not None and key_values is not None:
                    kept.add(tree, key_values)
        if not np.isfinite(logits).all():
            place = int(np.flatnonzero(~np.isfinite(logits))[0])
            raise NumericsError(f"pairs[{place}]: its score is not finite; the weights are damaged")
        return RelevanceScores(
            logits, self.activated(logits), [tokens for tokens, _ in prompts], truncated, stats, passes
        )

    def activated(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return scores as the model's card gives them."""
        return logits if self.scheme.activation == "identity" else 1 / (1 + np.exp(-logits.clip(-700)))

    def _fitting(
        self,
        tokens: list[int],
        pair: Sequence[str],
        instruction: str | None,
        limit: int | None,
        name: str,
        policy: str,
    ) -> tuple[list[int], int]:
        """Return a pair's prompt, with as much of the document as fits, and how many tokens the document lost."""
        if limit is None or len(tokens) <= limit:
            return tokens, 0
        query, document = pair
        own = self._encoder.pieces([document])[0]
        beyond = len(tokens) - limit
        if policy == "error":
            raise ContextOverflowError(f"{name}: the document is {beyond} tokens too long for the {limit} of a prompt")
        left = len(own) - beyond
        while left > 0:
            start = self._encoder.text(own[:left]).rstrip("\ufffd")  # of a character that was cut
            tokens = self._writer.prompt(query, start, instruction)
            if len(tokens) <= limit:
                return tokens, len(own) - left
            left -= len(tokens) - limit
        raise ContextOverflowError(f"{name}: the query leaves no room for a document in the {limit} tokens of a prompt")

    def _counted(self, tokens: list[int]) -> list[int]:
        """Return a prompt up to the token whose state scores it."""
        last = len(tokens)
        while last > 1 and self.scheme.pad is not None and tokens[last - 1] == self.scheme.pad:
            last -= 1
        return tokens[:last]

    @torch.inference_mode()
    def _logits(self, model: TreeModel, states: Tensor) -> npt.NDArray[np.float64]:
        """Return the scores [N] of final states [N, E]."""
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
        """Return the rows that score, float32 [1 or 2, E], and their bias."""
        rows = torch.tensor(self.scheme.rows)
        if self.scheme.weight is not None:
            bias = self.scheme.bias
            return self.scheme.weight[rows].to(model.device), None if bias is None else bias[rows].to(model.device)
        weight, bias = model.head.weight.detach(), model.head.bias
        rows = rows.to(weight.device)
        chosen = weight[rows]
        chosen = chosen if chosen.dtype == torch.float64 else chosen.float()
        return chosen, None if bias is None else bias.detach()[rows].float()
