"""PackedReader: the reader as one request uses it, whose passes wait in the queue of a `Packer`.

A request runs in its own thread, with a `PackedReader` instead of the reader. Its calls of `score` wait, one pass at a
time. What it computes between passes is done in parts of bounded size, and ends with the part that runs when nobody
waits for the request any more.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import expect
from fastreader.core.options import StepOptions
from fastreader.core.protocol import GenerateArguments, Generation, Results, SequenceScores, TextOrTokens
from fastreader.core.tree import PrefixTree, TreeStats
from fastreader.errors import OutOfBudgetError
from fastreader.integrations.serve.pass_queue import TOO_LONG, DeadlineError, Packer, Pair, WaitingCall, total
from fastreader.models.passage_cache.known import Ends
from fastreader.reader.generation.text_so_far import DecodedText
from fastreader.reader.loglikelihood import ScoreReader
from fastreader.reader.prompts.encoder import TextEncoder, in_parts
from fastreader.reader.relevance import RelevanceCalls
from fastreader.reader.session.passages import PassageReader

OnStep = Callable[[list[tuple[int, DecodedText]]], None]  # the texts so far, by their numbers
MOST_TOKENS = 500_000  # that one call encodes or computes: each takes up to 100 bytes before the passes
_TEXTS = 64  # that are generated together, whose logits a step holds at once
_AT_ONCE = 250_000  # tokens of sequences that are planned together, counted before they share any


class _RequestEncoder(TextEncoder):
    """The reader's encoder for one request, which stops when the request does.

    Args:
        encoder: the reader's, whose tokenizer and lock are shared.
        check: called before each part of the texts; raises if the request is over.
    """

    def __init__(self, encoder: TextEncoder, check: Callable[[], None]) -> None:
        self.__dict__.update(vars(encoder))
        self._check = check

    def _encode(self, texts: Sequence[str], trusted: bool = False, special: bool = False) -> list[list[int]]:
        tokens: list[list[int]] = []
        count = 0
        for part in in_parts(texts):
            self._check()
            tokens += super()._encode(part, trusted, special)
            count += sum(map(len, tokens[-len(part) :]))
            _check_tokens(count, "texts hold")
        return tokens


def _check_tokens(count: int, what: str) -> None:
    if count > MOST_TOKENS:
        raise OutOfBudgetError(f"the request's {what} more than {MOST_TOKENS:,} tokens; send fewer or shorter texts")


class PackedReader(ScoreReader, RelevanceCalls):
    """A `ScoringReader` for one request, whose passes run in a `Packer`.

    `stats` of its results count the call as if it had run alone, without a cache; `cached_tokens` is how many of these
    computed tokens its cache had.

    Args:
        packer: runs the passes.
        deadline: of the request, by `time.monotonic`.
        cached: the packer's reader with the cache of passages that the request may use; None reads all passages.
    """

    def __init__(self, packer: Packer, deadline: float, cached: PassageReader | None = None) -> None:
        super().__init__(_RequestEncoder(packer.reader.encoder, self.check))
        self._packer, self._reader, self._deadline = packer, packer.reader, deadline
        self._cached = cached
        self.passage_cache = None if cached is None else cached.passage_cache
        self._waiting: Future[Any] | None = None
        self._cancelled = False
        self.name = packer.reader.name
        self.relevance_writer = packer.reader.relevance_writer

    def cancel(self) -> None:
        """Let the call that waits, and each later one, raise a `DeadlineError`, while a running pass ends as usual."""
        self._cancelled = True
        if self._waiting is not None:
            self._waiting.cancel()

    def check(self) -> None:
        """Raise a `DeadlineError` if nobody waits for the request any more."""
        if self._cancelled or time.monotonic() > self._deadline:
            raise DeadlineError(TOO_LONG)

    @property
    def max_length(self) -> int | None:
        """See `ReaderBase.max_length`."""
        return self._reader.max_length

    @property
    def end_tokens(self) -> frozenset[int]:
        """See `ReaderBase.end_tokens`."""
        return self._reader.end_tokens

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return int(self._reader.local_model.model.head.weight.shape[0])

    def describe(self) -> dict[str, str]:
        """See `ReaderBase.describe`."""
        return self._reader.describe()

    def budget(self) -> int:
        """See `ReaderBase.budget`."""
        return self._packer.budget

    def plan(
        self, sequences: Sequence[Pair], max_batch_tokens: int | None = None, *, new_tokens: int = 0
    ) -> list[PrefixTree]:
        """See `ReaderBase.plan`.

        Sequences of many tokens are planned in parts, which share no tokens with each other.

        Raises:
            OutOfBudgetError: if the trees hold more than `MOST_TOKENS`, or as `ReaderBase.plan`.
        """
        most = self._packer.budget
        return self._planned(sequences, min(max_batch_tokens or most, most), new_tokens)

    def _planned(self, sequences: Sequence[Pair], max_batch_tokens: int, new_tokens: int = 0) -> list[PrefixTree]:
        trees, computed = [], 0
        for first, last in _ranges(sequences):
            self.check()
            for tree in self._reader.plan(sequences[first:last], max_batch_tokens, new_tokens=new_tokens):
                computed += tree.stats.computed_tokens
                trees.append(replace(tree, sequence_ids=tree.sequence_ids + first))
            _check_tokens(computed, "sequences hold")
        return trees

    def cost(self, sequences: Sequence[Pair], ends: Ends, trees: Sequence[PrefixTree]) -> list[TreeStats]:
        """Return what `stats` of `score` would say of passes that are not run, with what the cache has now."""
        calls = [self._call(sequences, ends, tree) for tree in trees]
        return [replace(total(call.trees), cached_tokens=call.cached_tokens) for call in calls]

    def score(
        self,
        sequences: Sequence[Pair],
        *,
        max_batch_tokens: int | None = None,
        trees: Sequence[PrefixTree] | None = None,
        top_tokens: int = 0,
        ends: Sequence[Sequence[int]] | None = None,
    ) -> SequenceScores:
        """Score as `ReaderBase.score` does, or `PassageReader.score` by `ends`, each pass when its turn comes."""
        planned = self.plan(sequences, max_batch_tokens) if trees is None else trees
        held = sum(len(tree.leaves) for tree in planned)
        expect(held == len(sequences), "trees", f"trees of {len(sequences)} sequences", f"trees of {held} sequences")
        stats = total(planned)
        calls = [self._call(sequences, ends, tree, top_tokens) for tree in planned]
        if len(calls) > 1 and any(call.cached_tokens for call in calls):
            most = self._packer.budget
            calls = self._by_what_is_computed(sequences, ends, calls, min(max_batch_tokens or most, most))
        parts = [self._submit(call) for call in calls]
        stats = replace(stats, cached_tokens=sum(part.stats.cached_tokens for part in parts))
        places = [i for call in calls for i in call.places]
        return _joined(parts, np.argsort(np.asarray(places, dtype=np.int64), kind="stable"), stats, top_tokens)

    def _call(self, sequences: Sequence[Pair], ends: Ends | None, tree: PrefixTree, top_tokens: int = 0) -> WaitingCall:
        """Return the call of one tree."""
        self.check()
        places = tree.sequence_ids.tolist()
        alone = replace(tree, sequence_ids=np.arange(len(places)))
        call = WaitingCall(self._deadline, [sequences[i] for i in places], [alone], top_tokens, places=places)
        own = [] if ends is None else [ends[i] for i in places]
        if self._cached is not None and any(own):
            call.ends, call.cached = own, self._cached
            call.look_up()
        return call

    def _by_what_is_computed(
        self, sequences: Sequence[Pair], ends: Ends | None, calls: list[WaitingCall], most: int
    ) -> list[WaitingCall]:
        """Return fewer calls that each compute at most `most` tokens, or these calls if there are no such.

        A pass takes its time for the tokens that it computes, and each pass reads all weights, so passages that the
        cache has should not divide a request into more passes. Memory limits a pass by all its tokens.
        """
        computed = sum(call.computed_tokens for call in calls)
        all_tokens = most * sum(call.tokens for call in calls) // max(1, computed)
        trees = self._planned(sequences, min(all_tokens, self._reader.budget()))
        fewer = [self._call(sequences, ends, tree, calls[0].top_tokens) for tree in trees]
        return fewer if all(call.computed_tokens <= most for call in fewer) else calls

    def generate(
        self,
        prompts: Iterable[TextOrTokens],
        *,
        top_logprobs: int = 0,
        on_step: OnStep | None = None,
        **options: Unpack[GenerateArguments],
    ) -> Results[list[Generation]]:
        """Generate as `ReaderBase.generate` does, together with greedy texts of equal options.

        Args:
            prompts, options: see `ReaderBase.generate`.
            top_logprobs: number of most likely tokens that each token comes with.
            on_step: called after each step, in the thread of the passes, with the texts that are being generated and
                their numbers, n for each prompt.
        """
        options["progress"] = False
        settings = StepOptions(**options, top_logprobs=top_logprobs)
        given = [
            compact(self.encoder.prompt_tokens(prompt, f"prompts[{i}]", special_tokens=settings.special_tokens))
            for i, prompt in enumerate(prompts)
        ]
        results: list[list[Generation]] = [[] for _ in given]
        stats, passes, seconds, limit = TreeStats(0, 0, 0, 0), 0, 0.0, self.max_length
        for members in _groups(given, self._packer.budget, settings):
            lists = {given[i].tobytes(): given[i].tolist() for i in members}  # one for all equal prompts
            own = [lists[given[i].tobytes()] for i in members]
            _check_tokens(settings.n * sum(map(len, own)), "prompts, n times each, hold")
            whole = limit is None or all(len(prompt) <= limit for prompt in own)
            trees = self.plan([(prompt, []) for prompt in own]) if whole else ()
            call = WaitingCall(self._deadline, trees=trees, prompts=own, options=settings)
            if on_step is not None:
                numbers = [i * settings.n + sample for i in members for sample in range(settings.n)]
                call.on_step = _numbered(on_step, numbers)
            found: Results[list[Generation]] = self._submit(call)
            for i, texts in zip(members, found, strict=True):
                results[i] = texts
            stats, passes, seconds = stats + found.stats, passes + found.passes, seconds + found.seconds
        return Results(results, stats, passes, seconds)

    def _submit(self, job: WaitingCall) -> Any:
        self._waiting = job.future
        self.check()
        return self._packer.submit(job)


def _numbered(on_step: OnStep, numbers: Sequence[int]) -> Callable[[list[DecodedText]], None]:
    return lambda texts: on_step(list(zip(numbers, texts, strict=True)))


def compact(tokens: Sequence[int]) -> array[int]:
    """Return token ids in a tenth of the memory that a list takes."""
    return tokens if isinstance(tokens, array) else array("I", tokens)


def _ranges(sequences: Sequence[Pair]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of parts of the sequences, each of which holds at most `_AT_ONCE` tokens or one sequence."""
    first, held = 0, 0
    for i, (context, continuation) in enumerate(sequences):
        size = len(context) + len(continuation)
        if i > first and held + size > _AT_ONCE:
            yield first, i
            first, held = i, 0
        held += size
    yield first, len(sequences)


def _groups(prompts: Sequence[array[int]], budget: int, options: StepOptions) -> list[list[int]]:
    """Return the numbers of the prompts in groups that one pass can read, of few texts each.

    Draws count how often a prompt was given, so equal prompts stay together if texts are drawn; to read one twice costs
    nothing.
    """
    equal: dict[bytes | int, list[int]] = {}
    for i, prompt in enumerate(prompts):
        equal.setdefault(prompt.tobytes() if options.temperature else i, []).append(i)
    groups: list[list[int]] = []
    left = 0
    for members in equal.values():
        length = len(prompts[members[0]])
        if not groups or length > left or (len(groups[-1]) + len(members)) * options.n > _TEXTS:
            groups.append([])
            left = budget
        groups[-1] += members
        left -= length
    return groups


def _joined(
    parts: Sequence[SequenceScores], order: npt.NDArray[np.int64], stats: TreeStats, top_tokens: int
) -> SequenceScores:
    """Return the scores of a call's passes as one, where `order` puts their sequences into the call's order."""

    def arrays(name: str, kind: type) -> npt.NDArray[Any]:
        found = [getattr(part, name) for part in parts]
        return np.concatenate(found)[order] if found else np.zeros(0, dtype=kind)

    def lists(name: str) -> list[Any]:
        every = [row for part in parts for row in getattr(part, name)]
        return [every[i] for i in order]

    return SequenceScores(
        arrays("logprob", float),
        arrays("num_tokens", int),
        arrays("is_greedy", bool),
        lists("token_logprobs"),
        stats,
        sum(part.passes for part in parts),
        sum(part.seconds for part in parts),
        lists("top_tokens") if top_tokens else None,
        lists("top_logprobs") if top_tokens else None,
        arrays("relevance", float) if parts and parts[0].relevance is not None else None,
    )
