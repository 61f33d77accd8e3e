"""Scoring with a cache of passages, if the reader has one, and reading passages into it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.core.progress import track
from fastreader.core.protocol import ScoringReader, SequenceScores
from fastreader.core.tree import PrefixTree, TokenPairs, TreeStats
from fastreader.data.documents import as_passage
from fastreader.models.machine import memory
from fastreader.models.passage_cache.folder import HEADER, PrefixKey
from fastreader.models.passage_cache.known import KEPT_STATES
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
    `passages_cost` says beforehand what it takes.

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
    cached, left_out = reader.with_cache(cache), 0
    total = len(passages) if isinstance(passages, Sequence) else None
    with track("reading", total, "passages", progress) as advance:
        for call in _calls(reader, passages, template, max_batch_tokens or reader.budget()):
            if call.pairs:
                cached.score(call.pairs, ends=call.ends, max_batch_tokens=max_batch_tokens)
            left_out += call.left_out
            advance(len(call.pairs) + call.left_out)
    return left_out


@dataclass(frozen=True)
class PassagesCost:
    """What `cache_passages` would take, of different passages.

    Attributes:
        known: passages that the cache has.
        new: passages that would be read.
        left_out: passages that are longer than the model's context or have no text.
        tokens: tokens that would be computed, headers included.
        nbytes: memory, and size of the files, of the new passages and headers, in bytes, without limits.
        token_bytes: of a token's keys and values.
        state_bytes: of the states of recurrent layers after one token, of which a passage keeps two.
    """

    known: int
    new: int
    left_out: int
    tokens: int
    nbytes: int
    token_bytes: int
    state_bytes: int

    def to_dict(self) -> dict[str, int]:
        """Return everything as JSON values."""
        return asdict(self)


@checked
def passages_cost(
    reader: Reader, passages: Iterable[Any], cache: PassageCache, *, template: Template | None = None
) -> PassagesCost:
    """Return what `cache_passages`, or a first question about these passages, takes, without running the model.

    Args:
        reader, passages, cache, template: see `cache_passages`. No file of the cache is read.

    Raises:
        InputError: as `cache_passages`.
    """
    cached, left_out, entries = reader.with_cache(cache), 0, cache.entries
    tokens: dict[PrefixKey, int] = {}
    for call in _calls(reader, passages, template, _COUNTED):
        left_out += call.left_out
        tokens |= cached.parts(call.pairs, call.ends)
    new = {key: count for key, count in tokens.items() if not entries.holds(key)}
    model = cached.local_model.model
    token_bytes = model.key_value_bytes
    if entries.rounded:
        token_bytes = memory.key_value_bytes(model.config, torch.int8, scale=torch.float32.itemsize)
    of_passages = [key for key in tokens if not key[1].startswith(HEADER)]
    states = sum(min(KEPT_STATES, count) for count in new.values()) * model.state_bytes
    return PassagesCost(
        known=sum(key not in new for key in of_passages),
        new=sum(key in new for key in of_passages),
        left_out=left_out,
        tokens=sum(new.values()),
        nbytes=sum(new.values()) * token_bytes + states,
        token_bytes=token_bytes,
        state_bytes=model.state_bytes,
    )


_COUNTED = 1 << 16  # tokens that are counted at a time


@dataclass
class _Call:
    """Prompts that end after a passage, and the number of passages before them that cannot be read."""

    pairs: list[tuple[list[int], list[int]]] = field(default_factory=list)
    ends: list[tuple[int, ...]] = field(default_factory=list)
    left_out: int = 0
    size: int = 0


def _calls(reader: Reader, passages: Iterable[Any], template: Template | None, budget: int) -> Iterator[_Call]:
    """Yield prompts with at most `budget` tokens of passages, or one longer passage, as the passages come."""
    prompt, call = as_template(template), _Call()
    for index, given in enumerate(passages):
        passage = as_passage(given, name=f"passages[{index}]")
        pieces = encode(reader.encoder, prompt, "?", [passage], [])
        expect(pieces.question_at is None, "template", "one with the question after the passages", template)
        body = pieces.body([0])
        long = reader.max_length is not None and len(pieces.head) + len(body) > reader.max_length
        if not passage.text.strip() or long:
            call.left_out += 1
            continue
        if call.pairs and call.size + len(body) > budget:
            yield call
            call = _Call()
        call.pairs.append((pieces.head + body, []))
        call.ends.append(pieces.ends(len(body)))
        call.size += len(body)
    yield call
