"""Prepare an example for scoring: its options, orderings and prompts that fit the context, its sequences and passes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastreader.core.checked import Accepts, checked_options
from fastreader.core.checks import check_choice, check_int, check_number, expect, require
from fastreader.core.protocol import ScoringReader
from fastreader.core.tree import PrefixTree, TreeStats
from fastreader.data import Example
from fastreader.data.arguments import check_candidates
from fastreader.errors import ContextOverflowError, InputError, OutOfBudgetError
from fastreader.permutations import Design, Spec, explicit, pruned, resolve, variable_length
from fastreader.reader.prompts.pieces import PromptPieces, encode
from fastreader.reader.prompts.template import DEFAULT, Template
from fastreader.scoring.query_likelihood import question_after

Pairs = list[tuple[list[int], list[int]]]
POLICIES = ("error", "drop_passages", "truncate")


@checked_options
@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """What to score and how, as `score_permutations` documents.

    Raises:
        InputError: if a value is of another type or out of range.
    """

    permutations: Spec = "cyclic"
    seed: int = 0
    prune: int | None = None
    prune_mass: float | None = None
    template: Annotated[Any, Accepts(Template | None)] = None  # a `Template` once made
    question_only: bool = False
    score_passages: bool = False
    closed_book: bool = False
    query_likelihood: bool = False
    token_logprobs: bool = False
    on_overflow: str = "error"
    max_batch_tokens: int | None = None

    def __post_init__(self) -> None:
        check_int("prune", self.prune, optional=True)
        check_number("prune_mass", self.prune_mass, above=0, below=1, optional=True)
        expect(self.prune is None or self.prune_mass is None, "prune_mass", "None together with prune", self.prune_mass)
        check_choice("on_overflow", self.on_overflow, POLICIES)
        check_int("max_batch_tokens", self.max_batch_tokens, optional=True)
        object.__setattr__(self, "template", self.template or DEFAULT)


@dataclass(frozen=True)
class ScoringJob:
    """One example, ready to run.

    Attributes:
        example: what is scored.
        options: and how.
        fitted: orderings and pieces that fit the context.
        sequences: for each ordering the question, each candidate and (with `score_passages`) the passages; after all
            orderings the candidates without passages, then the question after each passage alone.
        ends: where header and first passage end in each sequence, see `PromptPieces.ends`.
        trees: the passes that score them.
    """

    example: Example
    options: ScoreOptions
    fitted: Fitted
    sequences: Pairs
    ends: list[tuple[int, ...]]
    trees: list[PrefixTree]

    @property
    def stats(self) -> TreeStats:
        """Tokens of the passes."""
        total = self.trees[0].stats
        for tree in self.trees[1:]:
            total += tree.stats
        return total


def places_to_read(example: Example, options: ScoreOptions, where: str) -> int:
    """Return the number of places of each ordering to read.

    Raises:
        InputError: if `prune_mass` is set and a passage has no score.
    """
    count = len(example.passages)
    if options.prune_mass is not None:
        known = [passage.score for passage in example.passages if passage.score is not None]
        needs = f"{where}: prune_mass={options.prune_mass} needs the retriever's score of every passage"
        require(len(known) == count, needs)
        return variable_length(known, float(options.prune_mass))
    return count if options.prune is None else min(int(options.prune), count)


def prepare(
    reader: ScoringReader, example: Example, options: ScoreOptions, where: str, pieces: PromptPieces | None = None
) -> ScoringJob:
    """Return the sequences to score for an example, and the passes that score them.

    Args:
        reader: scores them.
        example: question, passages and candidates.
        options: what to score.
        where: names the example in messages.
        pieces: the example's tokens, if they are known already.

    Raises:
        InputError: as `score_permutations`.
        ContextOverflowError: if a prompt is longer than the model's context.
        OutOfBudgetError: if one prompt alone does not fit in memory.
    """
    if pieces is None:
        check_candidates(example.candidates, options.question_only, where)
        pieces = encode_example(reader, example, options, where)
    length = places_to_read(example, options, where)
    fitted = fit(pieces, options, reader.max_length, where, length)
    sequences, ends = _sequences(fitted, options)
    try:
        trees = reader.plan(sequences, options.max_batch_tokens)
    except (InputError, OutOfBudgetError) as error:
        raise type(error)(f"{where}: {error}") from error
    return ScoringJob(example, options, fitted, sequences, ends, trees)


def encode_example(reader: ScoringReader, example: Example, options: ScoreOptions, where: str) -> PromptPieces:
    """Return the tokens of an example.

    Raises:
        InputError: if a text cannot be encoded; the message starts with `where`.
    """
    candidates = [] if options.question_only else example.candidates
    try:
        return encode(reader.encoder, options.template, example.question, example.passages, candidates)
    except InputError as error:  # not `located`: every call of a warm path comes here, and enters one function less
        raise InputError(f"{where}: {error}") from error


def _sequences(fitted: Fitted, options: ScoreOptions) -> tuple[Pairs, list[tuple[int, ...]]]:
    """Return the pairs to score, and where header and first passage end in the context of each."""
    pieces = fitted.pieces
    tail, empty = pieces.tail(), pieces.ends(0)
    sequences: Pairs = []
    ends: list[tuple[int, ...]] = []
    for order in fitted.design.permutations.tolist():
        body, end = pieces.body(order), pieces.ends(pieces.body_length(order[:1]))
        context = pieces.head + body + tail  # one list for all candidates, so that it is checked and converted once
        sequences.append(question_after(pieces, body))
        for candidate in pieces.candidates:
            sequences.append((context, candidate))
        ends += [end] * (1 + len(pieces.candidates))
        if options.score_passages:
            sequences.append((pieces.head, body))
            ends.append(empty)
    if options.closed_book:
        context = pieces.head + tail
        for candidate in pieces.candidates:
            sequences.append((context, candidate))
            ends.append(empty)
    if options.query_likelihood:
        for passage in range(len(pieces.passages) - len(fitted.dropped)):
            sequences.append(question_after(pieces, pieces.body([passage])))
            ends.append(pieces.ends(pieces.body_length([passage])))
    return sequences, ends


@dataclass(frozen=True)
class Fitted:
    """Pieces and orderings that fit the context.

    Attributes:
        pieces: the prompt's pieces.
        design: the orderings.
        dropped: indices of dropped passages.
        truncated: number of tokens cut off each passage.
    """

    pieces: PromptPieces
    design: Design
    dropped: list[int] = field(default_factory=list)
    truncated: dict[int, int] = field(default_factory=dict)


def fit(
    pieces: PromptPieces, options: ScoreOptions, limit: int | None, where: str, length: int | None = None
) -> Fitted:
    """Choose the orderings and, if a prompt over them is too long, shorten it by the policy.

    "drop_passages" drops passages from the end of the given order, the retriever's least likely, until every ordering
    fits. A design by name or function is rebuilt for the remaining passages (with no more rows than they allow);
    explicit orderings lose the entries of dropped passages. "truncate" cuts all passages to the largest common length
    at which every ordering fits.

    Args:
        pieces: the prompt's pieces.
        options: permutations, seed, policy (`on_overflow`), and whether the question is scored after each passage.
        limit: the model's context in tokens; None for no limit.
        where: the example, for messages.
        length: read only this many places of each ordering; None reads all.

    Raises:
        ContextOverflowError: if the longest prompt is too long with policy "error", or even at its shortest.
        InputError: if the orderings are invalid.
    """
    permutations, seed, policy = options.permutations, options.seed, options.on_overflow
    count = len(pieces.passages)
    whole = resolve(permutations, count, seed=seed)
    for kept in range(count, 0, -1):
        design = whole if kept == count else _design_for(permutations, whole, kept, count, seed, where)
        if length is not None and length < design.length:
            design = pruned(design, length)
        alone = kept if options.query_likelihood else 0
        longest = _longest(pieces, design, alone)
        if limit is None or longest <= limit:
            return Fitted(pieces, design, dropped=list(range(kept, count)))
        if policy == "error":
            raise ContextOverflowError(
                f"{where}: its longest prompt has {longest} tokens, the model's context {limit}; give fewer or shorter "
                "passages, or another on_overflow"
            )
        if policy == "truncate":
            return _truncated(pieces, design, alone, limit, where)
    raise ContextOverflowError(f"{where}: even one passage is too long for the model's context of {limit} tokens")


def _longest(pieces: PromptPieces, design: Design, alone: int) -> int:
    """Return the number of inputs of the longest sequence: all but the last token of a candidate, or of the question.

    The first `alone` passages are also read alone, with the question.
    """
    body = max(map(pieces.body_length, design.permutations.tolist()))
    asked = len(pieces.question_lead) + max(len(pieces.question) - 1, 0)
    after = len(pieces.tail()) + max(map(len, pieces.candidates)) - 1 if pieces.candidates else asked
    longest = body + after
    for passage in range(alone):
        longest = max(longest, pieces.body_length([passage]) + asked)
    return len(pieces.head) + longest


def _design_for(permutations: Spec, design: Design, kept: int, count: int, seed: int, where: str) -> Design:
    if isinstance(permutations, str):
        name, colon, number = permutations.partition(":")
        most = {
            "random": math.factorial(kept),
            "latin": math.factorial(kept - 1),
            "prefix_sharing": kept * (1 + (kept - 1) * (kept - 2) // 2),
        }.get(name.strip().replace("-", "_"))
        if colon and most is not None:
            wanted = int(number) // count * kept if "prefix" in name else int(number)
            permutations = f"{name}:{min(wanted, most)}"
        return resolve(permutations, kept, seed=seed)
    if callable(permutations):
        return resolve(permutations, kept, seed=seed)
    left = ([p for p in order if p < kept] for order in design.permutations.tolist())
    rows = [list(row) for row in dict.fromkeys(map(tuple, left))]  # orders that only differed in what was dropped
    require(
        len({len(row) for row in rows}) == 1,
        f"{where}: on_overflow='drop_passages': orderings of part of the passages would differ in length "
        f"after dropping passages {kept} and up; name a design, or give orderings of all passages",
    )
    return replace(explicit(rows, kept), name=design.name)


def _truncated(pieces: PromptPieces, design: Design, alone: int, limit: int, where: str) -> Fitted:
    low, high = 0, max(len(tokens) for passage in pieces.passages for tokens in passage)
    while low < high:  # the largest cap that fits
        cap = (low + high + 1) // 2
        if _longest(_capped(pieces, cap), design, alone) <= limit:
            low = cap
        else:
            high = cap - 1
    if low == 0:
        raise ContextOverflowError(f"{where}: no room for any passage in the model's context of {limit} tokens")
    used = sorted({*design.permutations.ravel().tolist(), *range(alone)})
    cut = {p: max(len(tokens) for tokens in pieces.passages[p]) - low for p in used}
    return Fitted(_capped(pieces, low), design, truncated={p: n for p, n in cut.items() if n > 0})


def _capped(pieces: PromptPieces, cap: int) -> PromptPieces:
    return replace(pieces, passages=[[tokens[:cap] for tokens in passage] for passage in pieces.passages])
