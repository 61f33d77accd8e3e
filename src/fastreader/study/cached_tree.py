"""A `Reader` whose scores, log-likelihoods and texts come through a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fastreader.errors import InputError
from fastreader.reader.loglikelihood import SequenceScores
from fastreader.reader.reader import Reader
from fastreader.study.cached_reader import CachedReader


class CachedTreeReader(Reader):
    """The reader behind a `CachedReader`, sharing its model and its lock."""

    session = None  # type: ignore[assignment]  # what a session gives would be neither in the cache nor counted

    def __init__(self, cached: CachedReader) -> None:
        if not isinstance(cached.reader, Reader):
            raise InputError(
                f"reader: this method needs a fastreader.Reader, got {type(cached.reader).__name__}; other readers "
                "serve the methods sure, eor and noise"
            )
        self.__dict__.update(vars(cached.reader))
        self._cached = cached

    def score(self, sequences: Sequence[tuple[Any, Any]], *, max_tokens: int | None = None) -> SequenceScores:
        """As `Reader.score`."""
        inner: Any = self._cached.reader
        items, stats, seconds, passes = self._cached.scores(
            sequences, lambda missing: inner.score(missing, max_tokens=max_tokens or self._cached.max_tokens)
        )
        return SequenceScores(
            logprob=np.array([item["logprob"] for item in items], dtype=np.float64),
            tokens=np.array([item["tokens"] for item in items], dtype=np.int64),
            greedy=np.array([item["greedy"] for item in items], dtype=bool),
            token_logprobs=[np.array(item["token_logprobs"], dtype=np.float64) for item in items],
            stats=stats,
            passes=passes,
            seconds=seconds,
        )

    def loglikelihood(self, requests: Any, **options: Any) -> Any:
        """As `Reader.loglikelihood`."""
        return self._cached.loglikelihood(requests, **options)

    def generate(self, prompts: Any, **options: Any) -> Any:
        """As `Reader.generate`."""
        return self._cached.generate(prompts, **options)
