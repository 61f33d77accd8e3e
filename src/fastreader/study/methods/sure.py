"""sure: SuRe, and the variants of `fastreader.sure.variants.METHODS`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastreader.data import Example
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import Program
from fastreader.study.method import Answered, Batch, Family, NotApplicable
from fastreader.sure.settings import Settings, make_settings
from fastreader.sure.task import Task
from fastreader.sure.types import Result, SureResult
from fastreader.sure.variants import METHODS, Method, find_method

_SAMPLED = ("self_verification",)


@dataclass(frozen=True)
class Sure:
    """A method of `METHODS` with its settings."""

    method: Method
    settings: Settings

    @property
    def draws(self) -> bool:
        """Whether the seed matters."""
        return self.method.name.partition("@")[0] in _SAMPLED

    def programs(self, batch: Batch) -> list[Program[Answered]]:
        """Return the programs; see `StudyMethod.programs`."""
        settings = replace(self.settings, seed=batch.seed)
        readers = Readers(batch.reader)
        return [self._program(example, settings, readers) for example in batch.examples]

    def _program(self, example: Example, settings: Settings, readers: Readers) -> Program[Answered]:
        there = {"passages": example.passages, "shots": settings.shots, "answers": example.answers}
        for need in self.method.needs:
            if not there[need]:
                raise NotApplicable(f"{self.method.name} needs {need}; the question has none")
        task = Task(example.question.strip(), list(example.passages), settings, readers, list(example.answers))
        if self.method.reads and not task.passages:
            task.notes.append("there are no passages; the answer is from memory")
        result = yield from self.method.program(task)
        return Answered(result.answer, _trace(result), result=result)


def _trace(result: Result) -> dict[str, Any]:
    left_out = {"question", "answer", "costs", "id", "method", "readers", "mode", "candidates_prompt", "use"}
    values = {k: v for k, v in result.to_dict().items() if k not in left_out}
    values["order"] = list(range(values.pop("num_passages")))
    return values if isinstance(result, SureResult) else {**values.pop("details"), **values}


def _make(variant: str, options: dict[str, Any], study: Any) -> Sure:
    return Sure(find_method(variant or "sure"), make_settings(None, {**study.sure, **options}))


def _variants() -> Sequence[str]:
    return ["", *(name for name in METHODS if name != "sure")]


def _options(variant: str) -> Collection[str]:
    return find_method(variant or "sure").takes


SURE = Family(
    "sure", "candidates, a summary for each, and a vote (SuRe), or a variant of it", _variants, _make, _options, True
)
