"""Ask a reader all layouts of many questions at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fastreader.core.protocol import ReaderProtocol, Results, TextOrTokens
from fastreader.core.tree import PrefixTree, TreeStats
from fastreader.errors import InputError
from fastreader.noise.layouts import Layout, LayoutSpec, MissingPassages, layout
from fastreader.noise.materials import Materials
from fastreader.noise.prompt import NoiseTemplate
from fastreader.noise.room import Room
from fastreader.statistics.answers import contained

MAX_NEW_TOKENS = 15  # as in the paper


@dataclass(frozen=True)
class NoiseAnswer:
    """What a reader answered under one layout.

    Attributes:
        text: its reply.
        right: 1.0 where the normal form of an answer is a substring of that of the reply, else 0.0.
        no_answer: whether it replied that no document holds the answer.
        kinds: of the passages, in reading order.
        prompt_tokens: of the prompt.
        finish_reason: what ended the reply, see `Generation`.
    """

    text: str
    right: float
    no_answer: bool
    kinds: tuple[str, ...]
    prompt_tokens: int
    finish_reason: str


@dataclass(frozen=True)
class NoiseAnswers:
    """One question under all layouts; each layout asked for is in exactly one of the three.

    Attributes:
        id: of the question.
        cluster: identifies its gold passage; None where it has none.
        answers: by layout.
        over_long: layouts whose prompt leaves no room in the context for the reply, with its length in tokens. They
            were not asked, and are no wrong answers.
        missing: layouts the question has no passages for, with what is missing.
    """

    id: str
    cluster: str | None
    answers: dict[str, NoiseAnswer] = field(default_factory=dict)
    over_long: dict[str, int] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values, but for the id."""
        row = asdict(self)
        del row["id"]
        return row

    @classmethod
    def from_dict(cls, id: str, row: dict[str, Any]) -> NoiseAnswers:
        """What `to_dict` gave.

        Raises:
            InputError: a key is missing.
        """
        try:
            answers = {
                name: NoiseAnswer(**{**answer, "kinds": tuple(answer["kinds"])})
                for name, answer in row["answers"].items()
            }
            return cls(id, row["cluster"], answers, dict(row["over_long"]), dict(row["missing"]))
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"NoiseAnswers: {id!r} is no row of a noise study ({error!r})") from error


@dataclass(frozen=True)
class _Request:
    question: int
    layout: Layout
    prompt: TextOrTokens


def ask(
    reader: ReaderProtocol,
    materials: Sequence[Materials],
    layouts: Iterable[str],
    *,
    template: NoiseTemplate | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    stop: Sequence[str] = (),
    context: int | None = None,
    max_batch_tokens: int | None = None,
    progress: bool | None = None,
) -> Results[NoiseAnswers]:
    """Greedy answers of every question under every layout, in one generation.

    Args:
        reader: who reads.
        materials: the questions.
        layouts: names, see `layouts`.
        template: the prompt's texts.
        max_new_tokens: of a reply.
        stop: texts that end a reply; the paper uses none.
        context: tokens of prompt and reply together at most; None: the reader's `max_length`, where it says one.
            Prompts longer than that are reported, see `NoiseAnswers`.
        max_batch_tokens, progress: as for `generate`.

    Returns:
        One result for each of `materials`; with `.stats`, `.passes` and `.seconds`.

    Raises:
        InputError: no layout, an unknown or repeated one, or a number out of range.
    """
    template = template or NoiseTemplate()
    results, requests = _requests(reader, materials, layouts, template, max_new_tokens, context)
    if not requests:
        return Results(results, TreeStats(0, 0, 0, 0), passes=0)
    generated = reader.generate(
        [request.prompt for request in requests],
        max_new_tokens=max_new_tokens,
        stop=stop,
        max_batch_tokens=max_batch_tokens,
        progress=progress,
    )
    for request, (generation,) in zip(requests, generated, strict=True):
        results[request.question].answers[request.layout.name] = NoiseAnswer(
            text=generation.text,
            right=contained(generation.text, materials[request.question].answers),
            no_answer=template.refused(generation.text),
            kinds=tuple(str(kind) for kind in request.layout.kinds),
            prompt_tokens=generation.prompt_tokens,
            finish_reason=generation.finish_reason,
        )
    return Results(results, generated.stats, generated.passes, generated.seconds)


def ask_cost(
    reader: ReaderProtocol,
    materials: Sequence[Materials],
    layouts: Iterable[str],
    *,
    template: NoiseTemplate | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    context: int | None = None,
) -> TreeStats:
    """Tokens that `ask` would be given and would compute, without running the model.

    The prompts of each question are one tree; every reply counts with `max_new_tokens` on both sides, which is the
    most it can be.

    Raises:
        InputError: as `ask`, or prompts that are not token ids.
    """
    results, requests = _requests(reader, materials, layouts, template or NoiseTemplate(), max_new_tokens, context)
    total = TreeStats(0, 0, 0, 0)
    for question in range(len(results)):
        prompts = [request.prompt for request in requests if request.question == question]
        if any(isinstance(prompt, str) for prompt in prompts):
            raise InputError("ask_cost: the reader's prompts are text; only token ids can be counted")
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
) -> tuple[list[NoiseAnswers], list[_Request]]:
    specs = [LayoutSpec.parse(name) for name in layouts]
    if not specs:
        raise InputError("ask: expected at least one layout, got none")
    names = [spec.name for spec in specs]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InputError(f"ask: the layout {repeated[0]!r} is asked for twice")
    if max_new_tokens < 1:
        raise InputError(f"ask: max_new_tokens must be at least 1, got {max_new_tokens}")
    room = Room(reader, template, max_new_tokens, context)
    results: list[NoiseAnswers] = []
    requests: list[_Request] = []
    for question, item in enumerate(materials):
        answers = NoiseAnswers(item.id, item.cluster)
        results.append(answers)
        for spec in specs:
            try:
                laid = layout(item, spec, fits=room.fits(item.question))
            except MissingPassages as error:
                answers.missing[spec.name] = str(error)
                continue
            prompt = room.prompt(item.question, laid.passages)
            if room.holds(prompt):
                requests.append(_Request(question, laid, prompt))
            else:
                answers.over_long[spec.name] = len(prompt)
    return results, requests
