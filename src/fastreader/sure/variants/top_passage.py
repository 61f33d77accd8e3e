"""Answer from one passage, chosen by its similarity to a summary or otherwise (the paper's Table 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from fastreader.core.checked import checked
from fastreader.data import Passage
from fastreader.data.arguments import make_passages
from fastreader.reader.programs.requests import Program
from fastreader.sure.program import sure
from fastreader.sure.replies import short_answer
from fastreader.sure.settings import Settings
from fastreader.sure.task import Task
from fastreader.sure.types import Result
from fastreader.sure.variants.ablations import answer_from, generic_summary
from fastreader.sure.variants.method import Variant, finished
from fastreader.sure.variants.weights import encoder_similarity

Chooser = Callable[[Task], Program[list[int]]]


def method(name: str, about: str, order: Chooser, takes: tuple[str, ...], *, rereads: bool = False) -> Variant:
    """Return the method "top1_<name>", which answers from the first passage of an order."""

    def program(task: Task) -> Program[Result]:
        indices = yield from order(task)
        reply = yield from answer_from(replace(task, passages=[task.passages[indices[0]]]))
        return finished(task, short_answer(reply), order=indices, reply=reply)

    return Variant(f"top1_{name}", f"base over one passage, {about}", program, ("passages",), takes, rereads)


def by_retriever(task: Task) -> Program[list[int]]:
    """Return the order in which the passages came."""
    yield from ()  # no request
    return list(range(len(task.passages)))


def by_question(task: Task) -> Program[list[int]]:
    """Order by similarity to the question."""
    yield from ()
    return rerank_passages(task.question, task.passages, task.settings)


def by_generic_summary(task: Task) -> Program[list[int]]:
    """Order by similarity to a summary that depends on no candidate, or with a note to the question if it is empty."""
    summary = yield from generic_summary(task)
    return _by_summary(task, summary)


def by_sure(task: Task) -> Program[list[int]]:
    """Order by similarity to the summary of SuRe's answer, or with a note to the question without a summary."""
    result = yield from sure(task)
    return _by_summary(task, result.rationale)


def _by_summary(task: Task, summary: str) -> list[int]:
    if not summary:
        task.notes.append("there is no summary to compare passages with; the question was used instead")
    return rerank_passages(summary or task.question, task.passages, task.settings)


@checked
def rerank_passages(text: str, passages: Iterable[Passage | str], settings: Settings | None = None) -> list[int]:
    """Return the indices of the passages by cosine similarity of sentence embeddings to `text`, the nearest first.

    Args:
        text: a text, for example the `rationale` of a `SureResult`.
        passages: passages or texts.
        settings: decides the encoder.

    Raises:
        InputError: if `passages` holds anything else.
    """
    found = make_passages(passages)
    if not found:
        return []
    similarity = encoder_similarity(settings or Settings(), text, found)
    order: list[int] = np.argsort(-similarity, kind="stable").tolist()
    return order
