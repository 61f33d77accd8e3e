"""Where the answers' tokens of the noise layouts look, for the first questions of a study."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastreader.data import Example
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.errors import ContextOverflowError
from fastreader.noise.attention import AnswerAttention, layout_attention
from fastreader.noise.layouts import Layout
from fastreader.noise.prompt import NoiseTemplate
from fastreader.study.cached_reader import CachedReader
from fastreader.study.config import Study
from fastreader.study.folder import ATTENTION, RunFolder
from fastreader.study.methods.noise import Noise, layout_of
from fastreader.study.registry import make

if TYPE_CHECKING:
    from fastreader.reader.reader import Reader


def lacks_attention(study: Study, run: RunFolder, examples: Sequence[Example], name: str) -> bool:
    """Whether a reader's answers are there whose attention is wanted and not in the run yet."""
    if not study.noise.attention:
        return False
    wanted = _Wanted(study, run, name)
    return any(wanted.of(example) for example in examples[: study.noise.attention])


def keep_attention(study: Study, run: RunFolder, reader: CachedReader, examples: Sequence[Example], name: str) -> None:
    """Write, for each of the first `study.noise.attention` questions, the attention of each layout's answer.

    The answers are the replies in the run's rows, a row each, after the passages that the rows say were read: laid out
    anew, a study that got more questions would draw others. A reply without a token has a row that says so, and so has
    one that does not fit behind its prompt with its last token, which is read here and was not when it was written.
    Layouts without passages have none.
    """
    wanted = _Wanted(study, run, name)
    tree = reader.tree_reader()
    with ResultLog(run.file(ATTENTION), resume=True) as log:
        for example in examples[: study.noise.attention]:
            laid: dict[str, tuple[Layout, str]] = {}
            for label, trace in wanted.of(example).items():
                if trace["reply"].strip():
                    laid[label] = layout_of(trace, example), trace["reply"]
                else:
                    log.append(*wanted.row(example, label, None, "the reply is empty"))
            if not laid:
                continue
            template = wanted.methods[next(iter(laid))].template
            for label, found in _looked(tree, example.question, laid, template, study.max_batch_tokens).items():
                if isinstance(found, ContextOverflowError):
                    log.append(*wanted.row(example, label, None, str(found)))
                else:
                    log.append(*wanted.row(example, label, found.to_dict(), None))


def _looked(
    reader: Reader,
    question: str,
    laid: dict[str, tuple[Layout, str]],
    template: NoiseTemplate,
    max_batch_tokens: int | None,
) -> dict[str, AnswerAttention | ContextOverflowError]:
    """Attention of each layout's answer in one pass; where one is too long, of each alone."""
    try:
        return {**layout_attention(reader, question, laid, template=template, max_batch_tokens=max_batch_tokens)}
    except ContextOverflowError as error:
        if len(laid) == 1:
            return dict.fromkeys(laid, error)
    alone = (_looked(reader, question, {label: one}, template, max_batch_tokens) for label, one in laid.items())
    return {label: found for each in alone for label, found in each.items()}


class _Wanted:
    """Replies to look at that have no row yet."""

    def __init__(self, study: Study, run: RunFolder, reader: str) -> None:
        self._reader = reader
        self.methods: dict[str, Noise] = {
            config.label: method
            for config in study.methods
            if isinstance(method := make(config, study), Noise) and (method.spec.gold or method.spec.retrieved)
        }
        chosen = study.noise.attention_layouts
        if chosen:
            self.methods = {label: method for label, method in self.methods.items() if method.spec.name in chosen}
        self._traces: dict[tuple[str | None, str], dict[str, Any]] = {
            (row["question_id"], row["method"]): row["trace"]
            for row in run.rows()
            if row["reader"] == reader and row["seed"] == study.seeds[0] and row["answer"] is not None
            if row["method"] in self.methods
        }
        file = run.file(ATTENTION)
        self._done = {row["id"] for row in iter_results(file)} if file.is_file() else set()

    def of(self, example: Example) -> dict[str, dict[str, Any]]:
        """By method, how the question was answered."""
        return {
            label: self._traces[example.id, label]
            for label in self.methods
            if (example.id, label) in self._traces and self._key(example, label) not in self._done
        }

    def row(
        self, example: Example, label: str, attention: dict[str, Any] | None, error: str | None
    ) -> tuple[str, dict[str, Any]]:
        """Key and row of one reply."""
        row = {
            "question_id": example.id,
            "method": label,
            "layout": self.methods[label].spec.name,
            "reader": self._reader,
            "error": error,
            "attention": attention,
        }
        return self._key(example, label), row

    def _key(self, example: Example, label: str) -> str:
        return json.dumps([example.id, label, self._reader], ensure_ascii=False)
