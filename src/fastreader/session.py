"""Session: a reader that keeps the keys and values of prefixes between calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fastreader import generation, likelihood
from fastreader.errors import ContextOverflowError, FastreaderError, InputError, OutOfBudgetError
from fastreader.models import memory
from fastreader.models.kept import Kept
from fastreader.models.kv import KeyValues
from fastreader.protocol import Generation, Loglikelihood, Results, TextOrTokens
from fastreader.sampling import Sampling
from fastreader.tree import PrefixTree, TreeStats

if TYPE_CHECKING:
    from fastreader.reader import Reader

_SHARE = 0.5  # of the free memory, for what is kept


class Session:
    """A reader over prefixes that were read once; made by `Reader.session`.

    Contexts and prompts that start like a kept prefix (with all of it or part) go on from its keys and values;
    others are read whole. A `ReaderProtocol`, and a context manager that lets go of the memory at its end.

    Attributes:
        reader: the reader.
        name: the reader's name.
        stats: what reading the prefixes took.
    """

    def __init__(self, reader: Reader, prefixes: Sequence[Sequence[int]], max_bytes: int | None) -> None:
        self.reader = reader
        self.name = reader.name
        if not prefixes:
            raise InputError("prefixes: expected at least one, got none")
        model = reader._model
        for i, prefix in enumerate(prefixes):
            if model.max_length is not None and len(prefix) > model.max_length:
                raise ContextOverflowError(
                    f"prefixes[{i}] is {len(prefix)} tokens long, the context of {reader.name} is {model.max_length}"
                )
        sequences = [(prefix, ()) for prefix in prefixes]
        needed = len(PrefixTree.build(sequences)) * model.key_value_bytes
        allowed = int(_SHARE * memory.free_bytes(model.device)) if max_bytes is None else max_bytes
        if needed > allowed:
            raise OutOfBudgetError(
                f"session: the keys and values of these prefixes take {needed:,} bytes, {allowed:,} are allowed"
            )
        self._kept: Kept | None = Kept(model.regimes)
        self.stats = TreeStats(0, 0, 0, 0)
        for tree in reader.plan(sequences, new_tokens=2):
            record = KeyValues.empty()
            with reader._lock:
                model.hidden(tree, record=record)
            self._kept.add(tree, record)
            self.stats = self.stats + tree.stats

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the kept keys and values; the session cannot be used any more."""
        self._kept = None

    @property
    def max_length(self) -> int | None:
        """As `Reader.max_length`."""
        return self.reader.max_length

    @property
    def nbytes(self) -> int:
        """Memory the kept keys and values take, in bytes; 0 once closed."""
        return 0 if self._kept is None else self._kept.nbytes

    def describe(self) -> dict[str, str]:
        """As `Reader.describe`."""
        return self.reader.describe()

    def prompt(
        self,
        pieces: Sequence[str],
        *,
        lead: str = "",
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """As `Reader.prompt`."""
        return self.reader.prompt(pieces, lead=lead, system=system, chat=chat, chat_options=chat_options)

    def continuation(
        self,
        text: str,
        *,
        end: bool = False,
        system: str | None = None,
        chat: bool | None = None,
        chat_options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """As `Reader.continuation`."""
        return self.reader.continuation(text, end=end, system=system, chat=chat, chat_options=chat_options)

    def loglikelihood(
        self,
        requests: Iterable[tuple[TextOrTokens, TextOrTokens]],
        *,
        token_logprobs: bool = False,
        on_overflow: str = "error",
        max_tokens: int | None = None,
    ) -> Results[Loglikelihood]:
        """As `Reader.loglikelihood`; `.stats.reused` tells the tokens that were not read again."""
        return likelihood.loglikelihood(
            self.reader,
            requests,
            token_logprobs=token_logprobs,
            on_overflow=on_overflow,
            max_tokens=max_tokens,
            kept=self._open(),
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
