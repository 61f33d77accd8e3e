"""The packed passes behind `conflicts`: candidates under each passage alone, and claims replaced in their own text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.core.protocol import ScoringReader
from fastreader.core.tree import TreeStats
from fastreader.data.types import Example
from fastreader.passages.conflicts.claims import instead, spans, stated
from fastreader.reader.prompts.pieces import PromptPieces, encode
from fastreader.reader.prompts.template import Template
from fastreader.statistics.measures.answers import normalise

FloatArray = npt.NDArray[np.float64]
Pair = tuple[list[int], list[int]]
PER_PASSAGE = 2  # candidates proposed from each passage


@dataclass(frozen=True, eq=False)
class Evidence:
    """Scores of K candidates and N passages in nats, with attributes as in `Conflicts`."""

    logprobs: FloatArray
    closed_book: FloatArray
    texts: FloatArray
    claims: list[int | None]
    stats: TreeStats


def propose(
    reader: ScoringReader, example: Example, template: Template, max_batch_tokens: int | None
) -> tuple[list[str], list[int | None], TreeStats]:
    """Return the spans that each passage alone makes most probable as an answer.

    A span's score is ``log P(span | passage, question) - log P(span | question) / 2``: without the second term common
    words win, and with all of it rare ones.

    Returns:
        K candidates, at most `PER_PASSAGE` from each passage; for each passage the index of its best one, None if it
        has no span; and the tokens of the pass.
    """
    own = [spans(passage.text) for passage in example.passages]
    texts = list(dict.fromkeys(span for each in own for span in each))
    if not texts:
        return [], [None] * len(own), TreeStats(0, 0, 0, 0)
    pieces = encode(reader.encoder, template, example.question, example.passages, texts)
    tokens = dict(zip(texts, pieces.candidates, strict=True))
    pairs: list[Pair] = [(pieces.head + pieces.tail(), tokens[text]) for text in texts]
    for i, each in enumerate(own):
        context = pieces.head + pieces.body([i]) + pieces.tail()
        pairs += [(context, tokens[span]) for span in each]
    scores = reader.score(pairs, max_batch_tokens=max_batch_tokens)
    values = iter(scores.logprob.tolist())
    closed = {text: next(values) for text in texts}
    found: dict[str, str] = {}
    tops: list[int | None] = []
    for each in own:
        best = sorted(each, key={span: closed[span] / 2 - next(values) for span in each}.__getitem__)[:PER_PASSAGE]
        for span in best:
            found.setdefault(normalise(span), span)
        tops.append(list(found).index(normalise(best[0])) if best else None)
    return list(found.values()), tops, scores.stats


def gather(
    reader: ScoringReader,
    example: Example,
    candidates: Sequence[str],
    tops: Sequence[int | None] | None,
    template: Template,
    max_batch_tokens: int | None,
) -> Evidence:
    """Score every candidate without passages, after each passage alone, and in the passages' text, in one packed pass.

    Args:
        reader, example, candidates, template, max_batch_tokens: same as `conflicts`.
        tops: for each passage the candidate that it claims, to be replaced by the other passages' claims. None
            replaces every candidate that a passage states by every other, and takes as its claim the one that the
            passage raises most.
    """
    passages, count = example.passages, len(candidates)
    pieces = encode(reader.encoder, template, example.question, passages, candidates)
    pairs: list[Pair] = [(pieces.head + pieces.tail(), tokens) for tokens in pieces.candidates]
    for i in range(len(passages)):
        context = pieces.head + pieces.body([i]) + pieces.tail()
        pairs += [(context, tokens) for tokens in pieces.candidates]
    others = list(range(count)) if tops is None else sorted({top for top in tops if top is not None})
    start, owners = len(pairs), []
    for i, passage in enumerate(passages):
        for k in range(count) if tops is None else [tops[i]]:
            if k is not None and stated(candidates[k], passage):
                owners.append((i, k))
                variants = instead(passage, candidates[k], [candidates[other] for other in others])
                pairs += _rewritten(encode(reader.encoder, template, example.question, variants, []))
    scores = reader.score(pairs, max_batch_tokens=max_batch_tokens)
    matrix = scores.logprob[:start].reshape(1 + len(passages), count)
    ratios = matrix[1:] - matrix[0]
    texts = np.full(ratios.shape, np.nan)
    claims: list[int | None] = [None] * len(passages)
    for (i, k), values in zip(owners, scores.logprob[start:].reshape(len(owners), len(others)), strict=True):
        claim = claims[i]
        if claim is None or ratios[i, k] > ratios[i, claim]:
            claims[i] = k
            texts[i, others] = values - values[others.index(k)]
    return Evidence(matrix[1:], matrix[0], texts, claims, scores.stats)


def _rewritten(pieces: PromptPieces) -> list[Pair]:
    """Return each variant of a passage, scored from the first token in which any two variants differ."""
    bodies = [pieces.passages[i][0] for i in range(len(pieces.passages))]
    shared = 0
    if len(bodies) > 1:
        while all(shared < len(body) for body in bodies) and len({body[shared] for body in bodies}) == 1:
            shared += 1
    # A variant that is the beginning of another one still has a token to score: the separator, or the last shared one.
    shared = min(shared, *(len(body) - 1 for body in bodies))
    return [(pieces.head + pieces.opening + body[:shared], body[shared:]) for body in bodies]
