"""sure: SuRe, and the variants of `fastreader.sure.variants.METHODS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastreader.core.checks import check_keys, check_text, expect
from fastreader.data import Example
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import Program
from fastreader.study.method import Answered, Batch, Family, NotApplicable, StudyMethod
from fastreader.sure.settings import Settings, make_settings
from fastreader.sure.task import STAGES, Task
from fastreader.sure.templates import SureTemplate, VariantTemplate
from fastreader.sure.types import Result, SureResult
from fastreader.sure.variants import METHODS, Variant, find_method

_SAMPLED = ("self_verification",)


@dataclass(frozen=True)
class SureMethod(StudyMethod):
    """A method of `METHODS` with its settings.

    Attributes:
        method, settings: as in `sure.ask`.
        stages: names of readers that serve a stage instead of the study's, by stage.
    """

    method: Variant
    settings: Settings
    stages: Mapping[str, str] = field(default_factory=dict)

    @property
    def named_readers(self) -> tuple[str, ...]:
        """The readers of single stages."""
        return tuple(dict.fromkeys(self.stages.values()))

    def readers(self, batch: Batch) -> Readers:
        """Return the study's reader, and the readers of single stages."""
        return Readers(batch.reader, {stage: batch.models(name) for stage, name in self.stages.items()}, STAGES)

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
        readers, answers = self.readers(batch), list(example.answers)
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
    stages = given.pop("readers", {})
    expect(isinstance(stages, dict), "readers", "names of readers by stage", stages)
    check_keys("readers", stages, STAGES)
    for stage, name in stages.items():
        check_text(f"readers.{stage}", name)
    return SureMethod(find_method(variant or "sure"), make_settings(None, given), stages)


SURE = Family(
    "sure",
    _make,
    lambda variant: find_method(variant or "sure").takes,
    {"" if name == "sure" else name: f"SuRe: {method.about}." for name, method in METHODS.items()},
    parsed=True,
)
