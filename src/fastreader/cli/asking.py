"""Answers for `fastreader ask`: a registered method runs on groups of questions, and a file of results can resume."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType

from fastreader.cli.inputs import named_after
from fastreader.cli.options import QuestionArguments
from fastreader.cli.screen import Text
from fastreader.cli.tables.passages import ranked_table
from fastreader.cli.tables.sure import explain as explain_stages
from fastreader.core.checks import check_text, expect, require
from fastreader.core.progress import track
from fastreader.core.protocol import ReaderProtocol
from fastreader.data import Example
from fastreader.data.answer_cache import Cache
from fastreader.data.arguments import keyed
from fastreader.data.fingerprints import digest, file_digest, reader_identity
from fastreader.data.result_log import ResultLog, iter_results
from fastreader.errors import FastreaderError, InputError, MissingExtraError
from fastreader.moi.calibration.pool import Pool
from fastreader.moi.quantities.observations import Observations
from fastreader.moi.reorder.answer import MoiAnswer
from fastreader.reader.programs.readers import Readers
from fastreader.reader.programs.requests import Program
from fastreader.reader.programs.scheduler import ProgramOutcome, run
from fastreader.statistics.measures.answers import contained
from fastreader.study.cached_reader import CachedReader
from fastreader.study.cells import Cell, direct_cost
from fastreader.study.config import MethodConfig, Study
from fastreader.study.contents import calibrations, example_digest
from fastreader.study.dry_run import DryCost, DryModels, dry_costs
from fastreader.study.method import Answered, Batch, NotApplicable, StudyMethod
from fastreader.study.methods.moi import MoiMethod
from fastreader.study.methods.reading import template_of
from fastreader.study.methods.sure import SureMethod
from fastreader.study.registry import FAMILIES, family_of, make, names
from fastreader.sure.types import MethodResult, Result, result_from_dict

if TYPE_CHECKING:
    from fastreader.study.dry_reader import DryReader

_FLAGS = {"k": "num-candidates", "weights": "passage-weights"}  # of options whose flag has another name
OnError = Callable[[Example, FastreaderError], object]


@dataclass(frozen=True)
class Answer:
    """One answer.

    Attributes:
        row: its JSON values.
        result: the method's result; None if the answer comes from a file that holds only a part of it.
        answers: the right ones, if the question has them.
    """

    row: dict[str, Any]
    result: Any
    answers: Sequence[str] = ()

    @property
    def uncalibrated(self) -> bool:
        """Whether MoI answered without a calibration."""
        return isinstance(self.result, MoiAnswer) and self.result.ranked.bias_source.startswith("none")

    @property
    def right(self) -> bool | None:
        """Whether the answer contains a right one, or None if none is known."""
        return contained(self.row["answer"] or "", self.answers) > 0 if self.answers else None

    def line(self) -> RenderableType:
        """Return the question, and below it the answer and whether it is right."""
        answer = self.row["answer"]
        text = Text(f"{self.row['question']}\n  ", style="bold")
        text.append(answer or "(no answer)", style="yellow" if self.right is False or not answer else "green")
        if self.right is not None:
            text.append("  right" if self.right else f"  wrong; right: {' / '.join(self.answers)}", style="dim")
        return text

    def explain(self) -> RenderableType:
        """Return the answer with all that led to it."""
        if self.result is None:
            return self.line()
        if isinstance(self.result, MoiAnswer):
            return Group(ranked_table(self.result.ranked), self.line())
        return explain_stages(self.result)


@dataclass(frozen=True)
class Asking:
    """A method of the registry with its options, as given on the command line.

    Attributes:
        name: the method, with "@N" if it reads only the first N passages.
        config: the method and its options.
        study: a study of this method only.
        method: the method.
        first: N; None for all passages.
    """

    name: str
    config: MethodConfig
    study: Study
    method: StudyMethod
    first: int | None

    @classmethod
    def of(cls, name: str, flags: Mapping[str, Any], template: Path | None = None) -> Asking:
        """Check a method and its options that are not None.

        Args:
            name: the method, with "@N" or without.
            flags: options of the method by name.
            template: a file of the method's prompt texts; None takes the default ones.

        Raises:
            InputError: if there is no such method, or an option does not apply to it or is invalid.
        """
        plain, at, count = name.partition("@")
        expect(not at or (count.isdecimal() and int(count) > 0), "--method", "a number of passages after @", name)
        given = {option: value for option, value in flags.items() if value is not None}
        _check_applicable(plain, given)
        if "shots" in given:
            given["shots"] = _shots(given["shots"])
        values = {"data": "-", "methods": [{"method": plain, **given}], **({"passages": int(count)} if at else {})}
        if template is not None:
            values |= _texts_of(plain, str(template))
        study = Study.of(values, f"--method {name}")
        config = study.methods[0]
        try:
            return cls(name, config, study, _pooling(make(config, study)), int(count) if at else None)
        except InputError as error:
            option, colon, problem = str(error).partition(":")
            if colon and option in given:
                raise InputError(f"{_flag(option)}:{problem}") from error
            raise

    def recall(self, rows: Iterable[Mapping[str, Any]], reader: ReaderProtocol) -> None:
        """Give MoI's pool the scores in earlier answers, so that a resumed run answers as if it had not stopped."""
        if not isinstance(self.method, MoiMethod) or (pool := self.method.options.get("pool")) is None:
            return
        about, template = reader.describe(), template_of(self.study).digest()
        for row in rows:
            if kept := row["ranked"].get("pooled"):
                passages = len(kept["qg"])
                pool.add(Observations(**kept, passages=passages, reader=about, template=template, id=row["id"]))

    def facts(self, reader: ReaderProtocol) -> dict[str, Any]:
        """Return all that results depend on, so that a file of results resumes only under the same settings."""
        about, options = reader.describe(), self.config.options
        bias = options.pop("bias", None)
        tables = {"noise": self.study.noise, "eor": self.study.eor}  # texts of a template
        return {
            "method": self.name,
            "options": self.method.settings.to_dict() if isinstance(self.method, SureMethod) else options,
            "bias": calibrations(self.study, about) if bias is None else file_digest(bias),
            "template": template_of(self.study).digest(),
            "reader": reader_identity(about),
            **{name: digest(table.model_dump(mode="json")) for name, table in tables.items() if table != type(table)()},
        }


def answers(
    reader: ReaderProtocol,
    questions: Iterator[Example],
    asking: Asking,
    *,
    batch_size: int = 8,
    output: Path | None = None,
    resume: bool = False,
    progress: bool | None = None,
    on_error: OnError | None = None,
) -> Iterator[Answer]:
    """Yield the answers in the questions' order, and take from `output` those that it holds.

    Args:
        reader: answers.
        questions: read in groups; a noise layout, which draws from other questions, reads all first.
        asking: the method.
        batch_size: number of questions that run together.
        output: a file that every answer is appended to. The reader's replies are cached in "<output>.cache" until the
            end, so that a run that is killed loses no reply.
        resume: continue `output`.
        progress: show a bar on standard error; None shows it on a terminal.
        on_error: called for each question that fails, which is then left out; None raises the error.

    Raises:
        InputError: if `ResultLog` cannot open the output; or the error of a question, with its id.
    """
    with ExitStack() as stack:
        log, held, cache = None, {}, Path(":memory:")
        if output is not None:
            log = stack.enter_context(ResultLog(output, settings=asking.facts(reader), resume=resume))
            held = {row["id"]: row for row in iter_results(output)}
            asking.recall(held.values(), reader)
            cache = output.with_name(f"{output.name}.cache")
        cached = CachedReader(reader, stack.enter_context(Cache(cache)))
        advance = stack.enter_context(track("answering", None, "questions", progress))
        examples = keyed(questions)
        everything: list[Example] = []
        if asking.config.method.startswith("noise:"):
            everything = list(examples)
            examples = iter(everything)
        while group := list(itertools.islice(examples, batch_size)):
            new = [e for e in group if log is None or not log.holds(str(e.id), example_digest(e))]
            found = {e.id: one for e, one in zip(new, _run(cached, asking, new, everything), strict=True)}
            for example in new:
                answer = found[example.id]
                if log is not None and isinstance(answer, Answer):
                    values = {key: value for key, value in answer.row.items() if key != "id"}
                    log.append(str(example.id), values, example=example_digest(example))
            for example in group:
                if example.id in found:
                    answer = found[example.id]
                else:
                    row = held[example.id]
                    answer = Answer(row, None if "ranked" in row else result_from_dict(row))
                if isinstance(answer, Answer):
                    yield replace(answer, answers=example.answers)
                elif on_error is None:
                    raise _named(example, answer)
                else:
                    on_error(example, answer)
                advance(1)
    if output is not None:
        cache.unlink()


def dry(reader: DryReader, questions: Iterable[Example], make: Callable[[], Asking], batch_size: int) -> DryCost:
    """Return what the answers would cost, without loading weights.

    Args:
        reader: with the tokenizer.
        questions: all of them.
        make: makes the method, each time a new one, since MoI keeps what it has scored.
        batch_size: see `answers`.
    """
    asking = make()
    examples = _read_by(asking, list(keyed(questions)))
    models = DryModels(lambda name: reader)

    def cells() -> list[Cell]:
        made = make()
        return [Cell(made.config.model_copy(update={"name": made.name}), made.method, 0)]

    return dry_costs(models, reader.name, examples, cells, batch_size=batch_size)[0]


def _read_by(asking: Asking, examples: list[Example]) -> list[Example]:
    """Return the examples with the passages that the method reads: MoI lists those that it does not read."""
    cut = asking.first is not None and not asking.config.method.startswith("moi")
    return [replace(e, passages=e.passages[: asking.first]) for e in examples] if cut else examples


def _run(
    reader: CachedReader, asking: Asking, examples: list[Example], everything: list[Example]
) -> list[Answer | FastreaderError]:
    """Answer a group of questions together."""
    read = _read_by(asking, examples)
    programs = asking.method.programs(Batch(reader, read, 0, everything, _no_model))
    readers = Readers(reader)
    outcomes = run([(_checked(e, program), readers) for e, program in zip(read, programs, strict=True)])
    return [_answer(asking, e, readers, outcome) for e, outcome in zip(read, outcomes, strict=True)]


def _no_model(name: str) -> CachedReader:
    raise InputError(f"model: expected none, since --model answers and ranks, got {name!r}")


def _checked(example: Example, program: Program[Answered]) -> Program[Answered]:
    """Return the program, which fails at its first step if the question is blank."""
    check_text("question", example.question)
    answered = yield from program
    return answered


def _answer(
    asking: Asking, example: Example, readers: Readers, outcome: ProgramOutcome[Answered]
) -> Answer | FastreaderError:
    answered = outcome.value
    if answered is None:
        assert outcome.error is not None
        return outcome.error
    result = answered.result
    if isinstance(result, MoiAnswer):
        return Answer({**result.to_dict(), "reader": readers.default.describe()}, result)
    direct = direct_cost(answered)
    facts: dict[str, Any] = {
        "costs": {**outcome.costs, **({"direct": direct} if direct.total_tokens else {})},
        "id": example.id,
        "method": asking.name,
        "readers": readers.describe(),
    }
    if not isinstance(result, Result):  # results of other types hold no costs; the trace has what leads to the answer
        result = MethodResult(
            question=example.question,
            answer=answered.text,
            num_passages=len(example.passages),
            details=answered.trace,
            **facts,
        )
    else:
        result = replace(result, **facts)
    return Answer(result.to_dict(), result)


def _named(example: Example, error: FastreaderError) -> FastreaderError:
    """Return the error with the question's id in its message."""
    if isinstance(error, MissingExtraError):
        return error
    kind = InputError if isinstance(error, NotApplicable) else type(error)
    named = kind(named_after(example, error))
    named.__cause__ = error
    return named


def _texts_of(method: str, template: str) -> dict[str, Any]:
    """Return the values of a study whose method has a template's texts."""
    family = method.partition(":")[0]
    tables = {"sure": "template", "noise": "template", "eor": "texts"}
    return {family: {tables[family]: template}} if family in tables else {"template": template}


def _check_applicable(method: str, given: Mapping[str, Any]) -> None:
    """Check that the method exists and that the options apply to it, or name the methods that an option is for."""
    family, variant = family_of(method)
    every = [(other, name) for other in FAMILIES.values() for name in names(other)]
    for option in given:
        users = ", ".join(name for other, name in every if option in other.options(name.partition(":")[2]))
        applies = option in family.options(variant)
        require(applies, f"{_flag(option)}: does not apply to --method {method}, only to {users}")


def _pooling(method: StudyMethod) -> StudyMethod:
    """Return the method, with a pool if it is MoI without a bias, so that it learns one from the questions."""
    if not isinstance(method, MoiMethod) or method.bias is not None:
        return method
    return replace(method, options={**method.options, "pool": Pool()})


def _shots(file: Path) -> list[tuple[str, str]]:
    answered = list(QuestionArguments(file).read())
    for example in answered:
        require(bool(example.answers), f"--shots: {file} has no answer for the question {example.question!r}")
    return [(example.question, example.answers[0]) for example in answered]


def _flag(option: str) -> str:
    return f"--{_FLAGS.get(option, option.replace('_', '-'))}"
