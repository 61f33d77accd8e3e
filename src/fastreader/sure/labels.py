"""Choosing between two labels: the likelier one, or the one a written reply names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fastreader.core.protocol import TextOrTokens
from fastreader.reader.programs.requests import Program, score, write
from fastreader.sure.cuts import note_cut
from fastreader.sure.replies import parse_label
from fastreader.sure.task import Task


@dataclass(frozen=True)
class Choice:
    """What was chosen after one prompt.

    Attributes:
        label: 0 or 1, or None: the two are equally likely, or the reply names neither.
        probability: share of label 0 against label 1; None where the reply was parsed.
    """

    label: int | None
    probability: float | None


def choose(task: Task, stage: str, prompts: Sequence[TextOrTokens], labels: tuple[str, str]) -> Program[list[Choice]]:
    """Choose one of two labels after each prompt.

    mode="loglikelihood" scores both labels after all prompts in one call, which share each prompt; mode="generate"
    writes after each prompt and looks for the label that comes first, as the paper does.
    """
    if task.settings.mode == "generate":
        replies = yield from write(stage, prompts, max_new_tokens=task.settings.max_label_tokens)
        note_cut(task, stage, [reply for reply, *_ in replies], lambda text: parse_label(text, labels))
        chosen = [Choice(parse_label(reply.text, labels), None) for reply, *_ in replies]
        if unclear := sum(choice.label is None for choice in chosen):
            task.notes.append(f"{stage}: {unclear} of {len(chosen)} replies name neither {labels[0]} nor {labels[1]}")
        return chosen
    continuations = [task.label(stage, label) for label in labels]
    scored = yield from score(stage, [(prompt, text) for prompt in prompts for text in continuations])
    return [choice_of(first.logprob, second.logprob) for first, second in zip(scored[::2], scored[1::2], strict=True)]


def choice_of(first: float, second: float) -> Choice:
    """The likelier of two labels from their log-likelihoods, nats; equal ones choose none."""
    difference = second - first
    probability = 1 / (1 + math.exp(difference)) if difference < 700 else 0.0
    return Choice(None if first == second else int(second > first), probability)
