"""Sources: a question in, ranked passages out.

Anything callable as ``source(question)`` will do. `as_source` also takes retrievers of LangChain and Haystack, known
by what they can do, so that neither is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastreader.data import load_passages
from fastreader.data.types import Passage
from fastreader.eor.types import whole_text
from fastreader.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from fastreader.models.encoders import Encoder

SourceFunction = Callable[[str], Iterable[Any]]


class BM25:
    """A BM25 index over passages, by `bm25s` (the extra ``bm25``).

    Passages that share no word with the question are not returned.

    Attributes:
        passages: what is searched.
        depth: passages returned at most.
    """

    def __init__(
        self, passages: Sequence[Passage] | str | os.PathLike[str], *, depth: int = 20, language: str = "english"
    ) -> None:
        """Index passages, or a file of them (`load_passages`), by title and text.

        Args:
            passages: what to search.
            depth: passages returned at most.
            language: whose stop words are left out, as `bm25s.tokenize` names them; "" keeps all words.

        Raises:
            InputError: no passages, or `depth` below 1.
            MissingExtraError: `bm25s` is not installed.
        """
        try:
            import bm25s
        except ImportError as error:
            raise MissingExtraError("bm25s", "bm25") from error
        self.passages = _passages(passages)
        self.depth = _depth("BM25", depth)
        self._language = language
        self._index = bm25s.BM25()
        self._index.index(self._tokens([f"{p.title} {p.text}" for p in self.passages]), show_progress=False)

    def __call__(self, question: str) -> list[Passage]:
        """The best passages, larger score first; of equal scores the earlier passage."""
        tokens = self._tokens([question])
        known = [t for t in tokens[0] if t in self._index.vocab_dict]
        if not known:
            return []
        scores = self._index.get_scores(known)
        best = np.argsort(-scores, kind="stable")[: self.depth]
        return [replace(self.passages[i], score=float(scores[i])) for i in best.tolist() if scores[i] > 0]

    def _tokens(self, texts: list[str]) -> list[list[str]]:
        import bm25s

        tokens = bm25s.tokenize(texts, stopwords=self._language or [], return_ids=False, show_progress=False)
        assert isinstance(tokens, list)
        return tokens


class Dense:
    """Passages by cosine similarity of sentence vectors.

    Attributes:
        passages: what is searched.
        depth: passages returned at most.
        vectors: float32 [P, d], unit rows, of the passages.
    """

    def __init__(
        self,
        encoder: str | os.PathLike[str] | Encoder,
        passages: Sequence[Passage] | str | os.PathLike[str],
        *,
        depth: int = 20,
        vectors: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Encode passages, or a file of them (`load_passages`), by title and text.

        Args:
            encoder: of sentences, as `fastreader.models.encoders.load_encoder` gives, or its name.
            passages: what to search.
            depth: passages returned at most.
            vectors: of the passages, where they are known already.

        Raises:
            InputError: no passages, `depth` below 1, or vectors that are not one a passage.
            MissingExtraError: as `load_encoder`.
        """
        from fastreader.models.encoders import as_encoder

        self.passages = _passages(passages)
        self.depth = _depth("Dense", depth)
        self._encode = as_encoder(encoder)
        self.vectors = (
            self._encode([*map(whole_text, self.passages)])
            if vectors is None
            else np.asarray(vectors, dtype=np.float32)
        )
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.passages):
            raise InputError(
                f"Dense: expected vectors float32 [{len(self.passages)}, d], got {list(self.vectors.shape)}"
            )

    def __call__(self, question: str) -> list[Passage]:
        """The nearest passages, nearest first; of equal ones the earlier passage."""
        scores = self.vectors @ self._encode([question])[0]
        best = np.argsort(-scores, kind="stable")[: self.depth]
        return [replace(self.passages[i], score=float(scores[i])) for i in best.tolist()]


def as_source(found: Any) -> SourceFunction:
    """`found` as a function from a question to passages.

    Args:
        found: a callable, called whatever else it has; a LangChain retriever (``invoke(question)`` gives documents
            with ``page_content``); a LlamaIndex retriever (``retrieve(question)`` gives nodes with ``text``); a
            Haystack retriever that takes texts (``run(query=question)`` gives ``{"documents": [...]}``), not one of
            embeddings.

    Raises:
        InputError: it is none of these.
    """
    if callable(found):
        function: SourceFunction = found
        return function
    if callable(getattr(found, "invoke", None)):
        return lambda question: found.invoke(question)
    if callable(getattr(found, "retrieve", None)):
        return lambda question: found.retrieve(question)
    if callable(getattr(found, "run", None)):
        return lambda question: _haystack(found.run(query=question))
    raise InputError(
        f"source: expected a callable, or an object with invoke (LangChain), retrieve (LlamaIndex) or run (Haystack), "
        f"got {type(found).__name__}"
    )


def as_passages(found: Any) -> list[Passage]:
    """Passages from what a source gives; none from None.

    Raises:
        InputError: it is one text or one mapping, whose letters or keys would be taken for passages, or holds what
            `as_passage` refuses.
    """
    if isinstance(found, (str, bytes, Mapping, Passage)):
        raise InputError(f"source: expected a list of passages, got one {type(found).__name__}")
    return [] if found is None else [as_passage(item) for item in found]


def as_passage(found: Any) -> Passage:
    """A `Passage` from what a source gives for one.

    Args:
        found: a `Passage`; a text; a mapping with ``text``, ``contents``, ``content`` or ``page_content`` and
            perhaps ``title, id, score``; a LangChain or Haystack document, a LlamaIndex node.

    Raises:
        InputError: it is none of these, or its text is empty.
    """
    if isinstance(found, Passage):
        passage = found
    elif isinstance(found, str):
        passage = Passage(found)
    elif isinstance(found, Mapping):
        passage = _from_fields(found.get, dict(found.get("metadata") or found.get("meta") or {}))
    else:
        meta = getattr(found, "metadata", None) or getattr(found, "meta", None) or {}
        passage = _from_fields(lambda name: getattr(found, name, None), dict(meta))
    if not passage.text.strip():
        raise InputError("source: expected passages with a text, got an empty one")
    return passage


def _from_fields(get: Callable[[str], Any], metadata: dict[str, Any]) -> Passage:
    names = ("text", "contents", "content", "page_content")
    text = next((found for name in names if isinstance(found := get(name), str)), None)
    if text is None:
        raise InputError("source: expected a passage, a text, or a document with a text, content or page_content")
    identifier = next((found for name in ("id", "node_id") if (found := get(name)) is not None), None)
    score = get("score")
    return Passage(
        text=text,
        title=str(get("title") or metadata.get("title") or ""),
        id=None if identifier is None else str(identifier),
        score=None if score is None else float(score),
        metadata=metadata,
    )


def _haystack(answer: Any) -> Iterable[Any]:
    documents = answer.get("documents") if isinstance(answer, Mapping) else None
    if documents is None:
        raise InputError("source: expected run(query=...) to give {'documents': [...]}, as Haystack's retrievers do")
    found: Iterable[Any] = documents
    return found


def _passages(passages: Sequence[Passage] | str | os.PathLike[str]) -> list[Passage]:
    found = load_passages(passages) if isinstance(passages, (str, os.PathLike)) else list(passages)
    if not found:
        raise InputError("passages: expected at least one to index, got none")
    return found


def _depth(name: str, depth: int) -> int:
    if depth < 1:
        raise InputError(f"{name}: depth must be at least 1, got {depth}")
    return depth
