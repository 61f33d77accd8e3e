"""Answering from one passage, chosen by its similarity to a summary or otherwise (the paper's Table 4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from fastreader.data import Passage
from fastreader.data.arguments import make_passages
from fastreader.reader.programs.requests import Program
from fastreader.sure.program import sure
from fastreader.sure.replies import short_answer
from fastreader.sure.settings import Settings
from fastreader.sure.task import Task
from fastreader.sure.types import Result
from fastreader.sure.variants.ablations import generic_summary
from fastreader.sure.variants.base import answer_from
from fastreader.sure.variants.method import finished
from fastreader.sure.variants.reasoning import ranked_passages
from fastreader.sure.variants.weights import encoder_similarity

NO_SUMMARY = "there is no summary to compare passages with; the question took its place"
Chooser = Callable[[Task], Program[list[int]]]


def from_top_passage(order: Chooser) -> Callable[[Task], Program[Result]]:
    """A method that answers from the first passage of an order."""

    def program(task: Task) -> Program[Result]:
        indices = yield from order(task)
        reply = yield from answer_from(replace(task, passages=[task.passages[indices[0]]]))
        return finished(task, short_answer(reply), order=indices, reply=reply)

    return program


def by_retriever(task: Task) -> Program[list[int]]:
    """The order the passages came in."""
    yield from ()  # it asks nothing
    return list(range(len(task.passages)))


def by_question(task: Task) -> Program[list[int]]:
    """By similarity to the question."""
    yield from ()
    return rerank_passages(task.question, task.passages, task.settings)


def by_generic_summary(task: Task) -> Program[list[int]]:
    """By similarity to a summary that no candidate conditions; where it is empty, to the question, with a note."""
    summary = yield from generic_summary(task)
    if not summary:
        task.notes.append(NO_SUMMARY)
    return rerank_passages(summary or task.question, task.passages, task.settings)


def by_sure(task: Task) -> Program[list[int]]:
    """By similarity to the summary of SuRe's answer; where there is none, to the question, with a note."""
    result = yield from sure(task)
    if not result.rationale:
        task.notes.append(NO_SUMMARY)
    return rerank_passages(result.rationale or task.question, task.passages, task.settings)


def by_reader(task: Task) -> Program[list[int]]:
    """By the reader's own judgement whether each helps."""
    order = yield from ranked_passages(task)
    return order


def rerank_passages(text: str, passages: Iterable[Passage | str], settings: Settings | None = None) -> list[int]:
    """Indices of the passages by cosine similarity of sentence embeddings to `text`, the nearest first.

    Args:
        text: for example the `rationale` of a `SureResult`.
        passages: to be ordered; passages or plain texts.
        settings: says which encoder.

    Raises:
        InputError: something else is among the passages.
    """
    found = make_passages(passages)
    if not found:
        return []
    similarity = encoder_similarity(settings or Settings(), text, found)
    order: list[int] = np.argsort(-similarity, kind="stable").tolist()
    return order
