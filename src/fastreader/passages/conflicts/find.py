"""conflicts: do the passages of a question contradict each other, and which one is the odd one?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, check_texts, expect, require
from fastreader.core.protocol import ScoringReader
from fastreader.core.tree import TreeStats
from fastreader.data.arguments import check_candidates, make_example
from fastreader.data.documents import PassageLike
from fastreader.data.types import Example
from fastreader.passages.conflicts.evidence import ConflictScores, gather, propose, undecided
from fastreader.passages.conflicts.forms import key_of
from fastreader.passages.conflicts.judge import Evidence, Verdict, judge
from fastreader.passages.conflicts.results import FLAG, Conflicts
from fastreader.passages.conflicts.statements import Statements, statements
from fastreader.reader.prompts.template import Template, as_template
from fastreader.scoring.known_passages import with_cache

if TYPE_CHECKING:
    from fastreader.models.passage_cache.cache import PassageCache

ReaderLike = ScoringReader | str | os.PathLike[str]
NOTHING_STATED = "no passage states a candidate, so none is compared with the others"
AS_MUCH = 0.8  # of the share of the question's words
NOTHING_PROPOSED = "not enough to say: no passage has a phrase of the kind that the question asks for"
NONE_AGREE = "not enough to say: no two passages state the same proposed answer"
ONLY_PROPOSED = "the answers are proposed from the passages, and two may both be right; pass candidates to be sure"
TIED = "equally many passages state different answers, so the odd one is less certain than elsewhere"
EQUAL = "equal passages are counted separately"
ONE_PROPOSED = "not enough to say: the passages propose one answer only"


@checked
def conflicts(
    reader: ReaderLike,
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    candidates: Sequence[str] | None = None,
    *,
    aliases: Mapping[str, Sequence[str]] | None = None,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
    cache: PassageCache | None = None,
) -> Conflicts:
    """Compare what the passages say of each candidate answer, and find the passage that contradicts the others.

    The evidence is, in this order: which candidates each passage's text states or denies; what the reader makes of each
    candidate after each passage alone; and, only if equally many passages state different candidates, how well each
    text fits another candidate in the place of its claim. A model with eight parameters, fitted on made questions,
    turns it into probabilities (`fastreader.passages.conflicts.judge`). All scores come from one packed pass.

    A statement is found in any spelling of case, accents, hyphens and possessives, with numbers in digits or words, and
    with dates in any order. A candidate inside a longer candidate is not stated by it ("York" in "New York").
    Candidates exclude each other: give other names of the same answer as `aliases`.

    Args:
        reader: a `Reader`, a session of one, or anything `Reader.load` takes.
        question: a question; or an `Example`, which brings its passages and candidates.
        passages: the passages, `Passage` objects or texts.
        candidates: K different answers, at least two. None takes an `Example`'s, or if it has none, proposes names,
            numbers and phrases of the passages in a separate pass.
        aliases: other names of a candidate, by candidate: ``{"Netherlands": ["Holland"]}``.
        template: the prompt's texts.
        max_batch_tokens: maximum number of tokens computed in one pass; None decides by free memory.
        cache: keys and values of passages that were read before, see `PassageCache`; None reads all.

    Returns:
        The evidence, the probabilities and the odd passage. If no passage states or denies a candidate, there is no
        consensus and no odd passage, and a `note` says so; nor if no two passages state the same proposed candidate. Of
        proposed candidates only passages count that are about the question as much as those that agree.

    Raises:
        InputError: if there is no passage, fewer than two candidates are given, two of them are the same answer, or
            an alias is empty, belongs to no candidate, or is another candidate.
        ContextOverflowError: if a passage is longer than the model's context.
        OutOfBudgetError: if one prompt alone does not fit in memory.
    """
    check_int("max_batch_tokens", max_batch_tokens, optional=True)
    prompts = as_template(template)
    example = make_example(question, passages, candidates)
    given = list(example.candidates)
    if candidates is not None or given:
        check_candidates(given, False, "conflicts")
        expect(len(given) > 1, "candidates", "two or more that differ", given)
    names = _aliases_of(given, aliases)
    if not isinstance(reader, ScoringReader):
        from fastreader.reader.reader import Reader

        reader = Reader.load(reader)
    reader = with_cache(reader, cache)
    own, stats = not given, TreeStats(0, 0, 0, 0)
    if own:
        given, names, stats = propose(reader, example, prompts, max_batch_tokens)
    said = statements(example.question, example.passages, given, names)
    if given:
        found = gather(reader, example, given, said, prompts, max_batch_tokens)
    else:
        nothing = np.zeros((len(example.passages), 0))
        found = ConflictScores(nothing, np.zeros(0), nothing, [None] * len(nothing), TreeStats(0, 0, 0, 0))
    evidence, note = _evidence(said, found), ""
    if own and len(given) > 1:
        evidence = comparable(evidence)
    if own and len(given) < 2:
        note = ONE_PROPOSED if given else NOTHING_PROPOSED
    elif own and (evidence.stated == 1).sum(axis=0).max() < 2:
        note, evidence = NONE_AGREE, evidence._replace(stated=0 * said.stated, denied=said.denied & False)
    verdict = judge(evidence)
    if not note and verdict.probability >= FLAG:
        texts = {(passage.title, passage.text) for passage in example.passages}
        equal = len(texts) < len(example.passages)
        note = "; ".join([ONLY_PROPOSED] * own + [TIED] * bool(undecided(said)) + [EQUAL] * equal)
    if verdict.consensus is None:
        note = note or NOTHING_STATED
    return _result(example, given, said, found, verdict, (own, stats, reader.describe(), note))


def comparable(evidence: Evidence) -> Evidence:
    """Leave out what passages state that are less about the question than those that agree on a proposed answer.

    Proposals are names, dates and phrases that need not exclude each other: another passage's place or person is no
    contradiction, unless the passage is about the question as much.
    """
    agreed = evidence.stated[:, (evidence.stated == 1).sum(axis=0).argmax()] == 1
    own = (evidence.about >= AS_MUCH * evidence.about[agreed].max(initial=0.0))[:, None]
    return evidence._replace(stated=evidence.stated * own, denied=evidence.denied & own)


def _evidence(said: Statements, found: ConflictScores) -> Evidence:
    ratios = found.logprobs - found.closed_book
    claims = np.array([-1 if claim is None else claim for claim in found.claims], dtype=np.int64)
    return Evidence(said.stated, said.denied, said.about, ratios, found.texts, claims)


def _result(
    example: Example,
    candidates: list[str],
    said: Statements,
    found: ConflictScores,
    verdict: Verdict,
    about: tuple[bool, TreeStats, dict[str, str], str],
) -> Conflicts:
    proposed, stats, reader, note = about
    return Conflicts(
        question=example.question,
        candidates=candidates,
        logprobs=found.logprobs,
        closed_book_logprobs=found.closed_book,
        texts=found.texts,
        stated=said.stated,
        denied=said.denied,
        claims=found.claims,
        supports=verdict.supports,
        probabilities=verdict.probabilities,
        consensus=verdict.consensus,
        odd_scores=verdict.odd_scores,
        score=verdict.probability,
        proposed=proposed,
        stats=stats + found.stats,
        reader=reader,
        id=example.id,
        note=note,
    )


def _aliases_of(candidates: Sequence[str], aliases: Mapping[str, Sequence[str]] | None) -> dict[str, list[str]]:
    """Return the aliases by candidate. Reject names of two candidates."""
    found: dict[str, list[str]] = {}
    owners: dict[str, str] = {}
    for candidate in candidates:
        key = key_of(candidate)
        pair = f"{owners.get(key)!r} and {candidate!r}"
        require(key not in owners, f"candidates: expected two or more that differ, got {pair}")
        owners[key] = candidate
    for candidate, names in (aliases or {}).items():
        expect(candidate in candidates, "aliases", f"candidates as keys, of {list(candidates)}", candidate)
        check_texts(f"aliases[{candidate!r}]", list(names))
        for name in names:
            owner = owners.setdefault(key_of(name), candidate)
            require(owner == candidate, f"aliases[{candidate!r}]: {name!r} is also a name of the candidate {owner!r}")
        found[candidate] = list(names)
    return found
