"""Workloads as token sequences, from the bundled questions or from a file of token ids.

W1   one question, 10 passages in cyclic orders, 4 candidates
W1p  the same, the passages' log-likelihood too
W2   short leaves: one body of 1,000 tokens, 512 continuations of 2 to 12
W3   a forest: 64 questions, 5 passages in cyclic orders, 2 candidates
W4   long: 20 passages of 400 tokens in cyclic orders, 2 candidates
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from groups import Group

from fastreader import Example, Passage, Template, load_examples
from fastreader.permutations import cyclic
from fastreader.reader.prompts.encoder import TextEncoder
from fastreader.reader.prompts.pieces import encode

BUNDLED = Path(__file__).parent.parent / "examples" / "questions.jsonl"
SHORT = Path(__file__).parent / "short_questions.jsonl"  # a dozen, of three short passages each
NAMES = ("w1", "w1p", "w2", "w3", "w4")


@dataclass(frozen=True)
class Workload:
    """Groups of sequences. Results come in the order of `sequences`."""

    name: str
    groups: list[Group]

    def sequences(self) -> list[tuple[list[int], list[int]]]:
        return [pair for group in self.groups for pair in group.sequences()]

    @property
    def given(self) -> int:
        """Tokens of all sequences, nothing shared."""
        return sum(len(context) + len(continuation) for context, continuation in self.sequences())


def make(name: str, encoder: TextEncoder, tokens: Path | None = None, share: float = 1.0) -> Workload:
    """A workload by name.

    Args:
        name: one of `NAMES`.
        encoder: of the reader.
        tokens: for w1 and w1p, a file with `header`, `bodies` and `continuations` as token ids.
        share: of its size, for a quick look: fewer continuations (w2), questions (w3), orders (others).
    """
    if name in ("w1", "w1p"):
        return _w1(name, encoder, tokens, share)
    return {"w2": _w2, "w3": _w3, "w4": _w4}[name](encoder, share)


def orders(encoder: TextEncoder, passages: int, candidates: int, share: float = 1.0) -> Workload:
    """One bundled question over any number of passages (other questions' too) in cyclic orders."""
    examples = load_examples(BUNDLED)
    pool = [p for e in examples for p in e.passages]
    answers = [a for e in examples for a in e.candidates]
    chosen = [pool[i % len(pool)] for i in range(passages)]
    example = Example(examples[0].question, chosen, candidates=[answers[i % len(answers)] for i in range(candidates)])
    return Workload(f"n{passages}-k{candidates}", _groups(encoder, example, share))


def _w1(name: str, encoder: TextEncoder, tokens: Path | None, share: float) -> Workload:
    if tokens is None:
        workload = orders(encoder, 10, 4, share)
        header = len(encode(encoder, Template(), "x", [Passage("x")], []).head)
        title = f"{name} (bundled text)"
    else:
        values = json.loads(tokens.read_text())
        bodies = values["bodies"][: max(1, round(share * len(values["bodies"])))]
        groups = [Group(values["header"] + body, values["continuations"]) for body in bodies]
        workload, header, title = Workload(name, groups), len(values["header"]), name
    if name == "w1":
        return Workload(title, workload.groups)
    return Workload(title, [Group(g.context, g.continuations, header) for g in workload.groups])


def _w2(encoder: TextEncoder, share: float) -> Workload:
    stream = _text(encoder)
    generator = random.Random(0)
    leaves = []
    for _ in range(max(1, round(512 * share))):
        start = generator.randrange(1000, len(stream) - 12)
        leaves.append(stream[start : start + generator.randint(2, 12)])
    return Workload("w2", [Group(stream[:1000], leaves)])


def _w3(encoder: TextEncoder, share: float) -> Workload:
    examples = load_examples(BUNDLED)
    generator = random.Random(0)
    groups: list[Group] = []
    for i in range(max(1, round(64 * share))):
        example = examples[i % len(examples)]
        passages = generator.sample(example.passages, 5)
        groups += _groups(encoder, Example(example.question, passages, candidates=example.candidates[:2]), 1.0)
    return Workload("w3", groups)


def _w4(encoder: TextEncoder, share: float) -> Workload:
    stream = _text(encoder)
    pieces = encode(encoder, Template(), "Which of these is it?", [Passage("x")], ["This one", "Neither of them"])
    passages = [stream[(400 * i) % (len(stream) - 400) :][:400] for i in range(20)]
    groups = []
    for order in cyclic(20).permutations.tolist()[: max(1, round(20 * share))]:
        body = [token for index in order for token in passages[index]]
        groups.append(Group(pieces.head + body + pieces.tail(), pieces.candidates))
    return Workload("w4", groups)


def _groups(encoder: TextEncoder, example: Example, share: float) -> list[Group]:
    pieces = encode(encoder, Template(), example.question, example.passages, example.candidates)
    ordered = cyclic(len(example.passages)).permutations.tolist()
    kept = ordered[: max(1, round(share * len(ordered)))]
    return [Group(pieces.head + pieces.body(order) + pieces.tail(), pieces.candidates) for order in kept]


def _text(encoder: TextEncoder) -> list[int]:
    """All bundled passages as one stream of tokens."""
    return [t for e in load_examples(BUNDLED) for p in e.passages for t in encoder.piece(p.text + "\n")]
