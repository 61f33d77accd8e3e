"""Workloads as token sequences, from the bundled questions or from a file of token ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fastreader import Example, Passage, Template, load_examples
from fastreader.models.text import TextEncoder
from fastreader.permutations import cyclic
from fastreader.prompts import encode

BUNDLED = Path(__file__).parent.parent / "examples" / "questions.jsonl"


@dataclass(frozen=True)
class Workload:
    """Contexts (one an ordering) and the continuations scored after each."""

    name: str
    contexts: list[list[int]]
    continuations: list[list[int]]

    def sequences(self) -> list[tuple[list[int], list[int]]]:
        return [(context, continuation) for context in self.contexts for continuation in self.continuations]


def from_tokens(path: Path) -> Workload:
    """A file with `header`, `bodies` and `continuations` as token ids."""
    values = json.loads(path.read_text())
    return Workload(path.stem, [values["header"] + body for body in values["bodies"]], values["continuations"])


def bundled(encoder: TextEncoder, passages: int = 10) -> Workload:
    """One bundled question over `passages` passages (its own, then other questions'), cyclic orders, 4 candidates."""
    examples = load_examples(BUNDLED)
    pool: list[Passage] = [p for e in examples for p in e.passages][:passages]
    example = Example(examples[0].question, pool, candidates=examples[0].candidates)
    pieces = encode(encoder, Template(), example.question, example.passages, example.candidates)
    orders = cyclic(passages).permutations.tolist()
    contexts = [pieces.head + pieces.body(order) + pieces.tail() for order in orders]
    return Workload(f"bundled-{passages}", contexts, pieces.candidates)
