"""A reader that answers by rules, for tests of the methods that need no model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastreader.core.protocol import Generation, Loglikelihood, Results
from fastreader.core.tree import TreeStats


class ScriptedReader:
    """Prompts are the joined pieces. `write(prompt, i)` gives sample i's text, `score(context, continuation)` nats."""

    name = "scripted"

    def __init__(
        self,
        write: Callable[[str, int], str] = lambda prompt, i: "",
        score: Callable[[str, str], float] = lambda context, continuation: -1.0,
    ) -> None:
        self.write, self.rate = write, score
        self.prompts: list[str] = []
        self.requests: list[tuple[str, str]] = []

    def describe(self) -> dict[str, str]:
        return {"name": self.name, "device": "none", "dtype": "none", "precision": "exact"}

    def prompt(self, pieces: Sequence[str], *, lead: str = "", **options: Any) -> str:
        return "".join(pieces) + lead

    def continuation(self, text: str, *, end: bool = False, **options: Any) -> str:
        return text.strip() + ("\n" if end else "")

    def loglikelihood(self, requests: Iterable[Any], **options: Any) -> Results[Loglikelihood]:
        pairs = list(requests)
        self.requests += pairs
        given = sum(len(c.split()) + len(t.split()) for c, t in pairs)
        return Results(
            [Loglikelihood(self.rate(c, t), len(t.split()), False) for c, t in pairs],
            TreeStats(len(pairs), given, given, len(pairs)),
        )

    def written(self, prompt: str, i: int, stop: Sequence[str]) -> tuple[str, str]:
        """A text up to the first stop string, and what ended it."""
        text = self.write(prompt, i)
        places = [text.index(s) for s in stop if s in text]
        return (text[: min(places)], "stop") if places else (text, "eos")

    def generate(
        self, prompts: Iterable[Any], *, n: int = 1, stop: Sequence[str] = (), **options: Any
    ) -> Results[list[Generation]]:
        texts = list(prompts)
        self.prompts += texts
        given = sum(len(t.split()) for t in texts)
        return Results(
            [
                [
                    Generation(text, [], finish, len(t.split()))
                    for i in range(n)
                    for text, finish in [self.written(t, i, stop)]
                ]
                for t in texts
            ],
            TreeStats(len(texts), given, given, 0),
        )
