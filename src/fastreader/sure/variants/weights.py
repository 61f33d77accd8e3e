"""Compare passages with a text, and weight passages by the similarities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import expect
from fastreader.data import Passage
from fastreader.data.types import whole_text
from fastreader.errors import MissingExtraError
from fastreader.models.loading.sentence_encoders import Encoder, load_encoder
from fastreader.sure.settings import Settings
from fastreader.sure.task import Task

FloatArray = npt.NDArray[np.float64]


def passage_weights(task: Task, otherwise: str) -> FloatArray:
    """Return float64 [N], a softmax of similarities to the question of the kind in the settings, or else `otherwise`.

    Raises:
        InputError: if weights="retriever" and a passage has no finite score.
        MissingExtraError: if scikit-learn or sentence-transformers is needed and not installed.
    """
    kind = task.settings.weights or otherwise
    if kind == "equal":
        return np.full(len(task.passages), 1 / len(task.passages))
    if kind == "retriever":
        for i, passage in enumerate(task.passages):
            finite = passage.score is not None and math.isfinite(passage.score)
            expect(finite, f"passages[{i}].score", "a finite number for weights='retriever'", passage.score)
        similarity = np.array([p.score for p in task.passages], dtype=np.float64)
    elif kind == "tfidf":
        similarity = tfidf_similarity(task.question, task.passages)
    else:
        similarity = encoder_similarity(task.settings, task.question, task.passages)
    return softmax(similarity / task.settings.weight_temperature)


def softmax(values: FloatArray) -> FloatArray:
    """Return exp(values) over its sum: float64 [N] to [N]."""
    powers = np.exp(values - values.max())
    shares: FloatArray = powers / powers.sum()
    return shares


def tfidf_similarity(text: str, passages: Sequence[Passage]) -> FloatArray:
    """Return the cosine of TF-IDF vectors of `text` and each passage, fitted on these texts only: float64 [N]."""
    try:
        from sklearn.feature_extraction.text import TfidfVectorizer
    except ImportError:
        raise MissingExtraError("scikit-learn", "encoders") from None
    vectors = TfidfVectorizer(token_pattern=r"(?u)\b\w+\b").fit_transform([text, *map(whole_text, passages)])  # nosec B106 # a pattern of words
    similarity: FloatArray = (vectors[1:] @ vectors[0].T).toarray()[:, 0].astype(np.float64)
    return similarity


def encoder_similarity(settings: Settings, text: str, passages: Sequence[Passage]) -> FloatArray:
    """Return the cosine of sentence embeddings of `text` and each passage: float64 [N]."""
    encoder: Encoder = settings.encoder if callable(settings.encoder) else _loaded(settings.encoder)
    vectors = encoder([text, *map(whole_text, passages)]).astype(np.float64)
    similarity: FloatArray = vectors[1:] @ vectors[0]
    return similarity


@lru_cache(maxsize=2)
def _loaded(name: str) -> Encoder:
    return load_encoder(name)
