"""Prepare an example for scoring: its tokens, its sequences and its plan."""

from __future__ import annotations

from dataclasses import dataclass

from fastreader.core.checks import require
from fastreader.core.protocol import ScoringReader
from fastreader.core.tree import PrefixTree, TreeStats
from fastreader.data import Example
from fastreader.data.arguments import check_candidates
from fastreader.errors import InputError, OutOfBudgetError
from fastreader.permutations import variable_length
from fastreader.reader.prompts.pieces import PromptPieces, encode
from fastreader.scoring.options import ScoreOptions
from fastreader.scoring.overflow import Fitted, fit
from fastreader.scoring.query_likelihood import question_after

Pairs = list[tuple[list[int], list[int]]]


@dataclass(frozen=True)
class ScoringJob:
    """One example, ready to run.

    Attributes:
        example: what is scored.
        options: and how.
        fitted: orderings and pieces that fit the context.
        sequences: for each ordering the question, each candidate and (with `score_passages`) the passages; after all
            orderings the candidates without passages, then the question after each passage alone.
        trees: the passes that score them.
    """

    example: Example
    options: ScoreOptions
    fitted: Fitted
    sequences: Pairs
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
    sequences = _sequences(fitted, options)
    try:
        trees = reader.plan(sequences, options.max_batch_tokens)
    except (InputError, OutOfBudgetError) as error:
        raise type(error)(f"{where}: {error}") from error
    return ScoringJob(example, options, fitted, sequences, trees)


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


def _sequences(fitted: Fitted, options: ScoreOptions) -> Pairs:
    pieces = fitted.pieces
    tail = pieces.tail()
    sequences: Pairs = []
    for order in fitted.design.permutations.tolist():
        body = pieces.body(order)
        context = pieces.head + body + tail  # one list for all candidates, so that it is checked and converted once
        sequences.append(question_after(pieces, body))
        for candidate in pieces.candidates:
            sequences.append((context, candidate))
        if options.score_passages:
            sequences.append((pieces.head, body))
    if options.closed_book:
        context = pieces.head + tail
        for candidate in pieces.candidates:
            sequences.append((context, candidate))
    if options.query_likelihood:
        for passage in range(len(pieces.passages) - len(fitted.dropped)):
            sequences.append(question_after(pieces, pieces.body([passage])))
    return sequences
