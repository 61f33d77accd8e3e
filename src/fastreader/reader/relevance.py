"""Relevance: scores of queries with documents by a model that was trained for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import check_choice, check_text, expect, given, located
from fastreader.core.protocol import SequenceScores
from fastreader.core.tree import TreeStats
from fastreader.errors import ContextOverflowError, NumericsError
from fastreader.models.loading.relevance import RelevanceScheme
from fastreader.reader.prompts.encoder import TextEncoder
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


class RelevanceWriter:
    """Writes the prompts of a relevance model, cut to what fits.

    Args:
        encoder: the model's tokenizer.
        scheme: how the model scores.
    """

    def __init__(self, encoder: TextEncoder, scheme: RelevanceScheme) -> None:
        self.scheme = scheme
        self._encoder = encoder
        self._writer = PairWriter(encoder, scheme.template, scheme.structured)

    def prompts(
        self, pairs: Iterable[tuple[str, str]], instruction: str | None, context: int | None, policy: str
    ) -> tuple[list[list[int]], list[int]]:
        """Return the prompt of each pair, up to the token whose state scores it, and what its document lost.

        Args:
            pairs, instruction: see `RelevanceCalls.relevance_scores`.
            context: the model's, in tokens, or None.
            policy: its `on_overflow`.
        """
        instruction = self.scheme.prompts.get(instruction or "", instruction) or self.scheme.prompt
        limit = min((size for size in (self.scheme.longest, context) if size is not None), default=None)
        prompts, truncated = [], []
        for i, pair in enumerate(pairs):
            texts = isinstance(pair, (tuple, list)) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
            expect(texts, f"pairs[{i}]", "two texts, a query and a document", pair)
            with located(f"pairs[{i}]"):
                whole = self._writer.prompt(*pair, instruction)
            tokens, cut = self._fitting(whole, pair, instruction, limit, f"pairs[{i}]", policy)
            last = len(tokens)
            while last > 1 and tokens[last - 1] == self.scheme.pad:
                last -= 1
            prompts.append(tokens[:last])
            truncated.append(cut)
        return prompts, truncated

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


class RelevanceCalls:
    """The calls of a reader whose model may have been trained to score a query with a document."""

    relevance_writer: RelevanceWriter | None
    name: str
    score: Callable[..., SequenceScores]

    @property
    def is_reranker(self) -> bool:
        """Whether the model was trained to score a query with a document, as `relevance_scores` does."""
        return self.relevance_writer is not None

    def relevance_scores(
        self,
        pairs: Iterable[tuple[str, str]],
        *,
        instruction: str | None = None,
        on_overflow: str = "truncate",
        max_batch_tokens: int | None = None,
    ) -> RelevanceScores:
        """Score queries with documents by a model that was trained for it, all in as few passes as memory allows.

        The prompt is the model's: its chat template, prompts and labels, or its tokenizer's pair and classification
        head. What prompts have in common at their beginning is computed once.

        Args:
            pairs: (query, document) texts.
            instruction: what makes a document relevant, or the name of one of the model's prompts; None takes its
                default.
            on_overflow: "truncate" cuts the end of a document that does not fit; "error" raises.
            max_batch_tokens: at most this many tokens are computed in one pass; by default from free memory.

        Raises:
            InputError: if the model is no reranker, or its template has no place for an instruction.
            ContextOverflowError: if a query leaves no room for a document, or (with "error") a document does not fit.
            NumericsError: if a score is not finite.
        """
        expected = "a model for relevance (a LogitScore of sentence-transformers, or a head for classification)"
        other = f"reader: expected {expected}, got {self.name}; other readers rank by method='yes_no'"
        writer = given(self.relevance_writer, other)
        check_choice("on_overflow", on_overflow, ("error", "truncate"))
        check_text("instruction", instruction, optional=True)
        context: int | None = getattr(self, "max_length", None)
        prompts, truncated = writer.prompts(pairs, instruction, context, on_overflow)
        if not prompts:
            return RelevanceScores(np.zeros(0), np.zeros(0), [], [], TreeStats(0, 0, 0, 0), 0)
        found = self.score([(prompt, []) for prompt in prompts], max_batch_tokens=max_batch_tokens)
        logits = found.relevance
        assert logits is not None
        if not np.isfinite(logits).all():
            place = int(np.flatnonzero(~np.isfinite(logits))[0])
            raise NumericsError(f"pairs[{place}]: its score is not finite; the weights are damaged")
        identity = writer.scheme.activation == "identity"
        scores = logits if identity else 1 / (1 + np.exp(-logits.clip(-700)))
        return RelevanceScores(logits, scores, prompts, truncated, found.stats, found.passes)
