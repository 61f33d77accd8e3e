"""A cross-encoder as re-ranker, by name (sentence-transformers; the extra "cross-encoder")."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fastreader.data.types import Passage
from fastreader.errors import InputError, MissingExtraError
from fastreader.moi.baselines.ordering import Ordering, by_score, check_passages, show


def cross_encoder(reader: Any, question: str, passages: Sequence[Passage], *, model: Any, batch: int = 32) -> Ordering:
    """The passages by a cross-encoder's relevance score.

    Args:
        reader: unused.
        question: its text.
        passages: in the retriever's order.
        model: a name or folder for sentence-transformers' ``CrossEncoder``, kept once loaded, or such an object.
        batch: pairs at a time.

    Raises:
        MissingExtraError: sentence-transformers is not installed.
        InputError: the model gives something else than one score a pair.
    """
    count = check_passages(passages)
    encoder = _load(model) if isinstance(model, str) else model
    pairs = [(question, show(passage)) for passage in passages]
    scores = np.asarray(encoder.predict(pairs, batch_size=batch, show_progress_bar=False), dtype=np.float64)
    if scores.shape != (count,) or not np.isfinite(scores).all():
        raise InputError(f"model: expected one finite score for each of {count} pairs, got {scores.shape}: {scores}")
    return by_score("cross-encoder", scores)


@lru_cache(maxsize=2)
def _load(name: str) -> Any:
    try:
        from sentence_transformers import CrossEncoder
    except ImportError as error:
        raise MissingExtraError("sentence-transformers", "cross-encoder") from error
    return CrossEncoder(name)
