"""sure: SuRe, and the variants of `fastreader.sure.variants.METHODS`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fastreader.data import Example
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import Program
from fastreader.study.method import Answered, Batch, Family, NotApplicable, StudyMethod
from fastreader.sure.settings import Settings, make_settings
from fastreader.sure.task import Task
from fastreader.sure.templates import SureTemplate, VariantTemplate
from fastreader.sure.types import Result, SureResult
from fastreader.sure.variants import METHODS, Variant, find_method

_SAMPLED = ("self_verification",)


@dataclass(frozen=True)
class SureMethod(StudyMethod):
    """A method of `METHODS` with its settings."""

    method: Variant
    settings: Settings

    @property
    def draws(self) -> bool:
        """Whether the seed matters."""
        return self.method.name.partition("@")[0] in _SAMPLED

    def _answer(self, batch: Batch, example: Example) -> Program[Answered]:
        settings = replace(self.settings, seed=batch.seed)
        there = {"passages": example.passages, "shots": settings.shots, "answers": example.answers}
        for need in self.method.needs:
            if not there[need]:
                raise NotApplicable(f"{self.method.name} needs {need}; the question has none")
        readers, answers = Readers(batch.reader), list(example.answers)
        task = Task(example.question.strip(), list(example.passages), settings, readers, answers)
        if self.method.reads and not task.passages:
            task.notes.append("there are no passages; the answer is from memory")
        result = yield from self.method.program(task)
        return Answered(result.answer, _trace(result), result=result)


def _trace(result: Result) -> dict[str, Any]:
    left_out = {"question", "answer", "costs", "id", "method", "readers", "mode", "candidates_prompt", "use"}
    values = {k: v for k, v in result.to_dict().items() if k not in left_out}
    values["order"] = list(range(values.pop("num_passages")))
    return values if isinstance(result, SureResult) else {**values.pop("details"), **values}


def _make(variant: str, options: dict[str, Any], study: Any) -> SureMethod:
    given = {**study.sure, **options}
    for name, kind in (("template", SureTemplate), ("variant_template", VariantTemplate)):
        if isinstance(given.get(name), dict):
            given[name] = kind.from_dict(given[name])
    return SureMethod(find_method(variant or "sure"), make_settings(None, given))


SURE = Family(
    "sure",
    _make,
    lambda variant: find_method(variant or "sure").takes,
    {"" if name == "sure" else name: f"SuRe: {method.about}." for name, method in METHODS.items()},
    parsed=True,
)
