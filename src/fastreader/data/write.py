"""Writing examples: all of a file or nothing of it."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np

from fastreader.data.read import PathLike
from fastreader.data.rows import parse_row
from fastreader.data.types import Example, Passage
from fastreader.errors import InputError

Format = Literal["dpr", "flashrag", "trec"]
Row = dict[str, Any]


def save_examples(
    examples: Iterable[Example], path: PathLike, format: Format = "dpr", *, tag: str = "fastreader"
) -> None:
    """Write examples; the file appears whole or, when anything fails, the old one stays as it was.

    - ``dpr``: ``id, question, answers, candidates, ctxs[{id, title, text, score, isgold, hasanswer}]`` with
      every key of `metadata` beside them. Reading it gives equal examples.
    - ``flashrag``: ``id, question, golden_answers, candidates, output.retrieval_result[{id, contents, ...}]``,
      the title as the first line of ``contents``. Reading it gives equal examples.
    - ``trec``: ``qid Q0 docid rank score tag``. The order of the passages is the rank. Their scores are written
      when they strictly descend; otherwise count - rank + 1 is, because trec_eval sorts by score alone,
      and holds it in 32 bits.

    A name ending in ``.gz`` is gzipped. The two JSON formats are a row a line; under a name ending in ``.json``
    or ``.json.gz`` they are one list. What is None is left out.

    Args:
        examples: read one by one; may read from the file being replaced.
        path: where to.
        format: one of the three.
        tag: the run's name in the last column of ``trec``.

    Raises:
        InputError: an unknown format, no Example, one that could not be read again (without passages, or with a
            blank text or answer), a value that JSON cannot hold, a `metadata` key that the format uses
            itself, a FlashRAG title of several lines, a TREC identifier that is missing or has white space.
        OSError: the file cannot be written, for example on a full disk.
    """
    writers: dict[str, Callable[[Example], Row]] = {"dpr": _dpr, "flashrag": _flashrag}
    if format != "trec" and format not in writers:
        raise InputError(f"save_examples: format must be dpr, flashrag or trec, got {format!r}")
    target = Path(os.path.realpath(path))
    as_list = target.name.lower().removesuffix(".gz").endswith(".json")
    number = 0
    with _replacing(target) as stream:
        for number, example in enumerate(examples, 1):
            try:
                if not isinstance(example, Example):
                    raise InputError(f"expected an Example, got {type(example).__name__}")
                if format == "trec":
                    stream.writelines(_trec(example, tag))
                    continue
                row = writers[format](example)
                line = json.dumps(row, ensure_ascii=False, allow_nan=False)
                parse_row(row)  # what it refuses could not be read again
                line.encode("utf-8")
            except (TypeError, ValueError, RecursionError) as error:
                raise InputError(f"save_examples: example {number}: {error}") from error
            lead = ("[\n" if number == 1 else ",\n") if as_list else ""
            stream.write(lead + line + ("" if as_list else "\n"))
        if as_list and format != "trec":
            stream.write("\n]\n" if number else "[]\n")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[TextIO]:
    """A text stream into a new file beside `path`, which takes its place when the block ends well."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with draft.open("xb") as raw:
            if path.exists():
                shutil.copymode(path, draft)
            with contextlib.ExitStack() as stack:
                binary: Any = raw
                if path.name.lower().endswith(".gz"):
                    binary = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0))
                stream = io.TextIOWrapper(binary, encoding="utf-8", newline="\n")
                yield stream
                stream.flush()
                stream.detach()
            raw.flush()
            os.fsync(raw.fileno())
        draft.replace(path)
    except BaseException as error:
        draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise


def _present(**values: object) -> Row:
    return {key: value for key, value in values.items() if value is not None}


def _beside(row: Row, metadata: dict[str, Any], absent: Iterable[str] = ()) -> Row:
    """The row with the metadata beside it; a key that the format reads as something else is refused."""
    for key in itertools.chain(row, absent):
        if key in metadata:
            raise InputError(f"metadata key {key!r} is one that the format uses itself")
    return row | metadata


def _judged(passage: Passage, **text: str) -> Row:
    row = _present(id=passage.id, **text, score=passage.score, isgold=passage.is_gold, hasanswer=passage.has_answer)
    absent = ["id", "score"]
    if passage.is_gold is None:
        absent += ["isgold", "is_gold"]
    if passage.has_answer is None:
        absent += ["hasanswer", "has_answer"]
    return _beside(row, passage.metadata, absent)


def _dpr(example: Example) -> Row:
    row = _present(
        id=example.id,
        question=example.question,
        answers=example.answers,
        candidates=example.candidates or None,
        ctxs=[_judged(passage, title=passage.title, text=passage.text) for passage in example.passages],
    )
    return _beside(row, example.metadata, ("id", "candidates"))


def _flashrag(example: Example) -> Row:
    results = []
    for passage in example.passages:
        if "\n" in passage.title:
            raise InputError(f"FlashRAG keeps the title on one line, got {passage.title!r}")
        results.append(_judged(passage, contents=f"{passage.title}\n{passage.text}"))
    metadata = dict(example.metadata)
    output = metadata.pop("output", {})
    if not isinstance(output, dict):
        raise InputError(f"metadata key 'output' must be an object in FlashRAG's format, got {output!r}")
    row = _present(
        id=example.id,
        question=example.question,
        golden_answers=example.answers,
        candidates=example.candidates or None,
        output=_beside({"retrieval_result": results}, output),
    )
    return _beside(row, metadata, ("id", "candidates"))


def _trec(example: Example, tag: str) -> list[str]:
    count = len(example.passages)
    scores = [passage.score for passage in example.passages]
    known = [score for score in scores if score is not None]
    if len(known) < count or any(not a > b for a, b in itertools.pairwise(map(np.float32, known))):
        known = [float(count - rank) for rank in range(count)]
    names = [example.id, tag, *(passage.id for passage in example.passages)]
    for name in names:
        if name is None or len(name.split()) != 1:
            raise InputError(f"TREC needs identifiers without white space, got {name!r}")
    return [
        f"{example.id} Q0 {passage.id} {rank} {score!r} {tag}\n"
        for rank, (passage, score) in enumerate(zip(example.passages, known, strict=True), 1)
    ]
