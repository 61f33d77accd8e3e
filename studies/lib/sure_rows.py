"""The rows of the study of SuRe: a method followed by its own options, such as "sure@5+mode=generate".

"@N" reads the first N passages. "+NAME=VALUE" sets a setting of `sure.Settings`; "+shots=N" shows N answered questions;
"+judge=MODEL" uses another reader for validity and ranking.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastreader import Example, sure
from fastreader.core.protocol import ReaderProtocol
from fastreader.errors import InputError
from fastreader.reader.programs.readers import Readers
from fastreader.sure.pipeline import SureJob
from fastreader.sure.variants import find_method

ROWS = [
    *("no_retrieval", "base@1", "base@5", "base", "base@20", "base_few_shot+shots=1", "base_few_shot+shots=5"),
    *("summaries", "ranking", "validity", "sure@1", "sure@5", "sure", "sure@20", "oracle"),
    *("sure+mode=generate", "sure+k=3", "sure+candidates_prompt=passages_first"),
    *("sure_few_shot+shots=1", "sure_few_shot+shots=5"),
    *("multiple_choice", "generic_summary", "chain_of_thought", "self_verification", "selection_inference"),
    *("rerank", "replug", "top1_retriever", "top1_question", "top1_reader", "top1_generic", "top1_sure"),
]


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        name: as given.
        method: with its "@N".
        options: its own settings.
        shots: number of answered questions shown.
        judge: model of the reader that judges; None uses the study's.
    """

    name: str
    method: str
    options: dict[str, Any]
    shots: int = 0
    judge: str | None = None

    def job(
        self,
        example: Example,
        settings: sure.Settings,
        readers: Readers,
        answered: Sequence[Example],
        load: Callable[[str], ReaderProtocol],
    ) -> SureJob:
        """Return the work on one question.

        Args:
            example: the question with the passages that the row reads.
            settings, readers: as in the study.
            answered: questions to show; the row uses the last `shots`.
            load: loads a reader by name.
        """
        shots = [(e.question, e.answers[0]) for e in answered[len(answered) - self.shots :]]
        own = dataclasses.replace(settings, **self.options, shots=shots)
        if self.judge is not None:
            judge = load(self.judge)
            readers = readers.with_stages(judge, ("validity", "ranking"))
        return SureJob(example, self.method, own, readers)

    def count(self, passages: int) -> int:
        """Return the number of passages that it reads in a study with `passages`."""
        return int(self.method.partition("@")[2] or passages)


def parse_row(name: str) -> Row:
    """Parse a row's name.

    Raises:
        InputError: if the method, a setting or a value is invalid, or a few-shot method lacks its "+shots=N".
    """
    method, *parts = name.split("+")
    found = find_method(method)
    options: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise InputError(f"{name}: expected +NAME=VALUE after the method, got +{part}")
        options[key] = int(value) if value.isdecimal() else value
    shots, judge = options.pop("shots", 0), options.pop("judge", None)
    if not isinstance(shots, int) or ("shots" in found.needs and not shots):
        raise InputError(f"{name}: expected the number of answered questions to show, such as {method}+shots=5")
    sure.settings.make_settings(None, options)
    return Row(name, method, options, shots, judge)
