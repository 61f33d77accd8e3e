"""Attention of the answers to noise layouts, for the first questions of a study."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastreader.core.checks import expect
from fastreader.core.halving import by_halves
from fastreader.data import Example
from fastreader.data.result_log import ResultLog
from fastreader.errors import ContextOverflowError
from fastreader.noise.attention import AnswerAttention, layout_attention
from fastreader.noise.layouts import Layout
from fastreader.noise.prompt import NoiseTemplate
from fastreader.reader.reader import Reader
from fastreader.study.cached_reader import CachedReader
from fastreader.study.config import Study
from fastreader.study.folder import ATTENTION, RunFolder
from fastreader.study.methods.noise import NoiseMethod, layout_of
from fastreader.study.registry import make


def lacks_attention(study: Study, run: RunFolder, examples: Sequence[Example], name: str) -> bool:
    """Return whether a reader has answers whose attention is to be recorded and is not in the run yet."""
    if not study.noise.attention:
        return False
    missing = _MissingReplies(study, run, name)
    return any(missing.of(example) for example in examples[: study.noise.attention])


def write_attention(study: Study, run: RunFolder, reader: CachedReader, examples: Sequence[Example], name: str) -> None:
    """Write the attention of each layout's answer for the first `study.noise.attention` questions, one row each.

    The answers and their passages are taken from the run's rows: laid out again, a study with more questions would
    draw other passages. A reply without a token gets a row with an error, and so does a reply whose last token, which
    is read here and was not when it was generated, no longer fits in the context. Layouts without passages have no row.
    """
    missing = _MissingReplies(study, run, name)
    opened = reader.reader
    expect(isinstance(opened, Reader), "noise.attention", "a fastreader.Reader, whose attention can be seen", opened)
    assert isinstance(opened, Reader)
    with ResultLog(run.file(ATTENTION), resume=True) as log:
        for example in examples[: study.noise.attention]:
            replies: dict[str, tuple[Layout, str]] = {}
            for label, trace in missing.of(example).items():
                if trace["reply"].strip():
                    replies[label] = layout_of(trace, example), trace["reply"]
                else:
                    log.append(*missing.row(example, label, "the reply is empty"))
            if not replies:
                continue
            template = missing.methods[next(iter(replies))].template
            for label, found in _attention(opened, example.question, replies, template, study.max_batch_tokens).items():
                log.append(*missing.row(example, label, found if isinstance(found, AnswerAttention) else str(found)))


def _attention(
    reader: Reader,
    question: str,
    replies: dict[str, tuple[Layout, str]],
    template: NoiseTemplate,
    max_batch_tokens: int | None,
) -> dict[str, AnswerAttention | ContextOverflowError]:
    """Return the attention of each layout's answer, or the error of an answer that is too long."""

    def attend(part: Sequence[tuple[str, tuple[Layout, str]]]) -> list[AnswerAttention]:
        options: dict[str, Any] = {"template": template, "max_batch_tokens": max_batch_tokens}
        return list(layout_attention(reader, question, dict(part), **options).values())

    return dict(zip(replies, by_halves(list(replies.items()), attend, ContextOverflowError), strict=True))


class _MissingReplies:
    """Replies whose attention is to be recorded and has no row yet."""

    def __init__(self, study: Study, run: RunFolder, reader: str) -> None:
        self._reader = reader
        chosen = study.noise.attention_layouts
        self.methods: dict[str, NoiseMethod] = {
            config.label: method
            for config in study.methods
            if isinstance(method := make(config, study), NoiseMethod) and (method.spec.gold or method.spec.retrieved)
            if not chosen or method.spec.name in chosen
        }
        self._traces: dict[tuple[str | None, str], dict[str, Any]] = {
            (row["question_id"], row["method"]): row["trace"]
            for row in run.rows()
            if row["reader"] == reader and row["seed"] == study.seeds[0] and row["answer"] is not None
            if row["method"] in self.methods
        }
        self._done = {row["id"] for row in run.attention()}

    def of(self, example: Example) -> dict[str, dict[str, Any]]:
        """Return the traces of a question's missing replies, by method."""
        return {
            label: self._traces[example.id, label]
            for label in self.methods
            if (example.id, label) in self._traces and self._key(example, label) not in self._done
        }

    def row(self, example: Example, label: str, found: AnswerAttention | str) -> tuple[str, dict[str, Any]]:
        """Return key and row of one reply; `found` is its attention or an error."""
        row = {
            "question_id": example.id,
            "method": label,
            "layout": self.methods[label].spec.name,
            "reader": self._reader,
            "error": found if isinstance(found, str) else None,
            "attention": None if isinstance(found, str) else found.to_dict(),
        }
        return self._key(example, label), row

    def _key(self, example: Example, label: str) -> str:
        return json.dumps([example.id, label, self._reader], ensure_ascii=False)
