"""conflicts: do the passages of a question contradict each other, and which one is the odd one?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np

from fastreader.core.checked import checked
from fastreader.core.checks import check_int, expect
from fastreader.core.protocol import ScoringReader
from fastreader.core.tree import TreeStats
from fastreader.data.arguments import check_candidates, make_example
from fastreader.data.documents import PassageLike
from fastreader.data.types import Example
from fastreader.passages.conflicts.evidence import Evidence, gather, propose
from fastreader.passages.conflicts.judge import Verdict, judge
from fastreader.passages.conflicts.results import Conflicts
from fastreader.reader.prompts.template import Template, as_template
from fastreader.statistics.measures.answers import normalise

ReaderLike = ScoringReader | str | os.PathLike[str]
NOTHING_STATED = "no passage states a candidate word for word, so none is compared with the others"


@checked
def conflicts(
    reader: ReaderLike,
    question: str | Example,
    passages: Iterable[PassageLike] | None = None,
    candidates: Sequence[str] | None = None,
    *,
    template: Template | None = None,
    max_batch_tokens: int | None = None,
) -> Conflicts:
    """Compare what each passage alone makes of each candidate answer, and find the passage that contradicts the others.

    One packed pass scores every candidate without passages and after each passage alone, and the text of a passage
    that states a candidate with the other candidates in its place. A passage is odd if its text would be more probable
    with another candidate, and if it pulls the reader away from the candidate that readings and texts agree on. The
    texts find claims that do not fit the sentences around them, such as a replaced name; a false passage that is
    consistent in itself shows in its reading only.

    Args:
        reader: a `Reader`, a session of one, or anything `Reader.load` takes.
        question: a question; or an `Example`, which brings its passages and candidates.
        passages: the passages, `Passage` objects or texts.
        candidates: K answers that differ in SQuAD's normal form, at least two. None takes an `Example`'s, or if it has
            none, proposes names, numbers and phrases of the passages in a separate pass.
        template: the prompt's texts.
        max_batch_tokens: maximum number of tokens computed in one pass; None decides by free memory.

    Returns:
        The evidence and the odd passage. If no passage states a candidate, there is no consensus and no odd passage,
        and a `note` says so.

    Raises:
        InputError: if there is no passage, fewer than two candidates are given, or two of them are equal.
        ContextOverflowError: if a passage is longer than the model's context.
        OutOfBudgetError: if one prompt alone does not fit in memory.
    """
    check_int("max_batch_tokens", max_batch_tokens, optional=True)
    prompts = as_template(template)
    example = make_example(question, passages, candidates)
    given = list(example.candidates)
    if candidates is not None or given:
        check_candidates(given, False, "conflicts")
        differing = len({normalise(text) for text in given})
        expect(len(given) > 1 and differing == len(given), "candidates", "two or more that differ", given)
    if not isinstance(reader, ScoringReader):
        from fastreader.reader.reader import Reader

        reader = Reader.load(reader)
    tops, stats = None, TreeStats(0, 0, 0, 0)
    if not given:
        given, tops, stats = propose(reader, example, prompts, max_batch_tokens)
    note = ""
    if given:
        found = gather(reader, example, given, tops, prompts, max_batch_tokens)
        verdict = judge(found.logprobs - found.closed_book, found.texts)
        if all(claim is None for claim in found.claims):  # readings alone make no passage odd
            verdict = Verdict(verdict.supports, None, np.zeros(len(found.claims)))
            note = NOTHING_STATED
    else:
        count = len(example.passages)
        unknown: list[int | None] = [None] * count
        nothing = np.zeros((count, 0))
        found = Evidence(nothing, np.zeros(0), nothing, unknown, TreeStats(0, 0, 0, 0))
        verdict = Verdict(unknown, None, np.zeros(count))
        note = "no passage has a name, a number or a phrase to compare"
    return Conflicts(
        question=example.question,
        candidates=given,
        logprobs=found.logprobs,
        closed_book_logprobs=found.closed_book,
        texts=found.texts,
        claims=found.claims,
        supports=verdict.supports,
        consensus=verdict.consensus,
        odd_scores=verdict.odd_scores,
        proposed=tops is not None,
        stats=stats + found.stats,
        reader=reader.describe(),
        id=example.id,
        note=note,
    )
