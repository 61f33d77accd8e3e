"""Attention of an answer's tokens: to each passage by layer, and its entropy over the prompt.

Cuconasu et al. 2024 show the attention of one answer to its documents (figure 3) and suggest that random passages
raise the entropy of attention. Both are computed inside the packed pass, only for the rows of the answers' tokens:
softmax(q K) over the preceding tokens, one layer at a time, so that no T x T matrix is ever held.

With a[h, i, j] the attention of answer token i to token j in head h of one layer:

- attention to a passage: the mean of a[h, i, j] over heads h, answer tokens i and the passage's tokens j;
- entropy: with p[h, i, j] = a[h, i, j] / sum over prompt tokens of a[h, i, :] for prompt tokens j, the mean over
  heads and answer tokens of -sum_j p log p, in nats. (The paper gives no formula. Entropy over documents would be 0
  with only the gold passage, so we take it over tokens.) It is at most log n for n tokens, so a longer prompt alone
  raises it: `normalised_entropy` divides by log n.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import expect
from fastreader.data.record import SavedRecord
from fastreader.noise.layouts import Layout, layout
from fastreader.noise.materials import Materials
from fastreader.noise.prompt import NoiseTemplate

if TYPE_CHECKING:
    from fastreader.reader.reader import Reader

FloatArray = npt.NDArray[np.float64]


@checked_methods
@dataclass(frozen=True, eq=False)
class AnswerAttention(SavedRecord):
    """Attention of one answer's tokens.

    Attributes:
        attention: float64 [layers, passages], mean over heads, answer tokens and the passage's tokens.
        entropy: float64 [layers], nats; NaN in a layer whose window holds no token of the prompt.
        prompt_tokens: number of tokens of the prompt.
        answer_tokens: number of tokens of the answer.
        kinds: kinds of the passages, in reading order.
    """

    attention: FloatArray
    entropy: FloatArray
    prompt_tokens: int
    answer_tokens: int
    kinds: tuple[str, ...]

    _nulls: ClassVar = {"entropy": np.nan}
    _shapes: ClassVar = {"entropy": "layers", "kinds": "passages", "attention": "layers passages"}

    @property
    def share(self) -> FloatArray:
        """`attention`, normalised over the passages within each layer (the heat map of the paper's figure 3).

        NaN in a layer whose window holds no passage.
        """
        total = self.attention.sum(axis=1, keepdims=True)
        share: FloatArray = np.divide(self.attention, total, out=np.full_like(self.attention, np.nan), where=total > 0)
        return share

    @property
    def normalised_entropy(self) -> FloatArray:
        """`entropy` divided by its maximum, log(prompt_tokens): float64 [layers], 0..1."""
        normalised: FloatArray = self.entropy / np.log(self.prompt_tokens)
        return normalised


@checked
def answer_attention(
    reader: Reader,
    materials: Materials,
    answers: Mapping[str, str],
    *,
    template: NoiseTemplate | None = None,
    max_batch_tokens: int | None = None,
) -> dict[str, AnswerAttention]:
    """Compute the attention of each layout's answer, all layouts in one packed pass.

    Args:
        reader: the reader.
        materials: one question with its passages.
        answers: for each layout the answer as the reader wrote it, including the white space before it.
        template: the prompt's texts, the same as when the answers were written.
        max_batch_tokens: maximum number of tokens computed in one pass; None chooses it from free memory.

    Raises:
        MissingPassages: if the question lacks the passages of a layout.
        InputError: if a layout is unknown or has no passages, or an answer has no token.
        ContextOverflowError: if a prompt is longer than the model's context.
    """
    found = {name: (layout(materials, name), answer) for name, answer in answers.items()}
    return layout_attention(reader, materials.question, found, template=template, max_batch_tokens=max_batch_tokens)


def layout_attention(
    reader: Reader,
    question: str,
    answers: Mapping[str, tuple[Layout, str]],
    *,
    template: NoiseTemplate | None = None,
    max_batch_tokens: int | None = None,
) -> dict[str, AnswerAttention]:
    """Compute the attention of answers as `answer_attention`, from layouts with their passages.

    Args:
        reader: the reader.
        question: text of the question.
        answers: by any name, a layout and its answer as the reader generated it.
        template, max_batch_tokens: same as `answer_attention`.

    Raises:
        InputError: if a layout has no passages, or an answer has no token.
        ContextOverflowError: if a prompt is longer than the model's context.
    """
    from fastreader.models.attention_capture import CapturedAttention, CaptureRequest, capture_attention

    template = template or NoiseTemplate()
    requests: list[CaptureRequest] = []
    kinds: list[tuple[str, ...]] = []
    for name, (chosen, answer) in answers.items():
        expect(bool(chosen.passages), f"layout {name!r}", "at least one passage", chosen.passages)
        pieces = template.pieces(question, chosen.passages)
        prompt = reader.prompt(pieces, **template.options())
        spans = _spans(reader, template, pieces, len(chosen.passages))
        tokens = reader.encoder.piece(answer) if answer.strip() else []
        expect(bool(tokens), f"answer of {name!r}", "at least one token", answer)
        requests.append(CaptureRequest(prompt, tokens, spans))
        kinds.append(tuple(str(kind) for kind in chosen.kinds))
    captured: dict[int, CapturedAttention] = {}
    for tree in reader.plan([([*r.prompt, *r.answer], []) for r in requests], max_batch_tokens) if requests else []:
        members = tree.sequence_ids.tolist()
        with reader.locked_model() as model:
            found = capture_attention(model, tree, [requests[i] for i in members])
        captured |= zip(members, found, strict=True)
    return {
        name: AnswerAttention(captured[i].attention, captured[i].entropy, len(r.prompt), len(r.answer), kinds[i])
        for i, (name, r) in enumerate(zip(answers, requests, strict=True))
    }


def _spans(reader: Reader, template: NoiseTemplate, pieces: Sequence[str], documents: int) -> list[tuple[int, int]]:
    """Return start and end of each document in the prompt of `pieces`, in tokens."""
    options = {name: value for name, value in template.options().items() if name != "lead"}
    ends = [len(reader.prefix(pieces[:2], **options))]
    for piece in pieces[2 : 2 + documents]:
        ends.append(ends[-1] + len(reader.encoder.piece(piece)))
    return list(itertools.pairwise(ends))


@checked
def mean_share(attentions: Iterable[AnswerAttention]) -> FloatArray:
    """Return the mean of `share` over answers under one layout: float64 [layers, passages].

    A layer is averaged over the answers in which it sees a passage; it is NaN if there is no such answer.

    Raises:
        InputError: if there are no answers, or they differ in the number of passages or layers.
    """
    shares = [a.share for a in attentions]
    shapes = [share.shape for share in shares]
    expect(len(set(shapes)) == 1, "mean_share: attentions", "answers of one shape [layers, passages]", shapes)
    stack = np.stack(shares)
    seen = ~np.isnan(stack)
    counts = seen.sum(axis=0)
    total = np.where(seen, stack, 0.0).sum(axis=0)
    mean: FloatArray = np.divide(total, counts, out=np.full(total.shape, np.nan), where=counts > 0)
    return mean


@checked
def mean_entropies(
    attentions: Sequence[Mapping[str, AnswerAttention]], *, normalised: bool = False
) -> dict[str, list[float]]:
    """Return the entropy of each question, averaged over layers, for each layout that all questions have.

    Args:
        attentions: for each question the result of `answer_attention`.
        normalised: return `normalised_entropy` instead of `entropy` (nats).

    Returns:
        By layout a list in the order of the questions, for paired comparisons (`statistics.paired_bootstrap`).
    """
    shared = [name for name in (attentions[0] if attentions else {}) if all(name in row for row in attentions)]
    return {
        name: [
            float(np.nanmean(row[name].normalised_entropy if normalised else row[name].entropy)) for row in attentions
        ]
        for name in shared
    }
