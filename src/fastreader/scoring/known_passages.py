"""Scoring with a cache of passages, if the reader has one, and reading passages into it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.core.progress import track
from fastreader.core.protocol import ScoringReader, SequenceScores
from fastreader.core.tree import PrefixTree, TokenPairs, TreeStats
from fastreader.data.documents import as_passage
from fastreader.reader.prompts.pieces import encode
from fastreader.reader.prompts.template import as_template

if TYPE_CHECKING:
    from fastreader.models.passage_cache.cache import PassageCache
    from fastreader.reader.prompts.template import Template
    from fastreader.reader.reader import Reader

AnyReader = TypeVar("AnyReader")


def score_after(
    reader: ScoringReader, sequences: TokenPairs, ends: Sequence[Sequence[int]], **options: Any
) -> SequenceScores:
    """Score pairs by a reader, which takes the tokens before `ends` from its cache of passages if it has one.

    Args:
        reader: scores them.
        sequences: (context, continuation) pairs of token ids.
        ends: see `PassageReader.score`.
        **options: of `ScoringReader.score`.
    """
    if getattr(reader, "passage_cache", None) is not None:
        options["ends"] = ends
    return reader.score(sequences, **options)


def cost_after(
    reader: ScoringReader, sequences: TokenPairs, ends: Sequence[Sequence[int]], trees: Sequence[PrefixTree]
) -> TreeStats:
    """Return the token counts of passes that are not run, of which a reader's cache of passages may have a part.

    Args:
        reader, sequences, ends: see `score_after`.
        trees: what the reader's `plan` returned for these sequences.
    """
    owner: Any = reader
    cached = getattr(reader, "passage_cache", None) is not None
    first, *others = owner.cost(sequences, ends, trees) if cached else [tree.stats for tree in trees]
    total: TreeStats = sum(others, first)
    return total


def with_cache(reader: AnyReader, cache: PassageCache | None) -> AnyReader:
    """Return a reader with a cache of passages, or the reader itself without one.

    Raises:
        InputError: if there is a cache, and the model is not in this process, or the reader is a session.
    """
    if cache is None:
        return reader
    add: Any = getattr(reader, "with_cache", None)
    expect(add is not None, "cache", f"None for a {type(reader).__name__}, or a Reader to compute with it", cache)
    found: AnyReader = add(cache)
    return found


@checked
def cache_passages(
    reader: Reader,
    passages: Iterable[Any],
    cache: PassageCache,
    *,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
    progress: bool | None = None,
) -> int:
    """Read passages into a cache, before any question asks about them::

        cache = fr.PassageCache(folder="passages")
        fr.cache_passages(reader, fr.data.iter_passages("corpus.jsonl"), cache)

    Passages that the cache has are not read again, so that a run that was stopped continues where it ended.

    Args:
        reader: reads them.
        passages: what `rerank` takes; a generator is read as its passages come.
        cache: keeps them, with a folder all that its limit allows.
        template: the prompt's texts, of which all before the question matter.
        max_batch_tokens: at most this many tokens are computed in one pass; None decides from free memory.
        progress: show a progress bar; None shows one on a terminal.

    Returns:
        The number of passages that are longer than the model's context or have no text, and were left out.

    Raises:
        InputError: if a passage has no text field, the template puts the question first, or an argument is invalid.
    """
    prompt = as_template(template)
    cached, limit = reader.with_cache(cache), reader.max_length
    budget = max_batch_tokens or reader.budget()
    pairs: list[tuple[list[int], list[int]]] = []
    ends: list[tuple[int, ...]] = []
    left_out = size = 0
    total = len(passages) if isinstance(passages, Sequence) else None
    with track("reading", total, "passages", progress) as advance:
        for index, given in enumerate(passages):
            passage = as_passage(given, name=f"passages[{index}]")
            pieces = encode(reader.encoder, prompt, "?", [passage], [])
            expect(pieces.question_at is None, "template", "one with the question after the passages", template)
            body = pieces.body([0])
            if not passage.text.strip() or (limit is not None and len(pieces.head) + len(body) > limit):
                left_out += 1
                advance(1)
                continue
            if pairs and size + len(body) > budget:
                cached.score(pairs, ends=ends, max_batch_tokens=max_batch_tokens)
                advance(len(pairs))
                pairs, ends, size = [], [], 0
            pairs.append((pieces.head + body, []))
            ends.append(pieces.ends(len(body)))
            size += len(body)
        if pairs:
            cached.score(pairs, ends=ends, max_batch_tokens=max_batch_tokens)
            advance(len(pairs))
    return left_out
