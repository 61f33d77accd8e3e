"""ScoreReader: the base of readers that can score and not generate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.protocol import Loglikelihood, Results, SequenceScores, TextOrTokens
from fastreader.core.tree import Tokens
from fastreader.reader.loglikelihood import score_requests
from fastreader.reader.prompts.writer import PromptWriter


@checked
class ScoreReader(PromptWriter, ABC):
    """A reader whose `loglikelihood` is made of its `score` and `max_length`, since its model is not in this object."""

    @property
    @abstractmethod
    def max_length(self) -> int | None:
        """Longest input in tokens, or None if there is no limit."""

    @abstractmethod
    def score(
        self, sequences: Sequence[tuple[Tokens, Tokens]], *, max_batch_tokens: int | None = None
    ) -> SequenceScores:
        """Score (context, continuation) pairs of token ids, as `Reader.score`."""

    def loglikelihood(
        self,
        requests: Iterable[tuple[TextOrTokens, TextOrTokens]],
        *,
        token_logprobs: bool = False,
        special_tokens: bool = True,
        on_overflow: str = "error",
        max_batch_tokens: int | None = None,
        progress: bool | None = None,
    ) -> Results[Loglikelihood]:
        """Return the log-likelihood of each continuation after its context, as `Reader.loglikelihood`."""
        options: Any = {"special_tokens": special_tokens, "on_overflow": on_overflow, "token_logprobs": token_logprobs}
        score = partial(self.score, max_batch_tokens=max_batch_tokens)
        return score_requests(score, self.encoder, self.max_length, requests, **options)
