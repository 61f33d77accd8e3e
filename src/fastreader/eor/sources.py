"""Make sources, which are functions from a question to ranked passages.

A source is any callable ``source(question)`` that returns texts, `Passage`s, mappings or documents of other libraries
(`fastreader.data.documents.as_passage`), or None. `as_source` also takes retrievers of LangChain, LlamaIndex and
Haystack, recognised by their methods, so that none is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, expect, given, rejecting
from fastreader.data import iter_examples, load_passages
from fastreader.data.documents import PassageLike, as_passages
from fastreader.data.fingerprints import file_digest
from fastreader.data.read import holds_examples
from fastreader.data.types import Example, Passage, whole_text
from fastreader.eor.index import bm25s_module, index_about, load_index, words_of
from fastreader.eor.similarity.loading import encoder_for
from fastreader.errors import InputError

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
        self.passages: Sequence[Passage]
        self.passages = load_passages(passages) if isinstance(passages, (str, os.PathLike)) else as_passages(passages)
        self.depth = depth
        expect(bool(self.passages), "passages", "at least one to index", self.passages)

    def _best(self, scores: npt.NDArray[np.floating]) -> list[Passage]:
        """Return the best passages, largest score first and ties in their order."""
        best = np.arange(len(scores))
        if len(scores) > self.depth:  # of millions, only those that reach the last score are sorted
            best = np.flatnonzero(scores >= np.partition(scores, -self.depth)[-self.depth])
        best = best[np.argsort(-scores[best], kind="stable")][: self.depth]
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
        bm25s = bm25s_module()
        super().__init__(passages, depth)
        self._language = language
        self._index = bm25s.BM25()
        words = words_of([f"{p.title} {p.text}" for p in self.passages], language)
        expect(any(words), "passages", "at least one word to index", self.passages)
        self._index.index(words, show_progress=False)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, depth: int = 20) -> BM25:
        """Open an index that `build_index` made, which stays on disk.

        Args:
            folder: the folder of the index.
            depth: maximum number of passages to return.

        Raises:
            InputError: if the folder holds no such index, or `depth` < 1.
            MissingExtraError: if `bm25s` is not installed.
        """
        check_int("depth", depth)
        found = cls.__new__(cls)
        found._index, found.passages, found._language = load_index(Path(folder))
        found.depth = depth
        return found

    def __call__(self, question: str) -> list[Passage]:
        """Return the best passages with a score above 0, largest first and ties in their order."""
        known = [word for word in words_of([question], self._language)[0] if word in self._index.vocab_dict]
        best = self._best(self._index.get_scores(known)) if known else []
        return [passage for passage in best if passage.score and passage.score > 0]


@checked
class PrecomputedHits:
    """What a retriever has found for a list of questions, looked up by the question.

    Attributes:
        depth: maximum number of passages to return.
    """

    def __init__(self, path: Iterable[Any] | str | os.PathLike[str], *, depth: int = 20) -> None:
        """Keep the first passages of each question.

        Args:
            path: a file of questions with their passages, best first, or a table of them, in any format that
                `fastreader.data.iter_examples` reads.
            depth: maximum number of passages to return.

        Raises:
            InputError: if `path` holds no questions with passages, a question comes twice with different passages, or
                `depth` < 1.
        """
        check_int("depth", depth)
        self.depth = depth
        self._name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else "path"
        self._hits: dict[str, list[Passage]] = {}
        for example in _found(path):
            hits = example.passages[:depth]
            known = self._hits.setdefault(example.question.strip(), hits)
            expect(known == hits, self._name, "one list of passages for each question, got another", example.question)
        found = [hits for hits in self._hits.values() if hits]
        expect(bool(found), f"{self._name}: {_HITS}", "a passage of at least one question", found)

    def __call__(self, question: str) -> list[Passage]:
        """Return the question's passages.

        Raises:
            InputError: if the question is not among them.
        """
        return given(self._hits.get(question.strip()), f"{self._name}: expected hits for the question {question!r}")


def _found(path: Iterable[Any] | str | os.PathLike[str]) -> Iterator[Example]:
    """Yield questions with their passages, and say in errors what hits are: not a corpus or a run of ids."""
    with rejecting(_HITS, InputError):
        yield from iter_examples(path)


_HITS = "hits are questions, each with the passages that a retriever found for it, best first"


@checked
def open_source(path: str | os.PathLike[str], *, depth: int = 20) -> BM25 | PrecomputedHits:
    """Return the source that a file or a folder holds.

    Args:
        path: a folder made by `build_index`; a file of questions with passages, which a retriever has found; or a
            corpus, which is indexed by BM25 in memory. A file's first row says which.
        depth: maximum number of passages to return.

    Raises:
        InputError: if the file or the folder cannot be read.
        MissingExtraError: if a corpus is to be searched and `bm25s` is not installed.
    """
    if Path(path).is_dir():
        return BM25.load(path, depth=depth)
    return PrecomputedHits(path, depth=depth) if holds_examples(path) else BM25(path, depth=depth)


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


def source_digest(path: str | os.PathLike[str]) -> str:
    """Return a SHA-256 in hexadecimal digits: of a file, or of the passages of an index."""
    return str(index_about(Path(path))["digest"]) if Path(path).is_dir() else file_digest(path)


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
