"""Saved BM25 indexes: a corpus of any size is indexed in bounded memory, and searched from disk.

A folder holds an index of bm25s in its own format, the passages as JSON lines, and their places in that file. Building
streams the corpus twice: once to count words, once to put each score where bm25s looks for it. Scores equal those that
bm25s computes in memory (its default, Lucene's form of BM25, k1 = 1.5, b = 0.75).
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO, overload

import numpy as np
import numpy.typing as npt

from fastreader.core.checked import checked
from fastreader.core.checks import expect, given, rejecting, require
from fastreader.data.corpora import iter_passages
from fastreader.data.documents import PassageLike, as_passages
from fastreader.data.files import building, json_text, read_object
from fastreader.data.types import Passage
from fastreader.errors import MissingExtraError

VERSION = 1
_ABOUT, _PASSAGES, _PLACES = "fastreader.json", "passages.jsonl", "places.npy"
_BATCH = 20_000  # passages whose words are counted together
_PAIRS = 4_000_000  # pairs of a word and a passage that are sorted together, about 150 MB
_FIELDS = tuple(field.name for field in fields(Passage))
_PAIR = np.dtype([("word", np.int32), ("passage", np.int32), ("count", np.float32)])


def bm25s_module() -> Any:
    """Return bm25s.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        import bm25s
    except ImportError as error:
        raise MissingExtraError("bm25s", "bm25") from error
    return bm25s


def words_of(texts: Sequence[str], language: str) -> list[list[str]]:
    """Return the words of texts without stop words of `language`, of which "" names none.

    Raises:
        InputError: if bm25s has no stop words of the language.
    """
    bm25s = bm25s_module()
    with rejecting(f"language: expected one of bm25s, got {language!r}", ValueError):
        words: list[list[str]] = bm25s.tokenize(
            list(texts), stopwords=language or [], return_ids=False, show_progress=False
        )
    return words


class StoredPassages(Sequence[Passage]):
    """Passages in a file, read one at a time.

    Args:
        folder: of the index.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / _PASSAGES
        with rejecting(f"{folder}: not an index", OSError, ValueError):
            self._places = np.load(folder / _PLACES)

    def __len__(self) -> int:
        return len(self._places) - 1

    @overload
    def __getitem__(self, index: int) -> Passage: ...
    @overload
    def __getitem__(self, index: slice) -> list[Passage]: ...
    def __getitem__(self, index: int | slice) -> Passage | list[Passage]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        start, end = map(int, self._places[place : place + 2])
        with self._file.open("rb") as stream:
            stream.seek(start)
            return Passage(**json.loads(stream.read(end - start)))


@checked
def build_index(
    corpus: Iterable[PassageLike] | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    language: str = "english",
    replace: bool = False,
) -> Path:
    """Index a corpus by title and text in a folder, for `BM25.load`.

    The memory that it takes grows with the number of distinct words, and by 12 bytes per passage.

    Args:
        corpus: a file for `fastreader.data.iter_passages`, read one passage at a time; or passages.
        folder: the folder to make.
        language: language of the stop words to remove, as `bm25s.tokenize` names it; "" keeps all words.
        replace: replace an index in the folder, which stays until the new one is whole.

    Returns:
        The folder.

    Raises:
        InputError: if the folder exists and is not to be replaced, or holds something else; if a passage is invalid; or
            if the corpus has no word.
        MissingExtraError: if `bm25s` is not installed.
    """
    words_of(["word"], language)
    target = Path(folder)
    if replace and target.exists():
        index_about(target)  # an error for any other folder
    require(replace or not target.exists(), f"folder: {target} exists already")
    is_file = isinstance(corpus, (str, os.PathLike))
    passages = iter_passages(corpus) if is_file else iter(as_passages(corpus, name="corpus"))  # type: ignore[arg-type]
    with building(target, lambda path: path.is_dir() and not replace) as making:
        draft = given(making, f"folder: {target} exists already")
        _build(passages, draft, language)
    return target


def _build(passages: Iterator[Passage], folder: Path, language: str) -> None:
    bm25s = bm25s_module()
    vocabulary: dict[str, int] = {}
    lengths, places, digest = [], [np.zeros(1, dtype=np.int64)], hashlib.sha256()
    pairs = folder / "pairs.tmp"
    with (folder / _PASSAGES).open("wb") as texts, pairs.open("wb") as stream:
        done = 0
        while batch := list(itertools.islice(passages, _BATCH)):
            rows = [json_text(_row(passage)).encode() + b"\n" for passage in batch]
            for row in rows:
                digest.update(row)
            texts.writelines(rows)
            places.append(places[-1][-1] + np.cumsum([len(row) for row in rows], dtype=np.int64))
            words = words_of([f"{p.title} {p.text}" for p in batch], language)
            lengths.append(np.array([len(found) for found in words], dtype=np.int32))
            _count(words, done, vocabulary).tofile(stream)
            done += len(batch)
    expect(bool(vocabulary), "corpus", "at least one word to index", [])
    np.save(folder / _PLACES, np.concatenate(places))
    index = bm25s.BM25()
    length = np.concatenate(lengths)
    index.scores = {**_scores(pairs, folder, len(vocabulary), length, index), "num_docs": len(length)}
    index.vocab_dict, index.nonoccurrence_array = vocabulary, None
    index.save(folder, show_progress=False)
    for left_over in folder.glob("*.tmp"):
        left_over.unlink()
    about = {"version": VERSION, "language": language, "passages": len(length), "digest": digest.hexdigest()}
    (folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")


def _row(passage: Passage) -> dict[str, Any]:
    values = ((field, getattr(passage, field)) for field in _FIELDS)  # `asdict` copies them, at three times the time
    return {key: value for key, value in values if key == "text" or value not in (None, "", {})}


def _count(words: list[list[str]], start: int, vocabulary: dict[str, int]) -> npt.NDArray[Any]:
    """Return pairs of a word and a passage with the word's count, and add new words to the vocabulary."""
    ids = np.array([vocabulary.setdefault(w, len(vocabulary)) for found in words for w in found], dtype=np.int64)
    passage = np.repeat(np.arange(len(words), dtype=np.int64), [len(found) for found in words])
    key, counts = np.unique(passage << 32 | ids, return_counts=True)
    pairs = np.empty(len(key), dtype=_PAIR)
    pairs["word"], pairs["passage"], pairs["count"] = key & 0xFFFFFFFF, (key >> 32) + start, counts
    return pairs


def _chunks(stream: BinaryIO) -> Iterator[npt.NDArray[Any]]:
    while len(chunk := np.fromfile(stream, dtype=_PAIR, count=_PAIRS)):
        yield chunk


def _scores(
    file: Path, folder: Path, words: int, length: npt.NDArray[np.int32], index: Any
) -> dict[str, npt.NDArray[Any]]:
    """Return the scores in the layout of bm25s: by word, then by passage (compressed sparse columns)."""
    frequency = np.zeros(words, dtype=np.int64)
    with file.open("rb") as stream:
        for chunk in _chunks(stream):
            frequency += np.bincount(chunk["word"], minlength=words)
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(frequency)])
    idf = np.log(1 + (len(length) - frequency + 0.5) / (frequency + 0.5))
    norm = index.k1 * (1 - index.b + index.b * length / length.mean())
    total = int(starts[-1])
    data = np.memmap(folder / "data.tmp", dtype=np.float32, mode="w+", shape=total)
    indices = np.memmap(folder / "indices.tmp", dtype=np.int32, mode="w+", shape=total)
    following = starts[:-1].copy()
    with file.open("rb") as stream:
        for chunk in _chunks(stream):
            chunk = chunk[np.argsort(chunk["word"], kind="stable")]
            word, first, counts = np.unique(chunk["word"], return_index=True, return_counts=True)
            place = np.arange(len(chunk)) + np.repeat(following[word] - first, counts)
            count = chunk["count"]
            data[place] = idf[chunk["word"]] * (count / (norm[chunk["passage"]] + count))
            indices[place] = chunk["passage"]
            following[word] += counts
    return {"data": data, "indices": indices, "indptr": starts}


def load_index(folder: Path) -> tuple[Any, StoredPassages, str]:
    """Return the index of bm25s in a folder, its passages and its language.

    Raises:
        InputError: if the folder holds no such index.
    """
    about = index_about(folder)
    bm25s = bm25s_module()
    with rejecting(f"{folder}: not an index", OSError, ValueError, KeyError):
        index = bm25s.BM25.load(folder, mmap=True)
    passages = StoredPassages(folder)
    expect(
        len(passages) == index.scores["num_docs"], f"{folder}", f"{index.scores['num_docs']} passages", len(passages)
    )
    return index, passages, str(about["language"])


def index_about(folder: Path) -> dict[str, Any]:
    """Return what a folder says of its index: version, language, number of passages and their digest."""
    require((folder / _ABOUT).is_file(), f"{folder}: expected an index, as fastreader index makes it")
    about = read_object(folder / _ABOUT)
    expect(about.get("version") == VERSION, f"{folder}: version", str(VERSION), about.get("version"))
    return about
