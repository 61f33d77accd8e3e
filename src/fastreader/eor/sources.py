"""Make sources, which are functions from a question to ranked passages.

A source is any callable ``source(question)`` that returns texts, `Passage`s, mappings or documents of other libraries
(`fastreader.data.documents.as_passage`), or None. `as_source` also takes retrievers of LangChain, LlamaIndex and
Haystack, recognised by their methods, so that none is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, expect, given, rejecting
from fastreader.data import load_passages
from fastreader.data.documents import PassageLike, as_passages
from fastreader.data.types import Passage, whole_text
from fastreader.eor.similarity.loading import encoder_for
from fastreader.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from fastreader.models.loading.sentence_encoders import Encoder

SourceFunction = Callable[[str], Iterable[Any]]


@checked
class Index:
    """An index over passages.

    Attributes:
        passages: the indexed passages.
        depth: maximum number of passages to return.
    """

    def __init__(self, passages: Iterable[PassageLike] | str | os.PathLike[str], depth: int) -> None:
        check_int("depth", depth)
        self.passages = load_passages(passages) if isinstance(passages, (str, os.PathLike)) else as_passages(passages)
        self.depth = depth
        expect(bool(self.passages), "passages", "at least one to index", self.passages)

    def _best(self, scores: npt.NDArray[np.floating]) -> list[Passage]:
        """Return the best passages, largest score first and ties in their order."""
        best = np.argsort(-scores, kind="stable")[: self.depth]
        return [replace(self.passages[i], score=float(scores[i])) for i in best.tolist()]


@checked
class BM25(Index):
    """A BM25 index over passages, built with `bm25s` (the extra ``bm25``).

    Passages that share no word with the question are not returned.
    """

    def __init__(
        self, passages: Iterable[PassageLike] | str | os.PathLike[str], *, depth: int = 20, language: str = "english"
    ) -> None:
        """Index passages, or a file of them (`load_passages`), by title and text.

        Args:
            passages: to search.
            depth: maximum number of passages to return.
            language: language of the stop words to remove, as `bm25s.tokenize` names it; "" keeps all words.

        Raises:
            InputError: if there are no passages, or `depth` < 1.
            MissingExtraError: if `bm25s` is not installed.
        """
        try:
            import bm25s
        except ImportError as error:
            raise MissingExtraError("bm25s", "bm25") from error
        super().__init__(passages, depth)
        self._language = language
        self._index = bm25s.BM25()
        with rejecting(f"language: expected one of bm25s, got {language!r}", ValueError):
            tokens = self._tokens([f"{p.title} {p.text}" for p in self.passages])
        expect(any(tokens), "passages", "at least one word to index", self.passages)
        self._index.index(tokens, show_progress=False)

    def __call__(self, question: str) -> list[Passage]:
        """Return the best passages with a score above 0, largest first and ties in their order."""
        known = [t for t in self._tokens([question])[0] if t in self._index.vocab_dict]
        best = self._best(self._index.get_scores(known)) if known else []
        return [passage for passage in best if passage.score and passage.score > 0]

    def _tokens(self, texts: list[str]) -> list[list[str]]:
        import bm25s

        tokens = bm25s.tokenize(texts, stopwords=self._language or [], return_ids=False, show_progress=False)
        assert isinstance(tokens, list)
        return tokens


@checked
class Dense(Index):
    """An index over passages by cosine similarity of sentence vectors.

    Attributes:
        vectors: float32 [P, d], unit rows, of the passages.
    """

    def __init__(
        self,
        encoder: str | os.PathLike[str] | Encoder,
        passages: Iterable[PassageLike] | str | os.PathLike[str],
        *,
        depth: int = 20,
        vectors: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Encode passages, or a file of them (`load_passages`), by title and text.

        Args:
            encoder: a sentence encoder, from `fastreader.models.loading.sentence_encoders.load_encoder`, or its name.
            passages: to search.
            depth: maximum number of passages to return.
            vectors: float32 [P, d] of the passages; None encodes them.

        Raises:
            InputError: if there are no passages, `depth` < 1, or there is not one vector per passage.
            MissingExtraError: if `load_encoder` raises it.
        """
        super().__init__(passages, depth)
        self._encode = encoder_for(encoder)
        # A folder may hold another kind of model, which loads but does not encode. A caller's function may raise.
        errors = () if callable(encoder) else (ValueError,)
        with rejecting(f"encoder: {str(encoder)!r} cannot encode the passages", *errors):
            found = self._encode([*map(whole_text, self.passages)]) if vectors is None else vectors
        self.vectors = np.asarray(found, dtype=np.float32)
        shape = list(self.vectors.shape)
        ok = len(shape) == 2 and shape[0] == len(self.passages)
        expect(ok, "vectors", f"float32 [{len(self.passages)}, d]", shape)

    def __call__(self, question: str) -> list[Passage]:
        """Return the nearest passages, nearest first and ties in their order."""
        return self._best(self.vectors @ self._encode([question])[0])


@checked
def as_source(found: Any) -> SourceFunction:
    """Return `found` as a function from a question to passages.

    Args:
        found: a callable, which takes precedence over its methods; a LangChain retriever (``invoke(question)`` returns
            documents with ``page_content``); a LlamaIndex retriever (``retrieve(question)`` returns nodes with
            ``text``); a Haystack retriever that takes texts, not embeddings (``run(query=question)`` returns
            ``{"documents": [...]}``).

    Raises:
        InputError: if `found` is anything else.
    """
    if callable(found):
        function: SourceFunction = found
        return function
    for method in ("invoke", "retrieve"):
        if callable(getattr(found, method, None)):
            return lambda question: getattr(found, method)(question)
    if callable(getattr(found, "run", None)):
        return lambda question: _haystack(found.run(query=question))
    expected = "a callable, or an object with invoke (LangChain), retrieve (LlamaIndex) or run (Haystack)"
    raise InputError(f"source: expected {expected}, got {type(found).__name__}")


def _haystack(answer: Any) -> Iterable[Any]:
    documents: Iterable[Any] | None = answer.get("documents") if isinstance(answer, Mapping) else None
    return given(documents, "source: expected {'documents': [...]} from run(query=...), as from Haystack's retrievers")
