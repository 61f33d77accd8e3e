"""PackedReader: the reader as one request uses it, whose passes wait in the queue of a `Packer`.

A request runs in its own thread, with a `PackedReader` instead of the reader. Its calls of `score` wait, one pass at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from fastreader.core.checks import expect
from fastreader.core.options import StepOptions
from fastreader.core.protocol import GenerateArguments, Generation, Results, SequenceScores, TextOrTokens
from fastreader.core.tree import PrefixTree, Tokens, TreeStats
from fastreader.integrations.serve.pass_queue import TOO_LONG, DeadlineError, Packer, Pair, WaitingCall
from fastreader.reader.generation.text_so_far import DecodedText
from fastreader.reader.loglikelihood import ScoreReader
from fastreader.reader.relevance import RelevanceCalls

OnStep = Callable[[list[tuple[int, DecodedText]]], None]  # the texts so far, by their numbers


class PackedReader(ScoreReader, RelevanceCalls):
    """A `ScoringReader` for one request, whose passes run in a `Packer`.

    `stats` of its results count the call as if it had run alone.
    """

    def __init__(self, packer: Packer, deadline: float) -> None:
        super().__init__(packer.reader.encoder)
        self._packer, self._reader, self._deadline = packer, packer.reader, deadline
        self._waiting: Future[Any] | None = None
        self._cancelled = False
        self.name = packer.reader.name
        self.relevance_writer = packer.reader.relevance_writer

    def cancel(self) -> None:
        """Let the call that waits, and each later one, raise a `DeadlineError`, while a running pass ends as usual."""
        self._cancelled = True
        if self._waiting is not None:
            self._waiting.cancel()

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
        """See `ReaderBase.plan`."""
        most = self._packer.budget
        return self._reader.plan(sequences, min(max_batch_tokens or most, most), new_tokens=new_tokens)

    def score(
        self,
        sequences: Sequence[Pair],
        *,
        max_batch_tokens: int | None = None,
        trees: Sequence[PrefixTree] | None = None,
        top_tokens: int = 0,
    ) -> SequenceScores:
        """Score as `ReaderBase.score` does, each pass when its turn comes."""
        planned = self.plan(sequences, max_batch_tokens) if trees is None else trees
        held = sum(len(tree.leaves) for tree in planned)
        expect(held == len(sequences), "trees", f"trees of {len(sequences)} sequences", f"trees of {held} sequences")
        parts = []
        for tree in planned:
            pairs = [sequences[i] for i in tree.sequence_ids]
            alone = replace(tree, sequence_ids=np.arange(len(pairs)))
            parts.append(self._submit(WaitingCall(self._deadline, pairs, [alone], top_tokens)))
        places = np.concatenate([tree.sequence_ids for tree in planned]) if planned else np.zeros(0, dtype=np.int64)
        return _joined(parts, np.argsort(places, kind="stable"), top_tokens)

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
            self.encoder.prompt_tokens(prompt, f"prompts[{i}]", special_tokens=settings.special_tokens)
            for i, prompt in enumerate(prompts)
        ]
        results: list[list[Generation]] = [[] for _ in given]
        stats, passes, seconds, limit = TreeStats(0, 0, 0, 0), 0, 0.0, self.max_length
        for members in _by_size(given, self._packer.budget):
            own = [given[i] for i in members]
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
        if self._cancelled:
            raise DeadlineError(TOO_LONG)
        return self._packer.submit(job)


def _numbered(on_step: OnStep, numbers: Sequence[int]) -> Callable[[list[DecodedText]], None]:
    return lambda texts: on_step(list(zip(numbers, texts, strict=True)))


def _by_size(prompts: Sequence[Tokens], budget: int) -> list[list[int]]:
    """Return the numbers of the prompts in groups that one pass can read, with equal prompts in one group.

    Draws count how often a prompt was given, so equal prompts stay together; to read one twice costs nothing.
    """
    equal: dict[tuple[int, ...], list[int]] = {}
    for i, prompt in enumerate(prompts):
        equal.setdefault(tuple(prompt), []).append(i)
    groups: list[list[int]] = []
    left = 0
    for prompt, members in equal.items():
        if not groups or len(prompt) > left:
            groups.append([])
            left = budget
        groups[-1] += members
        left -= len(prompt)
    return groups


def _joined(parts: Sequence[SequenceScores], order: npt.NDArray[np.int64], top_tokens: int) -> SequenceScores:
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
        sum((part.stats for part in parts), TreeStats(0, 0, 0, 0)),
        sum(part.passes for part in parts),
        sum(part.seconds for part in parts),
        lists("top_tokens") if top_tokens else None,
        lists("top_logprobs") if top_tokens else None,
        arrays("relevance", float) if parts and parts[0].relevance is not None else None,
    )
