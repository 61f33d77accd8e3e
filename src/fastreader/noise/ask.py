"""Run a reader over all layouts of many questions at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import check_int, expect, require
from fastreader.core.protocol import ReaderProtocol, Results, TextOrTokens
from fastreader.core.tree import PrefixTree, TreeStats
from fastreader.data.record import Record, rebuilt
from fastreader.noise.distraction import effects
from fastreader.noise.labels import same_text
from fastreader.noise.layouts import Layout, LayoutSpec, MissingPassages, layout
from fastreader.noise.materials import Materials
from fastreader.noise.prompt import ContextBudget, NoiseTemplate
from fastreader.statistics.measures.answers import contained

MAX_NEW_TOKENS = 15  # as in the paper


@checked_methods
@dataclass(frozen=True)
class NoiseAnswer:
    """A reader's reply under one layout.

    Attributes:
        text: the reply.
        right: 1.0 if a normalised answer is a substring of the normalised reply, else 0.0.
        no_answer: whether the reply is that no document holds the answer.
        kinds: kinds of the passages, in reading order.
        prompt_tokens: number of tokens of the prompt.
        finish_reason: see `Generation`.
        measures: further measures of the reply by name, such as a study's `order_range:READER`; `ask` adds
            "distraction" on request.
    """

    text: str
    right: float
    no_answer: bool
    kinds: tuple[str, ...]
    prompt_tokens: int
    finish_reason: str
    measures: dict[str, float] = field(default_factory=dict)


@checked_methods
@dataclass(frozen=True)
class NoiseAnswers(Record):
    """One question under all layouts, each in exactly one of `answers`, `over_long` and `missing`.

    Attributes:
        id: key of the question.
        cluster: digest of the gold passage; None if the question has none.
        answers: reply by layout.
        over_long: for layouts whose prompt leaves no room in the context for the reply, the prompt's length in tokens.
            They are not run, and do not count as wrong answers.
        missing: for layouts whose passages the question lacks, the reason.
    """

    id: str
    cluster: str | None
    answers: dict[str, NoiseAnswer] = field(default_factory=dict)
    over_long: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return all values except the id as JSON."""
        row = super().to_dict()
        del row["id"]
        return row

    @classmethod
    def from_dict(cls, id: str, row: dict[str, Any]) -> NoiseAnswers:
        """Create from the result of `to_dict`.

        Raises:
            InputError: if a key is missing, or a value has another type.
        """
        found: NoiseAnswers = rebuilt(cls, {**row, "id": id}, f"NoiseAnswers: {id!r} is not a row of a noise study")
        return found


@dataclass(frozen=True)
class _PromptRequest:
    question: int
    layout: Layout
    prompt: TextOrTokens


@checked
def ask(
    reader: ReaderProtocol,
    materials: Sequence[Materials],
    layouts: Iterable[str],
    *,
    template: NoiseTemplate | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    stop: Sequence[str] = (),
    repetition_penalty: float = 1.0,
    distraction: bool = False,
    context: int | None = None,
    max_batch_tokens: int | None = None,
    progress: bool | None = None,
) -> Results[NoiseAnswers]:
    """Answer every question under every layout greedily, in one generation.

    Args:
        reader: the reader.
        materials: the questions with their passages.
        layouts: names of layouts, see `layouts`.
        template: the prompt's texts; the default `NoiseTemplate()`.
        max_new_tokens: maximum length of a reply, in tokens.
        stop: texts that end a reply; the paper's text names none, its code stops at a line break.
        repetition_penalty: see `Reader.generate`; the paper's text names none, its code has 1.1.
        distraction: also measure the largest distracting effect of a layout's passages without the answer, see
            `distracting_effects`, into `NoiseAnswer.measures`. Each passage of a question is scored once.
        context: maximum length of prompt and reply together, in tokens; None takes the reader's `max_length`, if any.
            Longer prompts are reported, see `NoiseAnswers`.
        max_batch_tokens, progress: same as `ReaderProtocol.generate`.

    Returns:
        One result for each of `materials`; with `.stats`, `.passes` and `.seconds`.

    Raises:
        InputError: if there is no layout, a layout is unknown or repeated, or a number is out of range.
    """
    template = template or NoiseTemplate()
    results, requests = _requests(reader, materials, layouts, template, max_new_tokens, context)
    if not requests:
        return Results(results, TreeStats(0, 0, 0, 0), passes=0)
    # readers of other kinds need not know it
    penalty: dict[str, Any] = {} if repetition_penalty == 1 else {"repetition_penalty": repetition_penalty}
    generated = reader.generate(
        [request.prompt for request in requests],
        max_new_tokens=max_new_tokens,
        stop=stop,
        **penalty,
        max_batch_tokens=max_batch_tokens,
        progress=progress,
    )
    measures: list[dict[str, float]] = [{} for _ in requests]
    stats = TreeStats(0, 0, 0, 0)
    if distraction:
        measures, stats = _distraction(reader, materials, requests, template, max_batch_tokens)
    for request, (generation,), measured in zip(requests, generated, measures, strict=True):
        results[request.question].answers[request.layout.name] = NoiseAnswer(
            text=generation.text,
            right=contained(generation.text, materials[request.question].answers),
            no_answer=template.refused(generation.text),
            kinds=tuple(str(kind) for kind in request.layout.kinds),
            prompt_tokens=generation.prompt_tokens,
            finish_reason=generation.finish_reason,
            measures=measured,
        )
    return Results(results, generated.stats + stats, generated.passes, generated.seconds)


def _distraction(
    reader: ReaderProtocol,
    materials: Sequence[Materials],
    requests: Sequence[_PromptRequest],
    template: NoiseTemplate,
    max_batch_tokens: int | None,
) -> tuple[list[dict[str, float]], TreeStats]:
    """Return the largest distracting effect of each layout's passages without the answer, and the tokens."""
    read = [
        {(request.question, *same_text(passage)): passage for passage in request.layout.without_answer}
        for request in requests
    ]
    every = {key: passage for own in read for key, passage in own.items()}
    if not every:
        return [{} for _ in requests], TreeStats(0, 0, 0, 0)
    asked = [(materials[question].question, passage) for (question, *_), passage in every.items()]
    values, stats = effects(reader, asked, template, max_batch_tokens)
    effect = dict(zip(every, values.tolist(), strict=True))
    return [{"distraction": max(effect[key] for key in own)} if own else {} for own in read], stats


@checked
def ask_cost(
    reader: ReaderProtocol,
    materials: Sequence[Materials],
    layouts: Iterable[str],
    *,
    template: NoiseTemplate | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    context: int | None = None,
) -> TreeStats:
    """Count the total and computed tokens of `ask`, without running the model.

    The prompts of each question form one tree; every reply counts with `max_new_tokens`, its maximum, in both numbers.

    Raises:
        InputError: as `ask`; or if the reader's prompts are not token ids.
    """
    results, requests = _requests(reader, materials, layouts, template or NoiseTemplate(), max_new_tokens, context)
    total = TreeStats(0, 0, 0, 0)
    for question in range(len(results)):
        prompts = [request.prompt for request in requests if request.question == question]
        counted = not any(isinstance(prompt, str) for prompt in prompts)
        require(counted, "ask_cost: expected prompts of token ids, which can be counted, got text")
        if prompts:
            stats = PrefixTree.build([(prompt, []) for prompt in prompts if not isinstance(prompt, str)]).stats
            replies = len(prompts) * max_new_tokens
            total += TreeStats(len(prompts), stats.total_tokens + replies, stats.computed_tokens + replies, 0)
    return total


def _requests(
    reader: ReaderProtocol,
    materials: Sequence[Materials],
    layouts: Iterable[str],
    template: NoiseTemplate,
    max_new_tokens: int,
    context: int | None,
) -> tuple[list[NoiseAnswers], list[_PromptRequest]]:
    specs = [LayoutSpec.parse(name) for name in layouts]
    names = [spec.name for spec in specs]
    expect(bool(names), "layouts", "at least one", names)
    expect(len(set(names)) == len(names), "layouts", "each layout once", [n for n in names if names.count(n) > 1])
    check_int("max_new_tokens", max_new_tokens)
    budget = ContextBudget(reader, template, max_new_tokens, context)
    results: list[NoiseAnswers] = []
    requests: list[_PromptRequest] = []
    for question, item in enumerate(materials):
        answers = NoiseAnswers(item.id, item.cluster)
        results.append(answers)
        for spec in specs:
            try:
                chosen = layout(item, spec, fits=budget.fits(item.question))
            except MissingPassages as error:
                answers.missing[spec.name] = str(error)
                continue
            prompt = budget.prompt(item.question, chosen.passages)
            if budget.holds(prompt):
                requests.append(_PromptRequest(question, chosen, prompt))
            else:
                answers.over_long[spec.name] = len(prompt)
    return results, requests
