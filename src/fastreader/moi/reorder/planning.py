"""Plan a re-ranking: its options, its orderings, and its cost in tokens before anything runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from fastreader.core.checked import checked, checked_methods
from fastreader.core.checks import check_choice, check_int, check_number, expect, require
from fastreader.data.arguments import make_example
from fastreader.data.documents import PassageLike
from fastreader.data.types import Example, Passage
from fastreader.moi.calibration.pool import Pool
from fastreader.moi.calibration.store import find
from fastreader.moi.quantities.designs import alone, cyclic_for
from fastreader.moi.quantities.position_bias import PositionBias, check_bias
from fastreader.moi.quantities.utilities import ORDERS, Utilities
from fastreader.permutations import Design, Spec, latin, pruned, resolve
from fastreader.scoring.reading import POLICIES

if TYPE_CHECKING:
    from fastreader.core.protocol import ScoringReader
    from fastreader.reader.prompts.pieces import PromptPieces
    from fastreader.reader.prompts.template import Template
    from fastreader.scoring.prepare import ScoringJob


@checked
@dataclass(frozen=True)
class Stopping:
    """When to stop adding orderings. Each round is one pass, and shares no prefix with earlier ones.

    Attributes:
        p_best: stop when the largest `Utilities.p_best` reaches this (a joint solve has none); None disables it.
        same_order: stop when this number of rounds in a row gave one matched order; None disables it.
        most: score at most this number of orderings, 3N by default; at least as many as the first pass.

    Raises:
        InputError: if a value is of another type or out of range.
    """

    p_best: float | None = 0.9
    same_order: int | None = 2
    most: int | None = None

    def __post_init__(self) -> None:
        check_number("Stopping.p_best", self.p_best, above=0, maximum=1, optional=True)
        check_int("Stopping.same_order", self.same_order, 2, optional=True)
        check_int("Stopping.most", self.most, optional=True)

    def settled(self, history: list[Utilities]) -> bool:
        """Return whether the last round's utilities are settled."""
        expect(len(history) > 0, "history", "at least one round", history)
        last = history[-1]
        if self.p_best is not None and last.p_best is not None and float(last.p_best.max()) >= self.p_best:
            return True
        if self.same_order is None or len(history) < self.same_order:
            return False
        return len({tuple(u.order("matched").tolist()) for u in history[-self.same_order :]}) == 1


KINDS = ("question", "joint")
"""What an ordering's score is: log P(question | passages), or with log P(passages), as the paper prints it."""


@dataclass(frozen=True, kw_only=True)
class RerankOptions:
    """Options of a re-ranking, as `rerank` documents them.

    Raises:
        InputError: if a value is of another type or out of range.
    """

    order: str = "matched"
    max_passages: int = 10
    permutations: Spec | None = None
    prune: int | None = None
    prune_mass: float | None = None
    template: Template | None = None
    stopping: Stopping | None = None
    seed: int = 0
    on_overflow: str = "error"
    max_batch_tokens: int | None = None
    pool: Pool | None = None
    kind: str | None = None

    def __post_init__(self) -> None:
        check_choice("order", self.order, ORDERS)
        check_choice("on_overflow", self.on_overflow, POLICIES)
        check_choice("kind", self.kind or KINDS[0], KINDS)
        check_int("max_passages", self.max_passages)


@dataclass(frozen=True)
class Cost:
    """Tokens of a re-ranking, compared with MoI as printed.

    Attributes:
        total_tokens: tokens of all texts scored, each read alone.
        computed_tokens: tokens that go through the model.
        full: tokens of 3N whole orderings (all N! if those are fewer) with the question, each read alone.
        answer: tokens read and generated to answer in the order found; 0 without an answer.
        passes: number of scoring passes.
        cached_tokens: tokens cached by a session (`Reader.session`); `computed_tokens` leaves them out.
    """

    total_tokens: int
    computed_tokens: int
    full: int
    answer: int = 0
    passes: int = 1
    cached_tokens: int = 0

    @property
    def share(self) -> float:
        """`computed_tokens` over `full`, or 0 if there was nothing to score."""
        return self.computed_tokens / self.full if self.full else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values, `share` included."""
        return {**asdict(self), "share": self.share}


def full_orderings(pieces: PromptPieces) -> int:
    """Return the number of tokens of 3N whole orderings with the question, each read alone."""
    n = len(pieces.passages)
    one = len(pieces.head) + len(pieces.body(range(n))) + len(pieces.question_lead) + len(pieces.question)
    return min(3 * n, math.factorial(n)) * one


@checked_methods
@dataclass(frozen=True, eq=False)
class RerankPlan:
    """The scoring that `rerank` would run, and its cost.

    Attributes:
        example: the question with the passages to score.
        tail: passages left out.
        design: orderings; None for a single passage.
        bias, bias_source: as in `Ranked`.
        cost: of the first scoring pass.
        options: of the re-ranking.
        truncated: number of tokens to cut off each passage so that the orderings fit the context.
        pieces: tokens of the question and all its passages; None for a single passage.
        job: the first scoring pass; None for a single passage.
        method: of the utilities: "calibrated", "joint", or "query_likelihood" of each passage alone.
    """

    example: Example
    tail: list[Passage]
    design: Design | None
    bias: PositionBias | None
    bias_source: str
    cost: Cost
    options: RerankOptions
    truncated: Mapping[int, int] = field(default_factory=dict)
    pieces: PromptPieces | None = None
    job: ScoringJob | None = None
    method: str = "calibrated"


@checked
def plan(
    reader: ScoringReader,
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    bias: PositionBias | None = None,
    **options: Any,
) -> RerankPlan:
    """Return the scoring that `rerank` with these arguments would run, and its cost in tokens.

    Takes the arguments and raises the errors of `rerank`. Tokens that a session has cached count as computed.
    """
    return plan_example(reader, make_example(question, passages), bias, RerankOptions(**options))


def plan_example(
    reader: ScoringReader,
    example: Example,
    bias: PositionBias | None,
    options: RerankOptions,
    pieces: PromptPieces | None = None,
) -> RerankPlan:
    """Plan a re-ranking of a checked example, as `plan` documents.

    Args:
        reader, bias, options: same as `rerank`.
        example: question and passages.
        pieces: tokens of the question and its first `max_passages` passages; None encodes them.
    """
    from fastreader.scoring.prepare import ScoreOptions, encode_example, places_to_read, prepare

    where = "the question"
    scoring = ScoreOptions(
        prune=options.prune,
        prune_mass=options.prune_mass,
        template=options.template,
        question_only=True,
        on_overflow=options.on_overflow,
        max_batch_tokens=options.max_batch_tokens,
    )
    tail = example.passages[options.max_passages :]
    example = replace(example, passages=example.passages[: options.max_passages], candidates=[])
    n = len(example.passages)
    if n == 1:
        return RerankPlan(example, tail, None, bias, "given", Cost(0, 0, 0, passes=0), options)
    length = places_to_read(example, scoring, where)
    source, about, template = "given", reader.describe(), scoring.template.digest()
    method, pool = "calibrated", options.pool if length == n >= 3 else None
    if bias is None:
        joint = options.kind == "joint"
        pooled = None if joint else _pooled(pool, about, template, n)
        found = find(about, template, n, length, options.kind or KINDS[0]) or pooled
        told = "kind 'joint': needs a calibration of that kind, or permutations of a part of the places"
        require(not joint or found is not None or options.permutations is not None, told)
        bias, source = found or (None, "none: query likelihood")
        if found is None:
            method = "query_likelihood" if options.permutations is None else "joint"
            source = "none: query likelihood" if options.permutations is None else "none: joint solve"
    else:
        check_bias(bias, n, length, about, template)
        kinds = "kind 'question' or 'joint' (candidates take score_permutations and debias)"
        expect(bias.kind != "candidate", "bias", kinds, bias.kind)
        expect(options.kind in (None, bias.kind), "bias", f"one of kind {options.kind!r}", bias.kind)
    if method == "query_likelihood":
        design = alone(n) if pool is None else latin(n, 1, options.seed + pool.count(about, template, n))
    else:
        design = _design(bias, n, length, options.permutations, options.seed)
    if pieces is None:
        pieces = encode_example(reader, example, scoring, where)
    scoring = replace(
        scoring,
        permutations=design,
        prune=None,
        prune_mass=None,
        score_passages=(options.kind if bias is None else bias.kind) == "joint",
        query_likelihood=design.length > 1 and method != "joint",
    )
    job = prepare(reader, example, scoring, where, pieces)
    cost = Cost(job.stats.total_tokens, job.stats.computed_tokens, full_orderings(job.fitted.pieces))
    return RerankPlan(example, tail, design, bias, source, cost, options, job.fitted.truncated, pieces, job, method)


def _pooled(
    pool: Pool | None, reader: Mapping[str, str], template: str, passages: int
) -> tuple[PositionBias, str] | None:
    found = None if pool is None else pool.bias(reader, template, passages)
    return None if found is None else (found, "pool")


# Many questions are read in the orderings of one calibration.
_rotations = lru_cache(maxsize=64)(cyclic_for)


def _design(bias: PositionBias | None, n: int, length: int, permutations: Spec | None, seed: int) -> Design:
    if permutations is None:
        assert bias is not None  # without one there is no orderings' design to choose
        return _rotations(bias, seed)
    made = resolve(permutations, n, seed)
    if bias is not None:
        places = f"orderings of the bias's L = {length} places (or None, or a bias of fewer places)"
        expect(made.length >= length, "permutations", places, made.length)
        expect(len(made) > 1, "permutations", "at least two orderings, whose difference shows the utilities", len(made))
    else:
        require(
            not made.length == n == length,
            "permutations: whole orderings need a calibration, and this reader, template and N have none; "
            "give bias, or leave permutations out",
        )
    return made if made.length <= length else pruned(made, length)
