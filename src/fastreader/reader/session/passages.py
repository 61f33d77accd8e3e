"""PassageReader: a reader whose calls keep what they read of passages in a `PassageCache`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastreader.core.checked import checked
from fastreader.core.checks import expect
from fastreader.core.protocol import SequenceScores, TextOrTokens
from fastreader.core.tree import PrefixTree, TokenPairs, TreeStats
from fastreader.models.passage_cache.cache import PassageCache
from fastreader.models.passage_cache.folder import PrefixKey
from fastreader.models.passage_cache.known import KnownPassages
from fastreader.reader.base import ReaderBase
from fastreader.reader.session.session import Session, open_session


@checked
class PassageReader(ReaderBase):
    """A reader with a cache of passages, created by `Reader.with_cache`.

    Its calls return what the reader's do. `fr.rerank` by query likelihood, `fr.conflicts`, `fr.attribute` and
    `fr.score_permutations` read a passage that follows the prompt's header only if the cache lacks it.

    Args:
        reader: the reader, a `PassageReader` or one that pickles by reference.
        cache: of passages.

    Attributes:
        passage_cache: the cache.
    """

    def __init__(self, reader: ReaderBase, cache: PassageCache) -> None:
        super().__init__(reader.local_model)
        self.passage_cache = cache
        self._reader = reader

    def __repr__(self) -> str:
        return f"{self._reader!r} with {self.passage_cache!r}"

    def __getattr__(self, name: str) -> Any:
        """Return what the reader has besides: its model, tokenizer, device and arithmetic."""
        if name.startswith("_"):  # also what a half-made object lacks
            raise AttributeError(name)
        return getattr(self._reader, name)

    def __enter__(self) -> PassageReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def with_cache(self, cache: PassageCache) -> PassageReader:
        """Return the same reader with another cache."""
        return PassageReader(self._reader, cache)

    def session(self, *prefixes: TextOrTokens | Sequence[str], **options: Any) -> Session:
        """Open a session of the reader, as `Reader.session`, which copies passages from the cache.

        Of a prefix in pieces the first is the header and the second the passage, as in `fr.rerank`'s prompts. What the
        cache lacks of them is read and kept in it, unless the model has recurrent layers. All else that the session
        reads is kept by the session alone.
        """
        max_bytes, cache_scored = options.pop("max_bytes", None), options.pop("cache_scored", False)
        return open_session(self.local_model, prefixes, max_bytes, cache_scored, self._known, **options)

    def score(
        self,
        sequences: TokenPairs,
        *,
        max_batch_tokens: int | None = None,
        trees: Sequence[PrefixTree] | None = None,
        top_tokens: int = 0,
        ends: Sequence[Sequence[int]] | None = None,
    ) -> SequenceScores:
        """Score (context, continuation) pairs of token ids, as `Reader.score`.

        Args:
            sequences, max_batch_tokens, trees, top_tokens: see `Reader.score`.
            ends: for each sequence the numbers of its context's tokens after which the prompt's header ends, and the
                first passage; tokens before them are taken from the cache, or kept in it. An empty list, or None for
                all, leaves the cache out.

        Raises:
            InputError, ContextOverflowError, OutOfBudgetError, NumericsError: as `Reader.score`; also if `ends` has
                another length, or numbers that do not ascend within a context.
        """
        if ends is None:
            return super().score(sequences, max_batch_tokens=max_batch_tokens, trees=trees, top_tokens=top_tokens)
        expect(len(ends) == len(sequences), "ends", f"{len(sequences)} lists, one for each sequence", len(ends))
        for i, (own, (context, _)) in enumerate(zip(ends, sequences, strict=True)):
            ascending = all(a < b for a, b in zip([0, *own], [*own, len(context) + 1], strict=True))
            expect(ascending, f"ends[{i}]", f"ascending numbers from 1 to {len(context)}", own)
        return self._score(self._known(sequences, ends), sequences, max_batch_tokens, trees, top_tokens)

    def cost(
        self, sequences: TokenPairs, ends: Sequence[Sequence[int]], trees: Sequence[PrefixTree]
    ) -> list[TreeStats]:
        """Return the token counts of passes that are not run, with those that the cache has now.

        Args:
            sequences, ends: see `score`.
            trees: what `plan` returned for these sequences.
        """
        known = self._known(sequences, ends)
        return [known.stats(tree) for tree in trees]

    def parts(self, sequences: TokenPairs, ends: Sequence[Sequence[int]]) -> dict[PrefixKey, int]:
        """Return the number of tokens of each header and passage, by what a cache knows them by, see `score`."""
        return self._known(sequences, ends).tokens()

    def _known(self, sequences: TokenPairs, ends: Sequence[Sequence[int]]) -> KnownPassages:
        model = self.local_model.model
        entries, fingerprint = self.passage_cache.entries, self.local_model.fingerprint()
        return KnownPassages(
            entries,
            fingerprint,
            model.regimes,
            sequences,
            ends,
            recurrent=bool(model.mixers),
            on_cpu=all(device.type == "cpu" for device in model.devices),
            about=None if self.local_model.changed else self._about(),
        )

    def _about(self) -> dict[str, str]:
        arithmetic = self.local_model.arithmetic
        return {
            "name": self.name,
            "device": arithmetic.where,
            "precision": arithmetic.precision,
            "products": arithmetic.products,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by reference, as the reader does, with a cache that has a folder.

        Raises:
            NotReloadableError: if the reader or the cache is in this process only.
        """
        return PassageReader, (self._reader, self.passage_cache)
