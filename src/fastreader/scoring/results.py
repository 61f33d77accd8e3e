"""PermutationScores: what scoring every ordering of one question's passages gives."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.tree import TreeStats
from fastreader.errors import InputError

FloatArray = npt.NDArray[np.float64]
NORMALISATIONS = ("sum", "token", "pmi")


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-likelihood of every scored token, nats.

    Attributes:
        question: [M] lists, one value a question token.
        candidates: [M][K] lists, one value a token of the candidate and its end.
        passages: [M] lists, or None when the passages were not scored.
    """

    question: list[list[float]]
    candidates: list[list[list[float]]]
    passages: list[list[float]] | None = None


@dataclass(frozen=True, eq=False)
class PermutationScores:
    """Log-likelihoods under M orderings of L passages and K candidates, in nats.

    Attributes:
        question: the question's text.
        candidates: K texts.
        permutations: int64 [M, L], row m lists passage indices in reading order.
        logprobs: float64 [M, K], log P(candidate and its end | passages in order m, question).
        question_logprobs: float64 [M], log P(question | passages in order m); where the template puts the
            question first, the passages do not condition it and all rows are equal.
        candidate_tokens: int64 [K], tokens scored for each candidate, its end included.
        question_tokens: tokens of the question.
        passages_tokens: int64 [M], tokens of the passages as read in order m.
        greedy: bool [M, K], whether greedy decoding would have written the candidate.
        passages_logprobs: float64 [M], log P(passages in order m | header), or None when not asked for.
        closed_book_logprobs: float64 [K], log P(candidate | question) without passages, or None when not asked for.
        query_logprobs: float64 [N], log P(question | passage p alone), its query likelihood; None unless requested.
        token_logprobs: every token's value, or None when not asked for.
        design: name of the permutations.
        dropped_passages: indices left out because the prompt was too long, by on_overflow="drop_passages".
        truncated_tokens: tokens cut off each passage, by on_overflow="truncate"; passages left whole are absent.
        stats: tokens given and computed; of an example packed with others, as if it had run alone and
            without a session.
        seconds: wall clock of the passes; shared by the examples that were packed together.
        reader: what scored them: name, device, dtype, precision.
        id: the example's identifier.
        template_digest: digest of the prompt's texts, `Template.digest`; "" in results of older releases.
    """

    question: str
    candidates: list[str]
    permutations: npt.NDArray[np.int64]
    logprobs: FloatArray
    question_logprobs: FloatArray
    candidate_tokens: npt.NDArray[np.int64]
    question_tokens: int
    passages_tokens: npt.NDArray[np.int64]
    greedy: npt.NDArray[np.bool_]
    stats: TreeStats
    seconds: float
    reader: dict[str, str]
    design: str
    passages_logprobs: FloatArray | None = None
    closed_book_logprobs: FloatArray | None = None
    token_logprobs: TokenLogprobs | None = None
    dropped_passages: list[int] = field(default_factory=list)
    truncated_tokens: dict[int, int] = field(default_factory=dict)
    id: str | None = None
    query_logprobs: FloatArray | None = None
    template_digest: str = ""

    def normalised(self, by: str = "sum") -> FloatArray:
        """Candidate scores float64 [M, K], nats.

        Args:
            by: "sum" (log-likelihood), "token" (divided by the candidate's tokens), or "pmi" (less its
                log-likelihood without passages; needs ``closed_book=True`` when scoring).

        Raises:
            InputError: another name, or "pmi" without them.
        """
        if by == "sum":
            return self.logprobs
        if by == "token":
            return self.logprobs / self.candidate_tokens
        if by == "pmi":
            if self.closed_book_logprobs is None:
                raise InputError("normalised: by='pmi' needs closed_book_logprobs; score with closed_book=True")
            return self.logprobs - self.closed_book_logprobs
        raise InputError(f"normalised: by must be one of {', '.join(NORMALISATIONS)}, got {by!r}")

    def probabilities(self, by: str = "sum") -> FloatArray:
        """Softmax of `normalised` over the candidates in each permutation: float64 [M, K]."""
        scores = self.normalised(by)
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        share: FloatArray = weight / weight.sum(axis=1, keepdims=True)
        return share

    def consensus(self, by: str = "sum") -> FloatArray:
        """Mean of `probabilities` over the permutations: float64 [K]."""
        mean: FloatArray = self.probabilities(by).mean(axis=0)
        return mean

    @property
    def best(self) -> str | None:
        """The candidate with the largest consensus; None when no candidates were scored."""
        return self.candidates[int(self.consensus().argmax())] if self.candidates else None

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; `from_dict` gives it back exactly."""
        out: dict[str, Any] = {"id": self.id}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                value = value.tolist()
            elif isinstance(value, (TreeStats, TokenLogprobs)):
                value = asdict(value)
            out[name] = value
        out["truncated_tokens"] = {str(k): v for k, v in self.truncated_tokens.items()}
        return out

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PermutationScores:
        """Rebuild from `to_dict`; keys that are not attributes are passed over.

        Raises:
            InputError: an attribute is missing or its shape does not fit.
        """
        known = {k: v for k, v in values.items() if k in cls.__dataclass_fields__}
        try:
            count = len(known["permutations"])
            shape = (count, len(known["candidates"]))
            arrays: dict[str, Any] = {
                "permutations": np.asarray(known["permutations"], dtype=np.int64).reshape(count, -1),
                "logprobs": np.asarray(known["logprobs"], dtype=np.float64).reshape(shape),
                "greedy": np.asarray(known["greedy"], dtype=bool).reshape(shape),
                "question_logprobs": np.asarray(known["question_logprobs"], dtype=np.float64).reshape(count),
                "candidate_tokens": np.asarray(known["candidate_tokens"], dtype=np.int64).reshape(shape[1]),
                "passages_tokens": np.asarray(known["passages_tokens"], dtype=np.int64).reshape(count),
                "stats": TreeStats(**known["stats"]),
                "truncated_tokens": {int(k): int(v) for k, v in known.get("truncated_tokens", {}).items()},
            }
            for name, length in (("passages_logprobs", count), ("closed_book_logprobs", shape[1])):
                if known.get(name) is not None:
                    arrays[name] = np.asarray(known[name], dtype=np.float64).reshape(length)
            if known.get("query_logprobs") is not None:
                arrays["query_logprobs"] = np.asarray(known["query_logprobs"], dtype=np.float64).reshape(-1)
            if known.get("token_logprobs") is not None:
                arrays["token_logprobs"] = TokenLogprobs(**known["token_logprobs"])
            if not all(isinstance(c, str) for c in known["candidates"]) or isinstance(known["candidates"], str):
                raise ValueError("candidates must be a list of texts")
            return cls(**{**known, **arrays})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"PermutationScores.from_dict: {error!r} in values with keys {sorted(values)}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write as JSON, all of it or nothing."""
        target = Path(path)
        scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            scratch.write_text(json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> PermutationScores:
        """Read what `save` wrote.

        Raises:
            InputError: not such a file.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not JSON ({error})") from error
        if not isinstance(values, dict):
            raise InputError(f"{path}: expected a JSON object, got {type(values).__name__}")
        return cls.from_dict(values)

    def __repr__(self) -> str:
        rows, length = self.permutations.shape
        head = (
            f"PermutationScores({rows} orderings ({self.design}) of {length} passages x {len(self.candidates)} "
            f"candidates, {self.stats.computed_tokens:,} of {self.stats.total_tokens:,} tokens computed)"
        )
        if not self.candidates:
            return f"{head}\n  question: mean {self.question_logprobs.mean():.2f} nats"
        width = max(len(c) for c in self.candidates[:20])
        share = self.consensus()
        lines = [
            f"  {c:<{min(width, 40)}.40}  {self.logprobs[:, k].mean():9.2f} nats mean, "
            f"{self.logprobs[:, k].min():9.2f} .. {self.logprobs[:, k].max():.2f}, share {share[k]:.2f}"
            for k, c in enumerate(self.candidates[:20])
        ]
        if len(self.candidates) > 20:
            lines.append(f"  ... {len(self.candidates) - 20} more")
        return "\n".join([head, *lines])
