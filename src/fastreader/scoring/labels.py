"""Log-probabilities of the same labels after many prompts, and `classify`, which chooses among them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.checks import check_list, check_texts, expect, located
from fastreader.core.frames import data_frame, listing
from fastreader.core.protocol import ReaderProtocol, ScoringReader, TextOrTokens
from fastreader.core.tree import TokenPairs, TreeStats

FloatArray = npt.NDArray[np.float64]
Prompt = str | Sequence[str] | Sequence[int]
_FRAME = ("index", "label", "probability", "logprob")


def label_logprobs(
    reader: ReaderProtocol,
    contexts: Sequence[TextOrTokens],
    labels: Sequence[TextOrTokens],
    max_batch_tokens: int | None = None,
) -> tuple[FloatArray, TreeStats]:
    """Score every label after every context in one call.

    Args:
        reader: scores them.
        contexts: C prompts as `reader.prompt` returns them.
        labels: L answers as `reader.continuation` returns them.
        max_batch_tokens: at most this many tokens are computed in one pass.

    Returns:
        Sums over each label's tokens, float64 [C, L] in nats, and the tokens read and computed.
    """
    found = reader.loglikelihood(list(itertools.product(contexts, labels)), max_batch_tokens=max_batch_tokens)
    values = np.array([result.logprob for result in found], dtype=np.float64)
    return values.reshape(len(contexts), len(labels)), found.stats


def tokens_of(reader: ScoringReader, pairs: TokenPairs, max_batch_tokens: int | None = None) -> TreeStats:
    """Return the tokens that a call with these pairs alone would read and compute."""
    first, *others = [tree.stats for tree in reader.plan(pairs, max_batch_tokens)]
    return sum(others, first)


@dataclass(frozen=True, eq=False)
class Classified:
    """The labels of P prompts.

    Attributes:
        labels: the L labels.
        logprobs: float64 [P, L], log P(label | prompt), summed over the label's tokens, nats.
        prior: float64 [L], log P(label | content-free prompt), mean over such prompts, nats; None without them.
        stats: tokens read and computed.
    """

    labels: list[str]
    logprobs: FloatArray
    prior: FloatArray | None
    stats: TreeStats

    def __len__(self) -> int:
        return len(self.logprobs)

    @property
    def probabilities(self) -> FloatArray:
        """P(label | prompt and one of the labels), float64 [P, L], divided by the prior if there is one."""
        scores = self.logprobs if self.prior is None else self.logprobs - self.prior
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        shares: FloatArray = weights / weights.sum(axis=1, keepdims=True)
        return shares

    @property
    def best(self) -> list[str]:
        """The most likely label of each prompt, the first of a tie."""
        return [self.labels[i] for i in self.probabilities.argmax(axis=1)] if len(self) else []

    def __repr__(self) -> str:
        head = [f"Classified: {len(self)} prompts, {len(self.labels)} labels", "probability  label"]
        shares = self.probabilities
        rows = (f"{share.max():11.3f}  {label}" for share, label in zip(shares, self.best, strict=True))
        return listing(head, rows, len(self), "")

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a row for each prompt and label.

        Raises:
            MissingExtraError: if pandas is not installed (the extra "pandas").
        """
        shares = self.probabilities
        rows = [
            {"index": i, "label": label, "probability": shares[i, j], "logprob": self.logprobs[i, j]}
            for i in range(len(self))
            for j, label in enumerate(self.labels)
        ]
        return data_frame(rows, _FRAME)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "labels": self.labels,
            "best": self.best,
            "logprobs": self.logprobs.tolist(),
            "probabilities": self.probabilities.tolist(),
            "prior": None if self.prior is None else self.prior.tolist(),
            "total_tokens": self.stats.total_tokens,
            "computed_tokens": self.stats.computed_tokens,
        }


@checked
def classify(
    reader: ReaderProtocol,
    prompts: Iterable[Prompt],
    labels: Sequence[str],
    *,
    end: bool = False,
    neutral: Iterable[Prompt] = (),
    system: str | None = None,
    chat: bool | None = None,
    max_batch_tokens: int | None = None,
) -> Classified:
    """Choose among labels by their log-probability as the reader's answer to each prompt.

    All prompts and labels are scored together, and what prompts have in common at their beginning is computed once: put
    the instruction and the examples first.

    Args:
        reader: a reader, a session, a pool or a server's reader.
        prompts: each a text, a list of texts that are encoded one by one, or token ids.
        labels: at least two answers, distinct, of any length. They are compared by their whole probability.
        end: also score that the answer ends, so that "yes" is not favoured over the longer "yes, partly".
        neutral: prompts without content ("N/A" in the place of the text). The mean log-probability of a label after
            them is subtracted (contextual calibration, Zhao et al. 2021, here in logarithms).
        system, chat: see `Reader.prompt`; they do not concern token ids.
        max_batch_tokens: at most this many tokens are computed in one pass.

    Raises:
        InputError: if there are fewer than two labels, two are equal, or a prompt has no text.
        ContextOverflowError: if a prompt with a label is longer than the model's context.
    """
    check_texts("labels", labels)
    stripped = [label.strip() for label in labels]
    several = len(stripped) > 1 and len(set(stripped)) == len(stripped)
    expect(several, "labels", "at least two different texts", list(labels))
    chat_arguments: Any = {"system": system, "chat": chat}
    contexts = []
    for name, given in (("prompts", prompts), ("neutral", neutral)):
        check_list(name, given)
        contexts.append([_context(reader, f"{name}[{i}]", p, chat_arguments) for i, p in enumerate(given)])
    asked, blank = contexts
    answers = [reader.continuation(label, end=end, **chat_arguments) for label in labels]
    if not asked:
        return Classified(list(labels), np.zeros((0, len(labels))), None, TreeStats(0, 0, 0, 0))
    values, stats = label_logprobs(reader, asked + blank, answers, max_batch_tokens)
    prior = values[len(asked) :].mean(axis=0) if blank else None
    return Classified(list(labels), values[: len(asked)], prior, stats)


def _context(reader: ReaderProtocol, name: str, prompt: Prompt, chat: Any) -> TextOrTokens:
    pieces: list[Any] = [prompt] if isinstance(prompt, str) else list(prompt)
    if pieces and all(isinstance(piece, (int, np.integer)) for piece in pieces):
        return [int(token) for token in pieces]
    with located(name):
        texts = bool(pieces) and all(isinstance(piece, str) for piece in pieces) and any(pieces)
        expect(texts, "prompt", "a text, a list of texts, or token ids", prompt)
        return reader.prompt(pieces, **chat)
