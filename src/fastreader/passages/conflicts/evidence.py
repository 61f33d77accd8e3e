"""The packed passes behind `conflicts`: candidates under each passage alone, and claims replaced in their own text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastreader.core.protocol import ScoringReader
from fastreader.core.tree import TreeStats
from fastreader.data.types import Example
from fastreader.passages.conflicts.claims import proposed
from fastreader.passages.conflicts.forms import FormText, form_of, key_of
from fastreader.passages.conflicts.statements import Statements, instead
from fastreader.reader.prompts.pieces import PromptPieces, encode
from fastreader.reader.prompts.template import Template
from fastreader.scoring.known_passages import score_after

FloatArray = npt.NDArray[np.float64]
Pair = tuple[list[int], list[int]]


@dataclass(frozen=True, eq=False)
class ConflictScores:
    """Scores of K candidates and N passages in nats, with attributes as in `Conflicts`."""

    logprobs: FloatArray
    closed_book: FloatArray
    texts: FloatArray
    claims: list[int | None]
    stats: TreeStats


def propose(
    reader: ScoringReader, example: Example, template: Template, max_batch_tokens: int | None
) -> tuple[list[str], dict[str, list[str]], TreeStats]:
    """Return for each passage the span that it makes most probable as an answer.

    A span's score is ``log P(span | passage, question) - log P(span | question) / 2``: without the second term common
    words win, and with all of it rare ones.

    Returns:
        K candidates, at most one from each passage; the shorter spans that are part of one, as its aliases: "Darwin"
        of "Charles Darwin"; and the tokens of the pass.
    """
    own = [proposed(example.question, passage.text) for passage in example.passages]
    texts = list(dict.fromkeys(span for each in own for span in each))
    if not texts:
        return [], {}, TreeStats(0, 0, 0, 0)
    pieces = encode(reader.encoder, template, example.question, example.passages, texts)
    tokens = dict(zip(texts, pieces.candidates, strict=True))
    pairs: list[Pair] = [(pieces.head + pieces.tail(), tokens[text]) for text in texts]
    ends = [pieces.ends(0)] * len(pairs)
    for i, each in enumerate(own):
        context = pieces.head + pieces.body([i]) + pieces.tail()
        pairs += [(context, tokens[span]) for span in each]
        ends += [pieces.ends(pieces.body_length([i]))] * len(each)
    scores = score_after(reader, pairs, ends, max_batch_tokens=max_batch_tokens)
    values = iter(scores.logprob.tolist())
    closed = {text: next(values) for text in texts}
    found: dict[str, str] = {}
    for each in own:
        worth = {span: next(values) - closed[span] / 2 for span in each}
        if worth:
            best = max(worth, key=worth.__getitem__)
            found.setdefault(key_of(best), best)
    longer: list[str] = []
    aliases: dict[str, list[str]] = {}
    for text in sorted(found.values(), key=len, reverse=True):
        whole = next((other for other in longer if FormText(other).find(form_of(text))), None)
        if whole is None:
            longer.append(text)
        else:
            aliases.setdefault(whole, []).append(text)
    return [text for text in found.values() if text in longer], aliases, scores.stats


def undecided(said: Statements) -> list[int]:
    """Return the candidates that equally many passages state as their only one, if no other candidate has more.

    Only the texts can tell these apart: where the statements decide, replacing claims in their texts adds nothing.
    """
    full = said.stated == 1
    only = full & (full.sum(axis=1, keepdims=True) == 1)
    votes = np.where(full.any(axis=0), only.sum(axis=0), -1)
    tied = np.flatnonzero((votes == votes.max(initial=0)) & full.any(axis=0))
    return [int(k) for k in tied] if len(tied) > 1 else []


def gather(
    reader: ScoringReader,
    example: Example,
    candidates: Sequence[str],
    said: Statements,
    template: Template,
    max_batch_tokens: int | None,
) -> ConflictScores:
    """Score every candidate without passages, after each passage alone, and in the passages' text, in one packed pass.

    Texts are scored only for candidates that are `undecided`. A passage that states several candidates claims the one
    that it raises most.

    Args:
        reader, example, candidates, template, max_batch_tokens: same as `conflicts`.
        said: the statements of the passages.
    """
    passages, count = example.passages, len(candidates)
    pieces = encode(reader.encoder, template, example.question, passages, candidates)
    pairs: list[Pair] = [(pieces.head + pieces.tail(), tokens) for tokens in pieces.candidates]
    ends = [pieces.ends(0)] * count
    for i in range(len(passages)):
        context = pieces.head + pieces.body([i]) + pieces.tail()
        pairs += [(context, tokens) for tokens in pieces.candidates]
        ends += [pieces.ends(pieces.body_length([i]))] * count
    tied = undecided(said)
    start, owners = len(pairs), []
    for i, passage in enumerate(passages):
        for k in tied:
            if said.stated[i, k] == 1:
                owners.append((i, k))
                spans = said.places[i][k], said.in_title[i][k]
                variants = instead(passage, spans, [candidates[other] for other in tied])
                pairs += _rewritten(encode(reader.encoder, template, example.question, variants, []))
    ends += [()] * (
        len(pairs) - start
    )  # of a passage that was rewritten, only another claim's beginning would be known
    scores = score_after(reader, pairs, ends, max_batch_tokens=max_batch_tokens)
    matrix = scores.logprob[:start].reshape(1 + len(passages), count)
    ratios = matrix[1:] - matrix[0]
    claims: list[int | None] = []
    for stated, values in zip(said.stated == 1, ratios, strict=True):
        claims.append(int(np.where(stated, values, -np.inf).argmax()) if stated.any() else None)
    texts = np.full(ratios.shape, np.nan)
    for (i, k), values in zip(owners, scores.logprob[start:].reshape(len(owners), len(tied)), strict=True):
        if claims[i] == k:
            texts[i, tied] = values - values[tied.index(k)]
    return ConflictScores(matrix[1:], matrix[0], texts, claims, scores.stats)


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
