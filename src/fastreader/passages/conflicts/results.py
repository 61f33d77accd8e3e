"""Conflicts: which passages pull towards which answers, and which passage contradicts the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked_methods
from fastreader.core.tree import TreeStats
from fastreader.core.words import counted
from fastreader.data.record import SavedRecord

FloatArray = npt.NDArray[np.float64]
FLAG = 0.4  # the smallest probability of a contradiction at which a passage is named


@checked_methods
@dataclass(frozen=True, eq=False)
class Conflicts(SavedRecord):
    """N passages of one question against K candidate answers, in nats.

    Attributes:
        question: the question's text.
        candidates: K texts; empty if none were given and the passages have no span that may be an answer.
        logprobs: float64 [N, K], log P(candidate and its end | passage alone, question).
        closed_book_logprobs: float64 [K], log P(candidate and its end | question).
        texts: float64 [N, K], log-likelihood of the passage's text with the candidate instead of its claim, less
            the one with its claim. Above 0 the text fits the candidate better than its own claim. NaN if not scored:
            texts are scored only for candidates that equally many passages state, and no other candidate has more.
        stated: float64 [N, K], 1 if the passage's text states the candidate and does not negate it, 0.5 if only its
            title has it, else 0.
        denied: bool [N, K], whether the text names the candidate and negates it everywhere.
        claims: N indices of the candidate that each passage's text states, of several the one that it raises most;
            None if it states no candidate.
        supports: N indices of the candidate whose log-probability ratio the passage raises most; None if it raises no
            candidate.
        probabilities: float64 [K], probability that the candidate is right if one of them is, given the passages only.
        consensus: index of the most probable candidate; None without candidates, or if no passage states one.
        odd_scores: float64 [N], probability that the passage contradicts the right candidate; 0 if nothing was
            compared.
        score: probability that at least one passage contradicts the right candidate; 0 if nothing was compared.
        proposed: whether the candidates come from the passages.
        stats: tokens.
        reader: name, device, dtype and precision of the reader.
        id: the question's identifier.
        note: why the passages are not compared, or cautions about the odd one; empty without either.
    """

    question: str
    candidates: list[str]
    logprobs: FloatArray
    closed_book_logprobs: FloatArray
    texts: FloatArray
    stated: FloatArray
    denied: npt.NDArray[np.bool_]
    claims: list[int | None]
    supports: list[int | None]
    probabilities: FloatArray
    consensus: int | None
    odd_scores: FloatArray
    score: float
    proposed: bool
    stats: TreeStats
    reader: dict[str, str]
    id: str | None = None
    note: str = ""

    _indent = None
    _nulls: ClassVar = {"texts": np.nan}
    _shapes: ClassVar = {
        "supports": "N",
        "candidates": "K",
        "logprobs": "N K",
        "closed_book_logprobs": "K",
        "texts": "N K",
        "stated": "N K",
        "denied": "N K",
        "claims": "N",
        "probabilities": "K",
        "odd_scores": "N",
    }

    @property
    def ratios(self) -> FloatArray:
        """Ratios log P(candidate | passage, question) - log P(candidate | question): float64 [N, K]."""
        return self.logprobs - self.closed_book_logprobs

    @property
    def odd(self) -> int | None:
        """The index of the passage with the largest odd score, or None if `score` is below `FLAG` = 0.4."""
        return int(self.odd_scores.argmax()) if self.score >= FLAG else None

    def __repr__(self) -> str:
        passages, candidates = counted(len(self.logprobs), "passage"), counted(len(self.candidates), "candidate")
        head = f"Conflicts({passages} x {candidates}, score {self.score:.2f}"
        agreed = ""
        if self.consensus is not None:
            name, probable = self.candidates[self.consensus], self.probabilities[self.consensus]
            agreed = f", consensus {name!r} ({probable:.2f})"
        lines = [f"{head}{agreed})"]
        for i, (support, odd) in enumerate(zip(self.supports, self.odd_scores, strict=True)):
            pull = "no candidate" if support is None else f"{self.candidates[support]} {self.ratios[i, support]:+.2f}"
            lines.append(f"  {'>' if i == self.odd else ' '} passage {i}: {pull}, odd {odd:.2f}")
        return "\n".join([*lines, *([f"note: {self.note}"] if self.note else [])])

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as JSON values, with ratios and odd passage, and null for NaN."""
        found = {"ratios": self.ratios.tolist(), "odd": self.odd}
        return {"id": self.id, **super().to_dict(), **found}
