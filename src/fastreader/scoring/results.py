"""PermutationScores: the log-likelihoods of one question under many orderings of its passages."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked_methods
from fastreader.core.checks import given
from fastreader.core.drawing import new_figure
from fastreader.core.frames import data_frame
from fastreader.core.tree import TreeStats
from fastreader.core.words import counted
from fastreader.data.record import SavedRecord
from fastreader.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FloatArray = npt.NDArray[np.float64]
NORMALISATIONS = ("sum", "token", "pmi")
_FRAME = ("id", "ordering", "permutation", "candidate", "logprob", "probability", "question_logprob")
_COLUMNS = ("candidate", "log P", "range", "consensus")
_SHOWN, _WIDTH = 20, 40  # candidates, and characters of each, in a repr


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-likelihood of every scored token, nats.

    Attributes:
        question: [M] lists, one value a question token.
        candidates: [M][K] lists, one value a token of the candidate and its end.
        passages: [M] lists; None if the passages were not scored.
    """

    question: list[list[float]]
    candidates: list[list[list[float]]]
    passages: list[list[float]] | None = None


@checked_methods
@dataclass(frozen=True, eq=False)
class PermutationScores(SavedRecord):
    """Log-likelihoods under M orderings of L passages and K candidates, in nats.

    Attributes:
        question: the question's text.
        candidates: K texts.
        permutations: int64 [M, L], row m lists passage indices in reading order.
        logprobs: float64 [M, K], log P(candidate and its end | passages in order m, question).
        question_logprobs: float64 [M], log P(question | passages in order m); if the template puts the question
            first, the passages do not condition it and all rows are equal.
        candidate_tokens: int64 [K], tokens scored for each candidate, its end included.
        question_tokens: tokens of the question.
        passages_tokens: int64 [M], tokens of the passages as read in order m.
        greedy: bool [M, K], whether greedy decoding would have generated the candidate.
        passages_logprobs: float64 [M], log P(passages in order m | header); None unless requested.
        closed_book_logprobs: float64 [K], log P(candidate | question) without passages; None unless requested.
        query_logprobs: float64 [N], log P(question | passage p alone), its query likelihood; None unless requested.
        token_logprobs: every token's value; None unless requested.
        design: name of the permutations.
        dropped_passages: indices dropped because the prompt was too long, by on_overflow="drop_passages".
        truncated_tokens: number of tokens cut off each passage, by on_overflow="truncate"; whole passages are absent.
        stats: tokens in total and computed; for an example packed with others, as if it had run alone and
            without a session.
        seconds: wall clock of the passes, shared by the examples that were packed together.
        reader: name, device, dtype and precision of the reader.
        id: the example's identifier.
        template_digest: digest of the prompt's texts, `Template.digest`.
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

    _indent = None
    _shapes: ClassVar = {
        "permutations": "M L",
        "candidates": "K",
        "logprobs": "M K",
        "question_logprobs": "M",
        "candidate_tokens": "K",
        "passages_tokens": "M",
        "greedy": "M K",
        "passages_logprobs": "M",
        "closed_book_logprobs": "K",
        "query_logprobs": "N",
    }

    def normalised(self, by: str = "sum") -> FloatArray:
        """Return candidate scores, float64 [M, K], nats.

        Args:
            by: "sum" (log-likelihood), "token" (divided by the candidate's tokens), or "pmi" (less its
                log-likelihood without passages; needs ``closed_book=True`` when scoring).

        Raises:
            InputError: if `by` is unknown, or "pmi" without these scores.
        """
        if by == "sum":
            return self.logprobs
        if by == "token":
            return self.logprobs / self.candidate_tokens
        if by == "pmi":
            missing = "normalised: by='pmi' needs closed_book_logprobs; score with closed_book=True"
            return self.logprobs - given(self.closed_book_logprobs, missing)
        raise InputError(f"normalised: by must be one of {', '.join(NORMALISATIONS)}, got {by!r}")

    def probabilities(self, by: str = "sum") -> FloatArray:
        """Return the softmax of `normalised` over the candidates in each permutation: float64 [M, K]."""
        scores = self.normalised(by)
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        share: FloatArray = weight / weight.sum(axis=1, keepdims=True)
        return share

    def consensus(self, by: str = "sum") -> FloatArray:
        """Return the mean of `probabilities` over the permutations: float64 [K]."""
        mean: FloatArray = self.probabilities(by).mean(axis=0)
        return mean

    @property
    def best(self) -> str | None:
        """The candidate with the largest consensus, or None if no candidates were scored."""
        return self.candidates[int(self.consensus().argmax())] if self.candidates else None

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes as JSON values, the id first, for `from_dict` to rebuild exactly."""
        return {"id": self.id, **super().to_dict()}

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each ordering and candidate.

        Its columns: id, ordering (index of the row of `permutations`), permutation (tuple of passage indices),
        candidate, logprob (nats), probability (share among the candidates of the ordering) and question_logprob
        (nats). Without candidates it has a row for each ordering, and candidate, logprob and probability are missing.

        Raises:
            MissingExtraError: if pandas is not installed (the extra "pandas").
        """
        share = self.probabilities() if self.candidates else None
        rows = [
            {
                "id": self.id,
                "ordering": m,
                "permutation": tuple(order),
                "candidate": candidate,
                "logprob": None if candidate is None else float(self.logprobs[m, k]),
                "probability": None if share is None else float(share[m, k]),
                "question_logprob": float(self.question_logprobs[m]),
            }
            for m, order in enumerate(self.permutations.tolist())
            for k, candidate in enumerate(self.candidates or [None])
        ]
        return data_frame(rows, _FRAME)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Figure:
        """Draw each candidate's log-likelihood (or the question's) over the orderings.

        Args:
            path: also write the figure to this file.

        Raises:
            MissingExtraError: if matplotlib is not installed (the extra "plot").
        """
        figure = new_figure(max(4.0, 0.25 * len(self.permutations) + 2.5), 3.0)
        axes = figure.subplots()
        places = np.arange(len(self.permutations))
        if self.candidates:
            for k, candidate in enumerate(self.candidates):
                axes.plot(places, self.logprobs[:, k], "o-", markersize=3, label=candidate[:40])
            axes.legend(fontsize=7)
            axes.set_ylabel("log P(candidate), nats")
        else:
            axes.plot(places, self.question_logprobs, "o-", markersize=3)
            axes.set_ylabel("log P(question), nats")
        axes.set_xlabel(f"ordering ({self.design})")
        axes.set_title(self.question[:80], fontsize=9)
        if path is not None:
            figure.savefig(path)
        return figure

    def _repr_html_(self) -> str:
        """Return a table for notebooks: candidates with the mean and range of their log-likelihoods."""
        head, *lines = self._summary()
        rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
        names = "".join(f"<th>{name}</th>" for name in _COLUMNS)
        return f"<p><b>{escape(self.question)}</b><br>{escape(head[0])}</p><table><tr>{names}</tr>{rows}</table>"

    def __repr__(self) -> str:
        (head,), *lines = self._summary()
        width = min(max((len(line[0]) for line in lines), default=0), _WIDTH)
        return "\n".join(
            [head, *(f"  {line[0]:<{width}.{width}}  " + ", ".join(filter(None, line[1:])) for line in lines)]
        )

    def _summary(self) -> list[tuple[str, ...]]:
        """Return one line about the call, then a row of `_COLUMNS` for each candidate (or one for the question)."""
        count, length = self.permutations.shape
        head = (
            f"PermutationScores({counted(count, 'ordering')} ({self.design}) of {counted(length, 'passage')} x "
            f"{counted(len(self.candidates), 'candidate')}, {self.stats.computed_tokens:,} of "
            f"{self.stats.total_tokens:,} tokens computed)"
        )
        if not self.candidates:
            return [(head,), ("question", f"mean {self.question_logprobs.mean():.2f} nats", "", "")]
        share = self.consensus()
        rows = [
            (
                candidate,
                f"mean {values.mean():.2f} nats",
                f"{values.min():.2f} to {values.max():.2f}",
                f"share {share[k]:.2f}",
            )
            for k, (candidate, values) in enumerate(zip(self.candidates, self.logprobs.T, strict=True))
        ]
        more = [(f"... {len(rows) - _SHOWN} more", "", "", "")] if len(rows) > _SHOWN else []
        return [(head,), *rows[:_SHOWN], *more]
