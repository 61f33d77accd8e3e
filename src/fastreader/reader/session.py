"""Session: a reader that keeps the keys and values of prefixes between calls."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from fastreader.core.checks import check_whole
from fastreader.core.protocol import Generation, Loglikelihood, Results, TextOrTokens
from fastreader.core.tree import PrefixTree, Tokens, TreeStats
from fastreader.errors import ContextOverflowError, FastreaderError, InputError, OutOfBudgetError
from fastreader.models import memory
from fastreader.models.key_values import KeyValues
from fastreader.models.prefix_cache import Kept
from fastreader.reader import generate as generation
from fastreader.reader import loglikelihood as likelihood
from fastreader.reader.loglikelihood import SequenceScores
from fastreader.reader.sampling import Sampling
from fastreader.wrapped import WrappedReader

if TYPE_CHECKING:
    from fastreader.reader.prompts.encoder import TextEncoder
    from fastreader.reader.reader import Reader

Scorer: TypeAlias = "Reader | Session"  # what scores orderings and writes after them

_SHARE = 0.5  # of the free memory, for what is kept


class Session(WrappedReader):
    """A reader over prefixes that were read once; made by `Reader.session`.

    Contexts and prompts that start like a kept prefix (with all of it or part) go on from its keys and values;
    others are read whole. Where `keep_scored` is set, what is scored is kept like a prefix. A `ReaderProtocol`, and a
    context manager that lets go of the memory at its end. Calls from several threads wait for each other.

    Args:
        reader, max_bytes, keep_scored: as for `Reader.session`, which also reads the first prefixes.

    Attributes:
        stats: what reading the prefixes took.
    """

    reader: Reader

    def __init__(self, reader: Reader, max_bytes: int | None = None, *, keep_scored: bool = False) -> None:
        super().__init__(reader)
        check_whole("max_bytes", max_bytes, none=True)
        model = reader._model
        self._kept: Kept | None = Kept(model.regimes)
        self._use = threading.RLock()  # what is kept may not change between finding it and reading after it
        self._admit = self._check_room if keep_scored else None
        self._allowed = int(_SHARE * memory.free_bytes(model.device)) if max_bytes is None else max_bytes
        self.stats = TreeStats(0, 0, 0, 0)

    def extend(
        self,
        *prefixes: TextOrTokens | Sequence[str],
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """Read further prefixes and keep them too; those that begin like kept ones are read from there on.

        Args:
            prefixes, system, chat, chat_options, max_tokens: as for `Reader.session`.

        Raises:
            InputError, ContextOverflowError: as `Reader.session`.
            OutOfBudgetError: with these, the session would take more than it may; it is left as it was.
        """
        model = self.reader._model
        if not prefixes:
            raise InputError("prefixes: expected at least one, got none")
        encoded: list[Sequence[int]] = []
        for i, prefix in enumerate(prefixes):
            pieces = [] if isinstance(prefix, str) or not isinstance(prefix, Sequence) else prefix
            if pieces and all(isinstance(piece, str) for piece in pieces):
                tokens = self.reader.prefix(prefix, system=system, chat=chat, chat_options=chat_options)  # type: ignore[arg-type]
            else:
                tokens = self.reader.encode_prompt(prefix, f"prefixes[{i}]")  # type: ignore[arg-type, assignment]
            if model.max_length is not None and len(tokens) > model.max_length:
                raise ContextOverflowError(
                    f"prefixes[{i}] is {len(tokens)} tokens long, the context of {self.name} is {model.max_length}"
                )
            encoded.append(tokens)
        trees = self.reader.plan([(prefix, ()) for prefix in encoded], max_tokens, new_tokens=2)
        with self._use:
            kept = self._open()
            self._check_room(trees)
            for tree in trees:
                record, reuse = KeyValues.empty(), kept.reuse(tree)
                with self.reader._lock:
                    model.hidden(tree, reuse=reuse, record=record)
                kept.add(tree, record)
                self.stats = self.stats + (tree.stats if reuse is None else reuse.stats(tree.stats))

    def _check_room(self, trees: Sequence[PrefixTree]) -> None:
        """Raise where these trees, kept beside what is kept already, would take more than the session may."""
        kept = self._open()
        needed = (len(kept) + kept.new(trees)) * self.reader._model.key_value_bytes
        if needed > self._allowed:
            raise OutOfBudgetError(
                f"session: the keys and values to keep take {needed:,} bytes, {self._allowed:,} are allowed"
            )

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the kept keys and values; the session cannot be used any more."""
        with self._use:
            self._kept = None

    @property
    def encoder(self) -> TextEncoder:
        """As the reader's."""
        return self.reader.encoder

    def budget(self) -> int:
        """As the reader's, from the memory free beside what is kept."""
        return self.reader.budget()

    def plan(
        self, sequences: Sequence[tuple[Tokens, Tokens]], max_tokens: int | None = None, *, new_tokens: int = 0
    ) -> list[PrefixTree]:
        """As the reader's: what is kept is part of the trees."""
        return self.reader.plan(sequences, max_tokens, new_tokens=new_tokens)

    @property
    def nbytes(self) -> int:
        """Memory the kept keys and values take, in bytes; 0 once closed."""
        return 0 if self._kept is None else self._kept.nbytes

    def score(self, sequences: Sequence[tuple[Tokens, Tokens]], *, max_tokens: int | None = None) -> SequenceScores:
        """As `Reader.score`; `.stats.reused` tells the tokens that were not read again."""
        with self._use:
            return likelihood.score(self.reader, sequences, max_tokens=max_tokens, kept=self._open(), keep=self._admit)

    def loglikelihood(
        self,
        requests: Iterable[tuple[TextOrTokens, TextOrTokens]],
        *,
        token_logprobs: bool = False,
        on_overflow: str = "error",
        max_tokens: int | None = None,
    ) -> Results[Loglikelihood]:
        """As `Reader.loglikelihood`; `.stats.reused` tells the tokens that were not read again."""
        with self._use:
            return likelihood.loglikelihood(
                self.reader,
                requests,
                token_logprobs=token_logprobs,
                on_overflow=on_overflow,
                max_tokens=max_tokens,
                kept=self._open(),
                keep=self._admit,
            )

    def generate(
        self,
        prompts: Iterable[TextOrTokens],
        *,
        max_new_tokens: int = 128,
        n: int = 1,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: Sequence[str] = (),
        stop_tokens: Sequence[int] = (),
        token_logprobs: bool = False,
        on_overflow: str = "error",
        max_tokens: int | None = None,
        progress: bool | None = None,
    ) -> Results[list[Generation]]:
        """As `Reader.generate`; `.stats.reused` tells the tokens that were not read again."""
        with self._use:
            return generation.generate(
                self.reader,
                prompts,
                max_new_tokens=max_new_tokens,
                n=n,
                sampling=Sampling(temperature, top_k, top_p),
                seed=seed,
                stop=stop,
                stop_tokens=stop_tokens,
                token_logprobs=token_logprobs,
                on_overflow=on_overflow,
                max_tokens=max_tokens,
                progress=progress,
                kept=self._open(),
            )

    def _open(self) -> Kept:
        if self._kept is None:
            raise FastreaderError("session: closed; its keys and values are gone")
        return self._kept
