"""Compute BERTScore (Zhang et al. 2020): greedy matching of contextual token vectors."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, expect
from fastreader.data.fingerprints import digest
from fastreader.data.record import SavedRecord
from fastreader.eor.similarity.base import Pair, Similarity
from fastreader.eor.similarity.loading import Model
from fastreader.eor.types import BoolArray, FloatArray


@dataclass(frozen=True)
class TokenVectors:
    """The tokens of one text under an encoder.

    Attributes:
        vectors: float32 [T, d], unit rows, special tokens included.
        tokens: T texts of tokens.
        special: bool [T], whether the encoder added the token, such as [CLS].
    """

    vectors: npt.NDArray[np.float32]
    tokens: list[str]
    special: BoolArray


@checked
@dataclass(frozen=True)
class Idf(SavedRecord):
    """Document frequencies of tokens in a fixed set of documents, so that scores never change.

    Attributes:
        documents: number of documents.
        counts: number of documents that hold a token, by token.
    """

    documents: int
    counts: Mapping[str, int] = field(default_factory=dict)

    _indent = None

    def weight(self, token: str) -> float:
        """Return log((N + 1) / (documents with the token + 1))."""
        return math.log((self.documents + 1) / (self.counts.get(token, 0) + 1))

    def digest(self) -> str:
        """Return a digest of the counts that does not depend on their order."""
        return digest([self.documents, sorted(self.counts.items())])


@checked
class BertScore(Similarity):
    """BERTScore F1, not rescaled.

    P is the mean over the first answer's tokens of the largest cosine with a token of the second, R the reverse, F1
    their harmonic mean (Eqs. 1-3 there), with negative values cut to 0. The encoder's special tokens can be matched, as
    in the authors' package, but do not count in the means.
    """

    def __init__(
        self,
        encoder: str | os.PathLike[str] = "all-minilm-l6-v2",
        *,
        layer: int | None = None,
        idf: Idf | None = None,
        device: str | None = None,
        batch_size: int = 64,
    ) -> None:
        """Choose the encoder, which is loaded for the first score.

        Args:
            encoder: a packaged encoder (`fastreader.models.loading.sentence_encoders`), a folder, or a hub id of any
                encoder that transformers' AutoModel loads.
            layer: layer whose states are compared, counted from 1; None uses the last.
            idf: weights of the tokens; None weights all equally.
            device: torch device; None uses CUDA if available.
            batch_size: number of texts encoded at a time; it changes scores only by rounding.
        """
        super().__init__()
        check_int("layer", layer, optional=True)
        self.name = f"bertscore:{os.fspath(encoder)}"
        self.idf, self.layer = idf, layer
        self._model = Model("AutoModel", encoder, device, batch_size)

    def settings(self) -> dict[str, Any]:
        """Return the layer and a digest of the idf."""
        return {"layer": self.layer, "idf": None if self.idf is None else self.idf.digest()}

    def idf_of(self, documents: Sequence[str]) -> Idf:
        """Return token weights for `idf` from `documents`, which should not be the answers of a vote."""
        counts = Counter(token for found in self.token_vectors(documents) for token in set(found.tokens))
        return Idf(len(documents), dict(counts))

    def token_vectors(self, texts: Sequence[str]) -> list[TokenVectors]:
        """Return the token vectors of each text, truncated to what the encoder reads.

        Raises:
            InputError: if the encoder has no such layer.
        """
        import torch

        model, tokenizer = self._model.load()
        layers = getattr(model.config, "num_hidden_layers", None)
        deep = self.layer is not None and layers is not None and self.layer > layers
        expect(not deep, "layer", f"at most {layers}, the number of layers of {self._model.source}", self.layer)
        out: dict[int, TokenVectors] = {}
        for part, inputs in self._model.batches([(text,) for text in texts], return_special_tokens_mask=True):
            special = inputs.pop("special_tokens_mask").bool().numpy()
            with torch.inference_mode():
                states = model(**inputs.to(model.device), output_hidden_states=True).hidden_states
            picked = states[-1 if self.layer is None else self.layer].float()
            vectors = torch.nn.functional.normalize(picked, dim=-1).cpu().numpy()
            kept = inputs["attention_mask"].bool().cpu().numpy()
            for row, i in enumerate(part):
                tokens = tokenizer.convert_ids_to_tokens(inputs["input_ids"][row][kept[row]].tolist())
                out[i] = TokenVectors(vectors[row][kept[row]], tokens, special[row][kept[row]])
        return [out[i] for i in range(len(texts))]

    def _compute(self, pairs: list[Pair]) -> list[float]:
        texts = list(dict.fromkeys(text for pair in pairs for text in pair[1:]))
        found = dict(zip(texts, self.token_vectors(texts), strict=True))
        return [bertscore(found[p.first], found[p.second], self.idf) for p in pairs]


def bertscore(first: TokenVectors, second: TokenVectors, idf: Idf | None = None) -> float:
    """Return F1 of the token vectors of two texts, in [0, 1]."""
    cosine: FloatArray = (first.vectors @ second.vectors.T).astype(np.float64)
    precision = _mean(cosine.max(axis=1), first, idf)
    recall = _mean(cosine.max(axis=0), second, idf)
    if precision <= 0 or recall <= 0:
        return 0.0
    return min(2 * precision * recall / (precision + recall), 1.0)


def _mean(best: FloatArray, text: TokenVectors, idf: Idf | None) -> float:
    weights = np.array([1.0 if idf is None else idf.weight(token) for token in text.tokens])
    weights[text.special] = 0.0
    if not weights.sum():  # every token is in every document, or all are special
        weights = np.where(text.special, 0.0, 1.0) if not text.special.all() else np.ones(len(best))
    return float(np.average(best, weights=weights))
