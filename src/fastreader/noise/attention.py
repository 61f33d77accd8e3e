"""Where the tokens of an answer look: attention to each passage by layer, and its entropy over the prompt.

Cuconasu et al. 2024 show the attention of one answer to its documents (figure 3) and suggest that random passages
raise the entropy of attention. Both are computed inside the packed pass, for the rows of the answers' tokens alone:
softmax(q K) over the tokens before them, a layer at a time, so that nothing of T x T is ever held.

With a[h, i, j] the attention of answer token i to token j in head h of one layer:

- attention to a passage: the mean of a[h, i, j] over heads h, answer tokens i and the passage's tokens j;
- entropy: over prompt tokens j, of p[h, i, j] = a[h, i, j] / sum over prompt tokens of a[h, i, :], the mean over
  heads and answer tokens of -sum_j p log p, in nats. (The paper gives no formula; over documents it would be 0 with
  the gold passage alone, so it is taken over tokens.) It is log n at most with n tokens, and so grows with the prompt
  by itself: `normalised_entropy` divides by that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastreader.errors import InputError
from fastreader.noise.layouts import Layout, layout
from fastreader.noise.materials import Materials
from fastreader.noise.prompt import NoiseTemplate

if TYPE_CHECKING:
    from fastreader.reader.reader import Reader

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AnswerAttention:
    """Attention of one answer's tokens.

    Attributes:
        attention: float64 [layers, passages], mean over heads, answer tokens and the passage's tokens.
        entropy: float64 [layers], nats; not a number in a layer whose window holds nothing of the prompt.
        prompt_tokens: of the prompt.
        answer_tokens: of the answer.
        kinds: of the passages, in reading order.
    """

    attention: FloatArray
    entropy: FloatArray
    prompt_tokens: int
    answer_tokens: int
    kinds: tuple[str, ...]

    @property
    def share(self) -> FloatArray:
        """`attention`, normalised over the passages within each layer: the heat map of the paper's figure 3.

        Not a number in a layer whose window holds no passage.
        """
        total = self.attention.sum(axis=1, keepdims=True)
        share: FloatArray = np.divide(self.attention, total, out=np.full_like(self.attention, np.nan), where=total > 0)
        return share

    @property
    def normalised_entropy(self) -> FloatArray:
        """`entropy` over its largest value, log(prompt_tokens): float64 [layers], 0..1."""
        normalised: FloatArray = self.entropy / np.log(self.prompt_tokens)
        return normalised

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values; what is not a number becomes null."""
        return {
            "attention": self.attention.tolist(),
            "entropy": [None if np.isnan(value) else value for value in self.entropy.tolist()],
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
            "kinds": list(self.kinds),
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> AnswerAttention:
        """What `to_dict` gave.

        Raises:
            InputError: a key is missing.
        """
        try:
            return cls(
                np.array(row["attention"], dtype=np.float64).reshape(len(row["entropy"]), len(row["kinds"])),
                np.array([np.nan if value is None else value for value in row["entropy"]], dtype=np.float64),
                row["prompt_tokens"],
                row["answer_tokens"],
                tuple(row["kinds"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"AnswerAttention: expected what to_dict gave ({error!r})") from error


def answer_attention(
    reader: Reader,
    materials: Materials,
    answers: Mapping[str, str],
    *,
    template: NoiseTemplate | None = None,
    max_batch_tokens: int | None = None,
) -> dict[str, AnswerAttention]:
    """Where the tokens of each layout's answer look; all layouts in one packed pass.

    Args:
        reader: who reads.
        materials: one question.
        answers: for each layout the answer as the reader wrote it, the white space before it included.
        template: of the prompts; the one they were asked with.
        max_batch_tokens: tokens computed in one pass at most.

    Raises:
        MissingPassages: the question lacks the passages of a layout.
        InputError: an unknown layout, one without passages, or an answer without a token.
        ContextOverflowError: a prompt is longer than the model's context.
    """
    laid = {name: (layout(materials, name), answer) for name, answer in answers.items()}
    return layout_attention(reader, materials.question, laid, template=template, max_batch_tokens=max_batch_tokens)


def layout_attention(
    reader: Reader,
    question: str,
    answers: Mapping[str, tuple[Layout, str]],
    *,
    template: NoiseTemplate | None = None,
    max_batch_tokens: int | None = None,
) -> dict[str, AnswerAttention]:
    """As `answer_attention`, for layouts that are laid out already, under any names.

    Args:
        reader: who reads.
        question: the question.
        answers: by name, a layout and its answer as the reader wrote it.
        template, max_batch_tokens: as for `answer_attention`.

    Raises:
        InputError: a layout without passages, or an answer without a token.
        ContextOverflowError: a prompt is longer than the model's context.
    """
    from fastreader.models.attention_capture import CapturedAttention, CaptureRequest, capture_attention

    template = template or NoiseTemplate()
    requests: list[CaptureRequest] = []
    kinds: list[tuple[str, ...]] = []
    for name, (laid, answer) in answers.items():
        if not laid.passages:
            raise InputError(f"answer_attention: the layout {name!r} has no passages to look at")
        pieces = template.pieces(question, laid.passages)
        prompt = reader.prompt(pieces, **template.options())
        spans = _spans(reader, template, pieces, len(laid.passages))
        tokens = reader.encoder.piece(answer) if answer.strip() else []
        if not tokens:
            raise InputError(f"answer_attention: the answer of {name!r} has no token, got {answer!r}")
        requests.append(CaptureRequest(prompt, tokens, spans))
        kinds.append(tuple(str(kind) for kind in laid.kinds))
    captured: dict[int, CapturedAttention] = {}
    for tree in reader.plan([([*r.prompt, *r.answer], []) for r in requests], max_batch_tokens) if requests else []:
        members = tree.sequence_ids.tolist()
        with reader.engine.lock:
            captured |= zip(
                members, capture_attention(reader.engine.model, tree, [requests[i] for i in members]), strict=True
            )
    return {
        name: AnswerAttention(captured[i].attention, captured[i].entropy, len(r.prompt), len(r.answer), kinds[i])
        for i, (name, r) in enumerate(zip(answers, requests, strict=True))
    }


def _spans(reader: Reader, template: NoiseTemplate, pieces: Sequence[str], documents: int) -> list[tuple[int, int]]:
    """Where each document lies in the prompt of `pieces`, in tokens."""
    options = {name: value for name, value in template.options().items() if name != "lead"}
    ends = [len(reader.prefix(pieces[:2], **options))]
    for piece in pieces[2 : 2 + documents]:
        ends.append(ends[-1] + len(reader.encoder.piece(piece)))
    return list(itertools.pairwise(ends))


def mean_share(attentions: Iterable[AnswerAttention]) -> FloatArray:
    """Mean of `share` over answers under one layout: float64 [layers, passages].

    A layer counts in the answers where it sees a passage; it is not a number where it does in none.

    Raises:
        InputError: none, or other numbers of passages or layers among them.
    """
    shares = [a.share for a in attentions]
    if not shares or len({s.shape for s in shares}) > 1:
        raise InputError(f"mean_share: expected answers under one layout, got shapes {[s.shape for s in shares]}")
    stack = np.stack(shares)
    seen = ~np.isnan(stack)
    counts = seen.sum(axis=0)
    total = np.where(seen, stack, 0.0).sum(axis=0)
    mean: FloatArray = np.divide(total, counts, out=np.full(total.shape, np.nan), where=counts > 0)
    return mean


def mean_entropies(
    attentions: Sequence[Mapping[str, AnswerAttention]], *, normalised: bool = False
) -> dict[str, list[float]]:
    """For each layout that every question has, each question's entropy, averaged over layers, in nats.

    Args:
        attentions: for each question `answer_attention`'s result.
        normalised: over its largest value, log of the prompt's tokens.

    Returns:
        Lists in the order of the questions, to be compared in pairs (`statistics.paired_bootstrap`).
    """
    shared = [name for name in (attentions[0] if attentions else {}) if all(name in row for row in attentions)]
    return {
        name: [
            float(np.nanmean(row[name].normalised_entropy if normalised else row[name].entropy)) for row in attentions
        ]
        for name in shared
    }
