"""rerank: the passages of a question in a better reading order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fastreader.data.types import Example, Passage
from fastreader.errors import InputError
from fastreader.moi.adaptive import Stop
from fastreader.moi.cost import NOTHING, Cost, full_orderings
from fastreader.moi.designs import cyclic_for, prefixes
from fastreader.moi.order import descending
from fastreader.moi.shipped import find
from fastreader.moi.types import ORDERS, IntArray, Observations, PositionBias, Utilities
from fastreader.permutations import Design, Spec, pruned, resolve, variable_length

if TYPE_CHECKING:
    from fastreader.prompts import Template
    from fastreader.reader import Reader

PassageLike = Passage | str


@dataclass(frozen=True)
class RankedPassage:
    """One passage in reading order.

    Attributes:
        passage: as it was given.
        index: its place in the retriever's order, from 0.
        utility: posterior mean, nats against the mean of the question's passages; None where it was not scored.
        score: sigmoid of the utility, in (0, 1).
        interval: posterior interval of the utility; None where there is none (joint solve).
        p_best: probability of the largest utility.
    """

    passage: Passage
    index: int
    utility: float | None = None
    score: float | None = None
    interval: tuple[float, float] | None = None
    p_best: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, eq=False)
class Ranked:
    """Passages in reading order; iterating gives `RankedPassage`s.

    Attributes:
        question: its text.
        passages: in reading order; the last `tail` keep the retriever's order unscored.
        order: "matched" or "descending"; "given" for a single passage.
        bias_from: where the bias is from: "given", "cached", "shipped", or "none: random prefixes".
        bias: the calibration used; None where there was none.
        utilities: of the passages that were scored, in the retriever's order; None for a single passage.
        cost: tokens.
        tail: passages beyond `max_passages`.
        note: cautions; empty where all is well.
        observations: what was scored; None for a single passage.
        id: the question's identifier.
    """

    question: str
    passages: list[RankedPassage]
    order: str
    bias_from: str
    bias: PositionBias | None
    utilities: Utilities | None
    cost: Cost
    tail: int = 0
    note: str = ""
    observations: Observations | None = None
    id: str | None = None

    def __len__(self) -> int:
        return len(self.passages)

    def __iter__(self) -> Iterator[RankedPassage]:
        return iter(self.passages)

    def __getitem__(self, place: int) -> RankedPassage:
        return self.passages[place]

    @property
    def indices(self) -> list[int]:
        """The retriever's indices in reading order."""
        return [p.index for p in self.passages]

    def by_utility(self) -> list[RankedPassage]:
        """The scored passages by falling utility, then the tail: a ranking, where the reading order is none.

        Raises:
            InputError: the bias's sign is undetermined, so that it may be the reverse.
        """
        if self.utilities is None:
            return list(self.passages)
        at = {p.index: p for p in self.passages}
        ranked = self.utilities.order("descending").tolist()
        return [at[i] for i in ranked] + self.passages[len(ranked) :]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values, except the bias and the observations."""
        return {
            "id": self.id,
            "question": self.question,
            "order": self.order,
            "bias": self.bias_from,
            "note": self.note,
            "tail": self.tail,
            "cost": self.cost.to_dict(),
            "passages": [p.to_dict() for p in self.passages],
            "utilities": None if self.utilities is None else self.utilities.to_dict(),
        }


@dataclass(frozen=True, eq=False)
class Plan:
    """What `rerank` would score, and what that costs; nothing has run.

    Attributes:
        example: the question with the passages to score.
        tail: passages left out.
        design: orderings; None for a single passage.
        bias, bias_from: as in `Ranked`.
        cost: of the first scoring pass.
    """

    example: Example
    tail: list[Passage]
    design: Design | None
    bias: PositionBias | None
    bias_from: str
    cost: Cost


def plan(
    reader: Reader,
    question: str | Example,
    passages: Sequence[PassageLike] | None = None,
    bias: PositionBias | None = None,
    *,
    max_passages: int = 10,
    permutations: Spec | None = None,
    prune: int | float | None = None,
    template: Template | None = None,
    seed: int = 0,
    on_overflow: str = "error",
    max_tokens: int | None = None,
) -> Plan:
    """What `rerank` with these arguments would score, and its cost in tokens, without running it.

    Args and errors as `rerank`.
    """
    from fastreader.prompts import Template, encode
    from fastreader.scoring import permutation_cost

    prompts = template or Template()
    example = _example(question, passages)
    if max_passages < 1:
        raise InputError(f"max_passages: expected at least 1, got {max_passages}")
    tail = example.passages[max_passages:]
    example = replace(example, passages=example.passages[:max_passages], candidates=[])
    n = len(example.passages)
    if n == 1:
        return Plan(example, tail, None, bias, "given", NOTHING)
    length = _length(example, prune)
    origin = "given"
    if bias is None:
        found = find(reader.describe()["name"], prompts.digest(), n, length)
        bias, origin = found if found is not None else (None, "none: random prefixes")
    elif (bias.passages, bias.length) != (n, length):
        raise InputError(
            f"bias: measured for N = {bias.passages} passages, L = {bias.length} places; the question has N = {n}, "
            f"L = {length}"
        )
    elif bias.kind == "candidate":
        raise InputError("bias: one of kind 'candidate' needs an answer to score; use score_permutations and debias")
    design = _design(bias, n, length, permutations, seed)
    stats = permutation_cost(
        reader,
        example,
        permutations=design,
        template=prompts,
        question_only=True,
        score_passages=bias is not None and bias.kind == "joint",
        alone=bias is not None,
        on_overflow=on_overflow,
        max_tokens=max_tokens,
    )
    pieces = encode(reader.encoder, prompts, example.question, example.passages, [])
    return Plan(example, tail, design, bias, origin, Cost(stats.given, stats.computed, full_orderings(pieces)))


def rerank(
    reader: Reader,
    question: str | Example,
    passages: Sequence[PassageLike] | None = None,
    bias: PositionBias | None = None,
    order: str = "matched",
    max_passages: int = 10,
    *,
    permutations: Spec | None = None,
    prune: int | float | None = None,
    template: Template | None = None,
    stop: Stop | None = None,
    seed: int = 0,
    on_overflow: str = "error",
    max_tokens: int | None = None,
) -> Ranked:
    """Order the passages by what they are worth to this reader, wherever they are read.

    With a calibration N orderings are scored (`designs.cyclic_for`), and each passage alone, in one pass. Without
    one, given or at hand, random prefixes are, which the joint solve identifies by itself; the result then is in
    descending order and says so.

    Args:
        reader: scores the orderings.
        question: a text, or an `Example` with its passages.
        passages: in the retriever's order.
        bias: a calibration of this reader, template and N; None: that in the cache folder, or shipped.
        order: "matched" (largest utility at the place of the largest bias) or "descending".
        max_passages: only so many are scored; the others follow them in the retriever's order.
        permutations: orderings in place of the default design, as in `score_permutations`.
        prune: read only so many places of each ordering; below 1: as many as hold that share of the retriever's
            softmaxed scores. Needs a calibration of that L, or none.
        template: the prompt's texts.
        stop: score further orderings until the utilities are settled; None: one pass.
        seed: of designs that draw.
        on_overflow: "error" or "truncate", see `score_permutations`; passages are never dropped here.
        max_tokens: as for `score_permutations`.

    Raises:
        InputError: no passages, a bias of another N, L, reader or template (both are named), an unknown order, or
            "descending" under a bias of undetermined sign.
        ContextOverflowError: a prompt is longer than the model's context.
    """
    if order not in ORDERS:
        raise InputError(f"order: expected one of {', '.join(ORDERS)}, got {order!r}")
    if on_overflow not in ("error", "truncate"):
        raise InputError(f"on_overflow: expected 'error' or 'truncate', got {on_overflow!r}")
    planned = plan(
        reader,
        question,
        passages,
        bias,
        max_passages=max_passages,
        permutations=permutations,
        prune=prune,
        template=template,
        seed=seed,
        on_overflow=on_overflow,
        max_tokens=max_tokens,
    )
    example, n = planned.example, len(planned.example.passages)
    ends = [RankedPassage(p, n + i) for i, p in enumerate(planned.tail)]
    if planned.design is None:
        only = RankedPassage(example.passages[0], 0, 0.0, 0.5, (0.0, 0.0), 1.0)
        return Ranked(
            example.question, [only, *ends], "given", "given", None, None, planned.cost, len(ends), id=example.id
        )
    if planned.bias is not None and planned.bias.sign == "undetermined" and order == "descending":
        raise InputError("order: 'descending' needs the bias's sign, which this calibration left undetermined")
    from fastreader.moi.adaptive import run

    observed, utilities, cost = run(
        reader, planned, template=template, stop=stop, seed=seed, on_overflow=on_overflow, max_tokens=max_tokens
    )
    note = utilities.reason
    if planned.bias is None:
        order = "descending"
        note = "; ".join(filter(None, ["no calibration for this reader, template and N: random prefixes", note]))
    return Ranked(
        question=example.question,
        passages=[_ranked(example, utilities, i) for i in _reading(utilities, order).tolist()] + ends,
        order=order,
        bias_from=planned.bias_from,
        bias=planned.bias,
        utilities=utilities,
        cost=cost,
        tail=len(ends),
        note=note,
        observations=observed,
        id=example.id,
    )


def _reading(utilities: Utilities, order: str) -> IntArray:
    return descending(utilities.utility) if order == "descending" else utilities.order(order)


def _ranked(example: Example, utilities: Utilities, index: int) -> RankedPassage:
    interval = None
    if utilities.method == "calibrated":
        interval = (float(utilities.intervals[index, 0]), float(utilities.intervals[index, 1]))
    return RankedPassage(
        example.passages[index],
        index,
        float(utilities.utility[index]),
        float(utilities.score[index]),
        interval,
        float(utilities.p_best[index]),
    )


def _design(bias: PositionBias | None, n: int, length: int, permutations: Spec | None, seed: int) -> Design:
    if permutations is not None:
        made = resolve(permutations, n, seed)
        if bias is None and made.length == n and length == n:
            raise InputError(
                "permutations: whole orderings need a calibration, and there is none for this reader, template and N; "
                "give bias, or leave permutations out"
            )
        return made if made.length <= length else pruned(made, length)
    if bias is not None:
        return cyclic_for(bias, seed)
    return prefixes(n, length if length < n else None, seed)


def _length(example: Example, prune: int | float | None) -> int:
    n = len(example.passages)
    if prune is None:
        return n
    if isinstance(prune, int) and not isinstance(prune, bool) and prune >= 1:
        return min(prune, n)
    if isinstance(prune, float) and 0 < prune < 1:
        known = [p.score for p in example.passages if p.score is not None]
        if len(known) < n:
            raise InputError(f"prune={prune} needs the retriever's score of every passage")
        return variable_length(np.array(known), prune)
    raise InputError(f"prune: expected a number of places, or a share in (0, 1), got {prune!r}")


def _example(question: str | Example, passages: Sequence[PassageLike] | None) -> Example:
    if isinstance(question, Example):
        if passages is not None:
            raise InputError("passages: expected None with an Example, which brings its own")
        example = question
    else:
        if passages is None or isinstance(passages, (str, bytes, Passage)):
            raise InputError(f"passages: expected a list of passages, got {type(passages).__name__}")
        example = Example(question, [Passage(p) if isinstance(p, str) else p for p in passages])
    if not example.passages:
        raise InputError("passages: expected at least one passage, got none")
    return example
