"""BERTScore (Zhang et al. 2020): greedy matching of contextual token vectors."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.eor.similarity.base import FloatArray, Pair, Similarity
from fastreader.eor.similarity.loading import load, longest
from fastreader.errors import InputError
from fastreader.models.encoders import local_encoder

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TokenVectors:
    """One text's tokens under an encoder.

    Attributes:
        vectors: float32 [T, d], rows of length 1, special tokens included.
        tokens: T texts of tokens.
        special: bool [T], whether the encoder put the token in, as it does [CLS].
    """

    vectors: Vectors
    tokens: list[str]
    special: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Idf:
    """How many of a fixed set of documents hold each token; once made it never changes, so scores do not either.

    Attributes:
        documents: how many there are.
        counts: documents that hold a token, by token.
    """

    documents: int
    counts: Mapping[str, int] = field(default_factory=dict)

    def weight(self, token: str) -> float:
        """log((N + 1) / (documents with the token + 1))."""
        return math.log((self.documents + 1) / (self.counts.get(token, 0) + 1))

    def digest(self) -> str:
        """Of the counts, the same for equal ones in any order."""
        values = [self.documents, sorted(self.counts.items())]
        return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON."""
        Path(path).write_text(json.dumps({"documents": self.documents, "counts": dict(self.counts)}), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Idf:
        """Read what `save` wrote.

        Raises:
            InputError: not such a file.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(int(values["documents"]), {str(k): int(v) for k, v in values["counts"].items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: no file of Idf ({error!r})") from error


class BertScore(Similarity):
    """BERTScore F1, not rescaled.

    P is the mean over the first answer's tokens of the largest cosine with a token of the second, R the other way
    round, F1 their harmonic mean (Eqs. 1-3 there), negative values cut to 0. The encoder's special tokens can be
    matched, as in the authors' package, but do not count in the means.
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
        """Say which encoder; it is loaded when the first score is asked for.

        Args:
            encoder: a packaged encoder (`fastreader.models.encoders`), a folder, or a hub id of any encoder that
                transformers' AutoModel loads.
            layer: whose states are compared, counted from 1; None: the last.
            idf: weights of the tokens; None: all equal.
            device: of torch; None: CUDA where there is one.
            batch_size: texts encoded at a time; it changes scores by no more than rounding.
        """
        super().__init__()
        self.name = f"bertscore:{os.fspath(encoder)}"
        self.idf = idf
        self._encoder = TokenEncoder(encoder, layer=layer, device=device, batch_size=batch_size)

    def settings(self) -> dict[str, Any]:
        """As `Similarity.settings`: the layer, and a digest of the idf."""
        return {"layer": self._encoder.layer, "idf": None if self.idf is None else self.idf.digest()}

    def idf_of(self, documents: Sequence[str]) -> Idf:
        """Token weights from `documents`, for `idf`; make it once, from texts that are not being voted on."""
        counts = Counter(token for found in self._encoder(documents) for token in set(found.tokens))
        return Idf(len(documents), dict(counts))

    def _compute(self, pairs: list[Pair]) -> list[float]:
        texts = list(dict.fromkeys(text for pair in pairs for text in pair[1:]))
        found = dict(zip(texts, self._encoder(texts), strict=True))
        return [bertscore(found[p.first], found[p.second], self.idf) for p in pairs]


def bertscore(first: TokenVectors, second: TokenVectors, idf: Idf | None = None) -> float:
    """F1 of two texts' token vectors, in [0, 1]."""
    cosine: FloatArray = (first.vectors @ second.vectors.T).astype(np.float64)
    precision = _mean(cosine.max(axis=1), first, idf)
    recall = _mean(cosine.max(axis=0), second, idf)
    if precision <= 0 or recall <= 0:
        return 0.0
    return min(2 * precision * recall / (precision + recall), 1.0)


def _mean(best: FloatArray, text: TokenVectors, idf: Idf | None) -> float:
    weights = np.array([1.0 if idf is None else idf.weight(token) for token in text.tokens])
    weights[text.special] = 0.0
    if not weights.sum():  # every token is in every document, or there is none but special ones
        weights = np.where(text.special, 0.0, 1.0) if not text.special.all() else np.ones(len(best))
    return float(np.average(best, weights=weights))


class TokenEncoder:
    """Texts to the vectors of their tokens, by any encoder of transformers; loaded on first use."""

    def __init__(self, name: str | os.PathLike[str], *, layer: int | None, device: str | None, batch_size: int) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size: expected at least 1, got {batch_size}")
        if layer is not None and layer < 1:
            raise InputError(f"layer: expected a number from 1, got {layer}")
        self.name, self.layer, self._device, self._batch = name, layer, device, batch_size
        self._loaded: tuple[Any, Any] | None = None

    def __call__(self, texts: Sequence[str]) -> list[TokenVectors]:
        """The token vectors of each text; texts longer than the encoder reads are cut there."""
        import torch

        model, tokenizer = self._load()
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        out: dict[int, TokenVectors] = {}
        for start in range(0, len(order), self._batch):
            part = order[start : start + self._batch]
            inputs = tokenizer(
                [texts[i] for i in part],
                padding=True,
                truncation=True,
                max_length=longest(model, tokenizer),
                return_special_tokens_mask=True,
                return_tensors="pt",
            )
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

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            source = local_encoder(self.name)
            model, tokenizer = load("AutoModel", source, self._device)
            layers = getattr(model.config, "num_hidden_layers", None)
            if self.layer is not None and layers is not None and self.layer > layers:
                raise InputError(f"layer: {source} has {layers}, got {self.layer}")
            self._loaded = model, tokenizer
        return self._loaded
