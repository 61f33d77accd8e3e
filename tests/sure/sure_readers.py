"""Readers with scripted replies for the tests of SuRe."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from helpers.scripted import ScriptedReader

from fastreader.core.protocol import Generation, Loglikelihood, Results
from fastreader.core.tree import PrefixTree, TreeStats
from fastreader.errors import ContextOverflowError

REPLY = "(a) the Nile, (b) the Seine"


def stage_of(prompt: str) -> str:
    """Return the stage of a prompt."""
    for mark, stage in (
        ("then propose", "candidates"),
        ("them, propose", "candidates"),
        ("The two answers", "candidates"),
        ("Prediction: (", "summaries"),
        ("supports the answer", "generic"),
        ("correctly supported", "validity"),
        ("Target Question:", "ranking"),
        ("Reasoning:", "reasoning"),
        ("Choices: (a)", "choice"),
        ("help to answer", "selection"),
        ("That question is:", "verification"),
        ("Task description:", "answers"),
    ):
        if mark in prompt:
            return stage
    raise AssertionError(f"no stage's prompt: {prompt!r}")


def predicted(prompt: str) -> str:
    """Return the candidate of a summary or validity prompt."""
    found = re.search(r"Prediction: (?:\(\w\) )?(.*)\n", prompt)
    assert found
    return found.group(1)


def compared(prompt: str) -> tuple[str, str]:
    """Return the two summaries of a ranking prompt."""
    found = re.search(r"Passage 1: (.*)\nPassage 2: (.*)\nTarget", prompt)
    assert found
    return found.group(1), found.group(2)


def script(
    candidates: str = REPLY,
    valid: Callable[[str], float] = lambda candidate: 1.0,
    better: Callable[[str, str], float] = lambda first, second: 0.0,
    other: Callable[[str, str, int], str] = lambda stage, prompt, i: "an answer",
) -> dict[str, Callable[..., object]]:
    """Return rules for `ScriptedReader`.

    Args:
        candidates: the reply to the candidates prompt.
        valid: nats by which "True" is ahead of "False", by candidate.
        better: nats by which "Passage 1" is ahead, by the two summaries.
        other: returns the text of other stages.
    """

    def write(prompt: str, i: int) -> str:
        stage = stage_of(prompt)
        if stage == "candidates":
            return candidates
        if stage == "summaries":
            return f"about {predicted(prompt)} [DONE] more"
        return other(stage, prompt, i)

    def score(context: str, label: str) -> float:
        stage = stage_of(context)
        ahead = valid(predicted(context)) if stage == "validity" else better(*compared(context))
        return -1.0 + (ahead if label in ("True", "Passage 1") else 0.0)

    return {"write": write, "score": score}


class TokenReader(ScriptedReader):
    """A reader whose prompts are token ids, a word each, that shares prefixes and has a context length."""

    name = "tokens"
    words: ClassVar[list[str]] = ["<start>"]  # of all such readers, so that equal texts give equal tokens

    def __init__(self, max_length: int | None = None, **rules: Callable[..., object]) -> None:
        super().__init__(**rules)
        self.max_length = max_length
        self.calls: list[tuple[str, int]] = []

    def encode(self, text: str) -> list[int]:
        out = []
        for word in re.findall(r"\S+|\s", text):
            if word not in self.words:
                self.words.append(word)
            out.append(self.words.index(word))
        return out

    def decode(self, tokens) -> str:
        return "".join(self.words[t] for t in tokens if t)

    def prompt(self, pieces, *, lead="", **options):
        return [0, *(t for piece in pieces for t in self.encode(piece)), *self.encode(lead)]

    def continuation(self, text, *, end=False, **options):
        return self.encode(" " + text + ("\n" if end else ""))

    def check(self, tokens) -> None:
        if self.max_length is not None and len(tokens) > self.max_length:
            raise ContextOverflowError(f"a prompt of {len(tokens)} tokens, the context is {self.max_length}")

    def loglikelihood(self, requests, **options):
        pairs = list(requests)
        self.calls.append(("loglikelihood", len(pairs)))
        for context, label in pairs:
            self.check([*context, *label])
        stats = PrefixTree.build(pairs).stats
        return Results(
            [Loglikelihood(self.rate(self.decode(c), self.decode(t).strip()), len(t), False) for c, t in pairs], stats
        )

    def generate(self, prompts, *, n=1, stop=(), **options):
        texts = list(prompts)
        self.calls.append(("generate", len(texts)))
        for prompt in texts:
            self.check(prompt)
        out = [
            [
                Generation(text, self.encode(text), finish, len(p))
                for i in range(n)
                for text, finish in [self.written(self.decode(p), i, stop)]
            ]
            for p in texts
        ]
        written = sum(len(g.token_ids) for texts_ in out for g in texts_)
        tree = PrefixTree.build([(p, ()) for p in texts]).stats
        return Results(
            out, TreeStats(len(texts) * n, n * tree.total_tokens + written, tree.computed_tokens + written, 0)
        )
