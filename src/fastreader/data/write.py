"""Write examples to a file, atomically."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, check_output, expect, require
from fastreader.data.answers import ANSWER_KEYS
from fastreader.data.containers import PathLike
from fastreader.data.files import json_text, replacing
from fastreader.data.formats import parse_row
from fastreader.data.passage_texts import with_contents
from fastreader.data.types import Example, Passage
from fastreader.errors import InputError

Format = Literal["dpr", "flashrag", "trec"]
Row = dict[str, Any]


@checked
def save_examples(
    examples: Iterable[Example], path: PathLike, format: Format = "dpr", *, tag: str = "fastreader"
) -> None:
    """Write examples to a file, which is replaced only if all of them are written.

    - ``dpr``: ``id, question, answers, candidates, ctxs[{id, title, text, score, isgold, hasanswer}]`` with
      the keys of `metadata` next to them. Reading the file gives equal examples.
    - ``flashrag``: ``id, question, golden_answers, candidates, output.retrieval_result[{id, contents, ...}]``,
      the title as the first line of ``contents``. Reading the file gives equal examples.
    - ``trec``: ``qid Q0 docid rank score tag``. The rank is the order of the passages. The score is the passage's if
      the scores strictly descend, and count - rank + 1 otherwise, because trec_eval sorts only by the score, which it
      holds in 32 bits.

    A name ending in ``.gz`` is gzipped. The two JSON formats have one row per line; with a name ending in ``.json``
    or ``.json.gz`` they are one list. Values that are None are omitted.

    Args:
        examples: the examples, read one by one; they may come from the file being replaced.
        path: the file to write.
        format: "dpr", "flashrag" or "trec".
        tag: name of the run in the last column of ``trec``.

    Raises:
        InputError: if the format is unknown, an item is not an Example or could not be read again (no passages, or a
            blank text or answer), JSON cannot hold a value, a `metadata` key is one of the format's own, a FlashRAG
            title has several lines, or a TREC identifier is missing or has white space.
        OSError: if the file cannot be written, for example on a full disk.
    """
    check_output("path", path)
    writers: dict[str, Callable[[Example], Row]] = {"dpr": dpr_row, "flashrag": _flashrag}
    check_choice("save_examples: format", format, [*writers, "trec"])
    target = Path(os.path.realpath(path))
    as_list = target.name.lower().removesuffix(".gz").endswith(".json")
    number = 0
    with replacing(target) as stream:
        for number, example in enumerate(examples, 1):
            try:
                require(isinstance(example, Example), f"expected an Example, got {type(example).__name__}")
                if format == "trec":
                    stream.writelines(_trec(example, tag))
                    continue
                row = writers[format](example)
                line = json_text(row)
                parse_row(row)  # rejects rows that could not be read again
            except (TypeError, ValueError, RecursionError) as error:
                raise InputError(f"save_examples: example {number}: {error}") from error
            lead = ("[\n" if number == 1 else ",\n") if as_list else ""
            stream.write(lead + line + ("" if as_list else "\n"))
        if as_list and format != "trec":
            stream.write("\n]\n" if number else "[]\n")


def _present(**values: object) -> Row:
    return {key: value for key, value in values.items() if value is not None}


def _beside(row: Row, metadata: dict[str, Any], absent: Iterable[str] = ()) -> Row:
    """Add the metadata to a row, and reject a metadata key that the format would read as its own."""
    for key in itertools.chain(row, absent):
        expect(key not in metadata, "metadata", f"no key {key!r}, which the format itself uses", metadata.get(key))
    return row | metadata


def _judged(passage: Passage, **text: str) -> Row:
    row = _present(id=passage.id, **text, score=passage.score, isgold=passage.is_gold, hasanswer=passage.has_answer)
    absent = ["id", "score"]
    if passage.is_gold is None:
        absent += ["isgold", "is_gold"]
    if passage.has_answer is None:
        absent += ["hasanswer", "has_answer"]
    return _beside(row, passage.metadata, absent)


def dpr_row(example: Example) -> Row:
    """Return an example's row in the format "dpr"."""
    row = _present(
        id=example.id,
        question=example.question,
        answers=example.answers,
        candidates=example.candidates or None,
        ctxs=[_judged(passage, title=passage.title, text=passage.text) for passage in example.passages],
    )
    return _beside(row, example.metadata, _reserved(example))


def _reserved(example: Example) -> tuple[str, ...]:
    """Return keys of a question's row that metadata must not have, even if the row lacks them."""
    return ("id", "candidates", *(() if example.answers else ANSWER_KEYS))


def _flashrag(example: Example) -> Row:
    results = []
    for passage in example.passages:
        expect("\n" not in passage.title, "title", "one line, as FlashRAG keeps it", passage.title)
        results.append(_judged(passage, contents=with_contents(passage.title, passage.text)))
    metadata = dict(example.metadata)
    output = metadata.pop("output", {})
    expect(isinstance(output, dict), "metadata['output']", "an object, as in FlashRAG's format", output)
    row = _present(
        id=example.id,
        question=example.question,
        golden_answers=example.answers,
        candidates=example.candidates or None,
        output=_beside({"retrieval_result": results}, output),
    )
    return _beside(row, metadata, _reserved(example))


def trec_lines(
    question: str | None, rows: Iterable[tuple[str | None, float]], tag: str, *, name: str = "trec"
) -> list[str]:
    """Return one question's lines ``qid Q0 docid rank score tag`` of a TREC run.

    Args:
        question: id of the question.
        rows: id and score of each passage, best first.
        tag: name of the run.
        name: name of the argument that chose the format, for messages.

    Raises:
        InputError: if an id or the tag is missing, or contains white space or control characters.
    """
    lines = []
    for rank, (passage, score) in enumerate(rows, 1):
        for what, text in (("question id", question), ("passage id", passage), ("tag", tag)):
            fits = text is not None and len(text.split()) == 1 and text.isprintable()
            expect(fits, name, f"a {what} without white space and control characters", text)
        lines.append(f"{question} Q0 {passage} {rank} {float(score)} {tag}\n")
    return lines


def _trec(example: Example, tag: str) -> list[str]:
    count = len(example.passages)
    scores = [passage.score for passage in example.passages if passage.score is not None]
    if len(scores) < count or any(not a > b for a, b in itertools.pairwise(map(np.float32, scores))):
        scores = [float(count - rank) for rank in range(count)]
    return trec_lines(example.id, zip((passage.id for passage in example.passages), scores, strict=True), tag)
