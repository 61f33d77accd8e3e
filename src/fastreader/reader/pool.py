"""ReaderPool: one model on several devices, which share the passes of a call."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar, Unpack

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_list, expect
from fastreader.core.options import GenerateOptions
from fastreader.core.protocol import GenerateArguments, Generation, Results, SequenceScores, TextOrTokens
from fastreader.core.tree import PrefixTree, TokenPairs, TreeStats
from fastreader.reader.loglikelihood import ScoreReader, score
from fastreader.reader.reader import Reader

Part = TypeVar("Part")
Outcome = TypeVar("Outcome")
_DESCRIBED = ("revision", "dtype", "precision", "products")


@checked
class ReaderPool(ScoreReader):
    """Readers of the same model on several devices. It replaces a `Reader` in `score_permutations` and more.

    A call is planned as at least one pass for each reader, and a reader that is free takes the next pass, in its
    thread. Results come in the order of the requests. An error in one pass is raised once no pass runs any more,
    and passes that had not begun do not run.

    Args:
        readers: of one model, dtype and precision, on different devices.

    Attributes:
        readers: as given.
        name: of the model.

    Raises:
        InputError: if there is no reader, or they differ in more than the device.
    """

    def __init__(self, readers: Sequence[Reader]) -> None:
        self.readers = list(readers)
        expect(len(self.readers) > 0, "readers", "at least one", self.readers)
        first, *others = ({key: reader.describe().get(key) for key in ("name", *_DESCRIBED)} for reader in self.readers)
        for i, other in enumerate(others, 1):
            expect(other == first, f"readers[{i}]", f"a reader like readers[0], {first}", other)
        super().__init__(self.readers[0].encoder)
        self.name = self.readers[0].name

    @classmethod
    def load(cls, model: str | os.PathLike[str], devices: Sequence[str], **options: Any) -> ReaderPool:
        """Load a reader on each device.

        Args:
            model: a name, folder, file or hub id, as `Reader.load` takes it.
            devices: such as ["cuda:0", "cuda:1"].
            **options: other keyword arguments of `Reader.load`.

        Raises as `Reader.load`.
        """
        check_list("devices", devices, of="devices")
        expect(len(devices) > 0, "devices", "at least one", devices)
        return cls([Reader.load(model, device, **options) for device in devices])

    def describe(self) -> dict[str, str]:
        """Return what the first reader says of itself, with the devices of all."""
        return {**self.readers[0].describe(), "device": ", ".join(r.describe()["device"] for r in self.readers)}

    @property
    def max_length(self) -> int | None:
        """Longest input the model takes, in tokens, or None if its config sets no limit."""
        return self.readers[0].max_length

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens by which the model ends a turn or a text."""
        return self.readers[0].end_tokens

    def budget(self) -> int:
        """Return the number of tokens that one pass of every reader computes at most by default, added up."""
        return len(self.readers) * self._pass_budget()

    def _pass_budget(self) -> int:
        return min(reader.budget() for reader in self.readers)

    def plan(
        self, sequences: TokenPairs, max_batch_tokens: int | None = None, *, new_tokens: int = 0
    ) -> list[PrefixTree]:
        """Return the trees that a call of `score` would run, one for each reader or more, as `Reader.plan`."""
        check_int("max_batch_tokens", max_batch_tokens, optional=True)
        plan, wanted = self.readers[0].plan, len(self.readers)
        trees = plan(sequences, max_batch_tokens or self._pass_budget(), new_tokens=new_tokens)
        if len(trees) >= wanted:
            return trees
        tokens = sum(map(len, trees))
        return plan(sequences, -(-tokens // wanted), new_tokens=new_tokens)

    def score(
        self, sequences: TokenPairs, *, max_batch_tokens: int | None = None, trees: Sequence[PrefixTree] | None = None
    ) -> SequenceScores:
        """Score (context, continuation) pairs of token ids, as `Reader.score`."""
        started = time.perf_counter()
        if trees is None:
            trees = self.plan(sequences, max_batch_tokens)
        parts = self._shared(
            lambda reader, tree: score(reader.local_model, sequences, max_batch_tokens=None, trees=[tree]), trees
        )
        of = np.empty(len(sequences), dtype=np.int64)  # the pass of each sequence
        for place, tree in enumerate(trees):
            of[tree.sequence_ids] = place
        mine = range(len(sequences))
        logprob, tokens, greedy = (
            np.array([getattr(parts[of[i]], name)[i] for i in mine]) for name in ("logprob", "num_tokens", "is_greedy")
        )
        each = [parts[of[i]].token_logprobs[i] for i in mine]
        stats = sum((part.stats for part in parts), TreeStats(0, 0, 0, 0))
        return SequenceScores(logprob, tokens, greedy, each, stats, len(trees), time.perf_counter() - started)

    def generate(
        self, prompts: Iterable[TextOrTokens], **options: Unpack[GenerateArguments]
    ) -> Results[list[Generation]]:
        """Return texts for each prompt, as `Reader.generate`.

        Prompts that begin alike go to one reader; equal ones always do, since they are samples of one text.
        """
        started = time.perf_counter()
        settings = GenerateOptions(**options)
        arguments: Any = vars(settings)  # whose stop strings outlast their first reading
        check_list("prompts", prompts, of="prompts")
        listed = list(prompts)
        encoded = [
            tuple(self.encoder.prompt_tokens(prompt, f"prompts[{i}]", special_tokens=settings.special_tokens))
            for i, prompt in enumerate(listed)
        ]
        shares = _shares(encoded, len(self.readers))
        parts = self._shared(lambda reader, share: reader.generate([listed[i] for i in share], **arguments), shares)
        texts: list[list[Generation]] = [[] for _ in listed]
        for share, part in zip(shares, parts, strict=True):
            for i, group in zip(share, part, strict=True):
                texts[i] = group
        stats = sum((part.stats for part in parts), TreeStats(0, 0, 0, 0))
        return Results(texts, stats, sum(part.passes for part in parts), time.perf_counter() - started)

    def _shared(self, work: Callable[[Reader, Part], Outcome], parts: Sequence[Part]) -> list[Outcome]:
        """Return the outcomes of all parts in order, each computed by the first reader that was free."""
        free: SimpleQueue[Reader] = SimpleQueue()
        for reader in self.readers:
            free.put(reader)

        def one(part: Part) -> Outcome:
            reader = free.get()
            try:
                return work(reader, part)
            finally:
                free.put(reader)

        with ThreadPoolExecutor(len(self.readers)) as threads:
            waiting = [threads.submit(one, part) for part in parts]
            try:
                return [each.result() for each in waiting]
            finally:
                for each in waiting:
                    each.cancel()

    def close(self) -> None:
        """Release the memory of all readers, see `Reader.close`."""
        for reader in self.readers:
            reader.close()

    def __enter__(self) -> ReaderPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _shares(encoded: Sequence[tuple[int, ...]], count: int) -> list[list[int]]:
    """Return the places of the prompts that each of `count` readers gets, with about as many tokens for each.

    Neighbours in the order of their tokens, which share most, stay together if that does not unbalance the shares.
    """
    order = sorted(range(len(encoded)), key=encoded.__getitem__)
    total = sum(map(len, encoded))
    shares: list[list[int]] = [[] for _ in range(count)]
    place = dealt = 0
    for before, i in zip([-1, *order], order, strict=False):
        if dealt * count >= total * (place + 1) and encoded[i] != encoded[before]:
            place += 1
        shares[place].append(i)
        dealt += len(encoded[i])
    return [share for share in shares if share]
