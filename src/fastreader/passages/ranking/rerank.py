"""rerank: the passages of one question, or of many, in order of relevance, by any method."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from fastreader.core.checked import checked
from fastreader.core.checks import check_choice, check_int, check_text, expect, require
from fastreader.core.progress import showing, track
from fastreader.core.protocol import ScoringReader
from fastreader.core.tree import TreeStats
from fastreader.data.documents import as_passages
from fastreader.data.types import Example
from fastreader.moi.baselines import METHODS
from fastreader.moi.baselines.ordering import NOTHING_READ, Ordering
from fastreader.moi.calibration.store import find
from fastreader.moi.reorder.rerank import rerank as moi_rerank
from fastreader.passages.ranking.relevance import RELEVANCE, by_relevance
from fastreader.passages.ranking.results import Reranked, RerankResult, by_value, ranking_of, readable
from fastreader.passages.ranking.yes_no import YES_NO, by_yes_no
from fastreader.reader.prompts.template import as_template
from fastreader.scoring.known_passages import with_cache
from fastreader.scoring.query_likelihood import query_likelihoods

if TYPE_CHECKING:
    from fastreader.models.passage_cache.cache import PassageCache
    from fastreader.moi.quantities.position_bias import PositionBias
    from fastreader.reader.prompts.template import Template

LIKELIHOOD, MOI = "query_likelihood", "moi"
RERANKERS = (LIKELIHOOD, RELEVANCE, YES_NO, MOI, *METHODS)
NOT_READ = "beyond the passages that the method looks at"
_MOI_SETTINGS = ("prune", "prune_mass", "stopping", "permutations", "max_passages", "pool")

_SETTINGS: dict[str, Sequence[str]] = {
    LIKELIHOOD: (),
    RELEVANCE: (),
    YES_NO: ("prompt", "calibrate"),
    MOI: _MOI_SETTINGS,
}

ReaderLike = ScoringReader | str | os.PathLike[str] | tuple[Any, Any]


@overload
def rerank(
    reader: ReaderLike, question: str | Example, passages: Iterable[Any] | None = None, **options: Any
) -> Reranked: ...


@overload
def rerank(
    reader: ReaderLike, question: Sequence[str | Example], passages: Iterable[Any] | None = None, **options: Any
) -> list[Reranked]: ...


@checked
def rerank(
    reader: ReaderLike,
    question: str | Example | Sequence[str | Example],
    passages: Iterable[Any] | None = None,
    *,
    method: str | None = None,
    top_n: int | None = None,
    instruction: str | None = None,
    template: Template | None = None,
    bias: PositionBias | None = None,
    uncalibrated: bool = False,
    seed: int = 0,
    on_overflow: str = "truncate",
    max_batch_tokens: int | None = None,
    progress: bool | None = None,
    cache: PassageCache | None = None,
    **settings: Any,
) -> Reranked | list[Reranked]:
    """Order passages by their relevance to a question.

    A model that was trained for it (`Reader.is_reranker`) scores by "relevance": its own prompt, labels or head, with
    its raw score as `value`, and the sigmoid of that as relevance.

    With any other reader a passage is worth what it gains the question: ``v = (log P(question | passage) -
    log P(question)) / tokens of the question``, in nats, and its relevance is ``1 / (1 + exp(-v))``. "yes_no" asks the
    reader whether the passage helps, and ``v`` is ``log P(yes) - log P(no)``. In all three a passage's relevance does
    not depend on the other passages, and the passages of all questions are scored together, in as few passes as memory
    allows.

    Other methods compare the passages of a question with each other. "moi" gives utilities against their mean, in nats,
    through the same sigmoid. The baselines (`moi.baselines.METHODS`) give scores in their own units, or only an order;
    their relevance is the place, from 1 down to 1/n.

    Args:
        reader: a reader, a session of one, or what `Reader.load` takes.
        question: a question, or a list of them; an `Example` brings its passages.
        passages: texts, `Passage`s, mappings, documents of LangChain or Haystack, nodes of LlamaIndex, hits of
            Elasticsearch or Qdrant, pairs (document, score) of these, in the retriever's order; for a list of
            questions, a list of such lists. None for `Example`s.
        method: "relevance", "query_likelihood", "yes_no", "moi", or a baseline's name ("first-token", "pairwise", ...).
            None is "relevance" for a model trained for it, else "query_likelihood".
        top_n: return at most this many passages; None returns all.
        instruction: for "relevance" and "yes_no": what makes a passage relevant, or the name of one of a relevance
            model's own prompts. None takes the default.
        template: the prompt's texts.
        bias: for "moi" and baselines that place by it: a calibration. "moi" without one takes the largest
            for this reader and template that is for no more passages than there are; the others follow in their order.
        uncalibrated: let "moi" rank by query likelihood if there is no calibration; a `note` then says so.
        seed: of methods that draw.
        on_overflow: "truncate" cuts a passage that does not fit the model's context, and says so in its `note`;
            "error" raises. Baselines always raise.
        max_batch_tokens: same as `score_permutations`.
        progress: show a progress bar; None shows one on a terminal, for a single question after a second.
        cache: keys and values of passages that were read before, see `PassageCache`: "query_likelihood" then computes
            only the question after them. None reads all. Not for "relevance" and "yes_no", whose prompts differ.
        settings: further settings: of "yes_no" `prompt` (`YesNoPrompt`) and `calibrate` (subtract the log-odds for
            an empty passage), of "moi" (`moi.rerank`) or of the baseline.

    Returns:
        The ranking, or a list of them for a list of questions. Passages without text come last, with relevance 0 and
        a `note`; so do those that MoI did not look at. No passages give an empty ranking.

    Raises:
        InputError: if an argument has another type, a passage has no text field, the method is unknown or lacks what it
            needs, or "moi" has no calibration.
        ContextOverflowError: if a question is longer than the model's context, or a passage by "error".
    """
    name = None if method is None else _named(method)
    check_choice("on_overflow", on_overflow, ("error", "truncate"))
    check_int("top_n", top_n, optional=True)
    one = isinstance(question, (str, Example))
    if isinstance(question, (str, Example)):
        questions = _questions([question], [passages])
    else:
        questions = _questions(question, passages, plural=True)
    opened = with_cache(_opened(reader), cache)
    if name is None:
        name = RELEVANCE if getattr(opened, "is_reranker", False) else LIKELIHOOD
    _check_settings(name, settings)
    alone = cache is None or name not in (RELEVANCE, YES_NO)
    expect(alone, "cache", f"None, since {name!r} reads the passage after the question", cache)
    instructed = instruction is None or name in (RELEVANCE, YES_NO)
    expect(instructed, "instruction", f"None, since {name!r} has a template instead", instruction)
    shared: dict[str, Any] = {"template": as_template(template), "max_batch_tokens": max_batch_tokens}
    together = one or name in (RELEVANCE, YES_NO)  # the bar of the passes moves, that of the questions would not
    bar = track("ranking", len(questions), "questions", False if together else progress)
    with bar as advance, showing(progress):
        if name in (RELEVANCE, YES_NO):
            both: Any = {"on_overflow": on_overflow, "max_batch_tokens": max_batch_tokens, "instruction": instruction}
            found = (by_relevance if name == RELEVANCE else by_yes_no)(opened, questions, **both, **settings)
            advance(len(questions))
        elif name == LIKELIHOOD:
            found = _by_likelihood(opened, questions, on_overflow=on_overflow, advance=advance, **shared)
        else:
            run = partial(_by_moi, uncalibrated=uncalibrated, on_overflow=on_overflow) if name == MOI else _by_baseline
            found = []
            for example in questions:
                found.append(run(opened, example, name, bias=bias, seed=seed, **shared, **settings))
                advance(1)
    if top_n is not None:
        found = [replace(ranking, results=ranking.results[:top_n]) for ranking in found]
    return found[0] if one else found


async def arerank(*arguments: Any, **options: Any) -> Any:
    """Run `rerank` in a thread, so that the event loop stays free.

    A task that is cancelled stops waiting; the scoring itself still runs to its end.
    """
    return await asyncio.to_thread(rerank, *arguments, **options)


def _opened(reader: Any) -> ScoringReader:
    if isinstance(reader, ScoringReader):
        return reader
    from fastreader.reader.reader import Reader

    return Reader.load(reader)


def _questions(questions: Sequence[Any], passages: Any, plural: bool = False) -> list[Example]:
    """Return examples with passages, of which there may be none, or none with text."""
    lists: list[Any] = [None] * len(questions) if passages is None else list(passages)
    several = "a list of passages for each question, or None for a list of Examples"
    expect(len(lists) == len(questions), "passages", several, f"{len(lists)} for {len(questions)} questions")
    examples = []
    for i, (question, given) in enumerate(zip(questions, lists, strict=True)):
        at = f"[{i}]" if plural else ""
        text = question.question if isinstance(question, Example) else question
        check_text(f"question{at}", text)
        if isinstance(question, Example):
            expect(given is None, f"passages{at}", "None with an Example, which has its own", given)
            examples.append(replace(question, passages=as_passages(question.passages)))
            continue
        examples.append(Example(text, as_passages(given, name=f"passages{at}")))
    return examples


def _named(method: str) -> str:
    """Return the name of a method, of which a baseline's may be written with underscores."""
    name = method if method in RERANKERS else method.replace("_", "-")
    check_choice("method", name, RERANKERS)
    return name


def _check_settings(method: str, settings: dict[str, Any]) -> None:
    own = _SETTINGS[method] if method in _SETTINGS else sorted(METHODS[method].settings)
    for name in settings:
        expect(name in own, name, f"a setting of {method!r} ({', '.join(own) or 'it has none'})", settings[name])


def _by_likelihood(
    reader: ScoringReader, questions: Sequence[Example], *, template: Template, **options: Any
) -> list[Reranked]:
    first = template.question_first
    expect(not first, "template", "passages before the question, whose likelihood after each is compared", template)
    kept_lists = [readable(example) for example in questions]
    jobs = [
        (example.question, [example.passages[i] for i in kept], f"question {number}")
        for number, (example, kept) in enumerate(zip(questions, kept_lists, strict=True))
        if kept
    ]
    likelihoods = query_likelihoods(reader, jobs, template, without=True, **options)
    rankings = []
    for example, kept in zip(questions, kept_lists, strict=True):
        if not kept:
            rankings.append(ranking_of(example, [], LIKELIHOOD, NOTHING_READ))
            continue
        found = next(likelihoods)
        assert found.without is not None
        gains = (found.logprobs - found.without) / found.num_tokens
        rankings.append(by_value(example, kept, gains, found.truncated, LIKELIHOOD, found.stats))
    return rankings


def _by_moi(
    reader: ScoringReader,
    example: Example,
    method: str,
    *,
    bias: PositionBias | None,
    template: Template,
    uncalibrated: bool,
    on_overflow: str,
    max_passages: int = 10,
    **options: Any,
) -> Reranked:
    kept = readable(example)
    if not kept:
        return ranking_of(example, [], method, NOTHING_READ)
    most = min(len(kept), max_passages)
    if bias is not None:
        most = bias.num_passages
    elif most > 1:
        most = _largest_calibrated(reader, template, most) or (most if uncalibrated else 0)
        require(
            bool(most),
            f"bias: method 'moi' needs a calibration of {reader.name} with this template for 2 to "
            f"{min(len(kept), max_passages)} passages; measure one (`fastreader calibrate`), or pass uncalibrated=True",
        )
    given = replace(example, passages=[example.passages[i] for i in kept])
    ranked = moi_rerank(
        reader, given, bias=bias, max_passages=most, template=template, on_overflow=on_overflow, **options
    )
    results = []
    for p in ranked.by_utility():
        note = NOT_READ if p.utility is None else ""
        results.append(RerankResult(kept[p.index], p.passage, p.relevance or 0.0, p.utility, note))
    cost = ranked.cost
    stats = TreeStats(len(kept), cost.total_tokens, cost.computed_tokens, 0, cost.cached_tokens)
    return ranking_of(example, results, method, stats, ranked.note)


def _largest_calibrated(reader: ScoringReader, template: Template, most: int) -> int | None:
    about, digest = reader.describe(), template.digest()
    return next((n for n in range(most, 1, -1) if find(about, digest, n) is not None), None)


def _by_baseline(reader: ScoringReader, example: Example, method: str, **settings: Any) -> Reranked:
    kept = readable(example)
    if not kept:
        return ranking_of(example, [], method, NOTHING_READ)
    found: Ordering = METHODS[method](reader, example.question, [example.passages[i] for i in kept], **settings)
    order = found.order
    if found.scores is not None:  # a reading order may put the best at the ends
        order = sorted(range(len(kept)), key=lambda i: -float(found.scores[i]))  # type: ignore[index]
    results = []
    for place, i in enumerate(order):
        value = None if found.scores is None else float(found.scores[i])
        results.append(RerankResult(kept[i], example.passages[kept[i]], (len(kept) - place) / len(kept), value))
    return ranking_of(example, results, method, found.stats)
