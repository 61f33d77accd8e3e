"""The paper's ablations of SuRe (its Table 3): what candidates, summaries and evaluations give by themselves."""

from __future__ import annotations

from dataclasses import replace

from fastreader.core.protocol import TextOrTokens
from fastreader.data import Passage
from fastreader.reader.programs.requests import Program, score, write
from fastreader.statistics.answers import exact_match, f1
from fastreader.sure.candidates import propose
from fastreader.sure.cuts import note_cut
from fastreader.sure.program import sure
from fastreader.sure.replies import DONE, parse_candidates, short_answer, whole_words, without_done
from fastreader.sure.summaries import STAGE as SUMMARIES
from fastreader.sure.summaries import summarise
from fastreader.sure.task import Task
from fastreader.sure.texts import choices, letter, number_word
from fastreader.sure.types import Result
from fastreader.sure.variants.base import STAGE, answer_from
from fastreader.sure.variants.method import finished


def full(task: Task) -> Program[Result]:
    """SuRe with all that `use` names."""
    result = yield from sure(task)
    return result


def ranking_only(task: Task) -> Program[Result]:
    """SuRe without validity."""
    result = yield from sure(replace(task, settings=replace(task.settings, use=("ranking",))))
    return result


def validity_only(task: Task) -> Program[Result]:
    """SuRe without ranking."""
    result = yield from sure(replace(task, settings=replace(task.settings, use=("validity",))))
    return result


def with_summaries(task: Task) -> Program[Result]:
    """The base prompt with all conditional summaries behind the passages."""
    found = yield from propose(task)
    summaries = yield from summarise(task, found.candidates)
    t = task.settings.variant_template
    pieces = [
        t.summary.format(number=number, candidate=candidate, summary=text)
        for number, (candidate, text) in enumerate(zip(found.candidates, summaries.texts, strict=True), 1)
    ]
    reply = yield from answer_from(task, pieces)
    return finished(task, short_answer(reply), reply=reply, candidates=found.candidates, summaries=summaries.texts)


def multiple_choice(task: Task) -> Program[Result]:
    """The base prompt with the candidates as choices (Listing 7).

    mode="loglikelihood" takes the likeliest of the letters; mode="generate" reads the letter, the candidate, or else
    the reply itself.
    """
    found = yield from propose(task)
    candidates = found.candidates
    if not candidates:
        task.notes.append("there is no candidate, so there is no answer")
        return finished(task, "", candidates=[])
    limit = task.settings.max_answer_tokens
    prompts = task.fitting(STAGE, lambda passages: [choice_prompt(task, passages, candidates)], limit)
    if task.settings.mode == "loglikelihood":
        labels = [task.label(STAGE, letter(i)) for i in range(len(candidates))]
        scored = yield from score(STAGE, [(prompts[0], label) for label in labels])
        logprobs = [s.logprob for s in scored]
        return finished(
            task, candidates[logprobs.index(max(logprobs))], candidates=candidates, letter_logprobs=logprobs
        )
    replies = yield from write(STAGE, prompts, max_new_tokens=limit)
    note_cut(task, STAGE, replies[0], lambda text: chosen(text, candidates))
    reply = replies[0][0].text
    return finished(task, chosen(reply, candidates), candidates=candidates, reply=reply)


def chosen(reply: str, candidates: list[str]) -> str:
    """The candidate whose letter a reply has first, else one it has in it, else what it says."""
    marked = [(place, c) for i, c in enumerate(candidates) if (place := reply.lower().find(letter(i))) >= 0]
    if marked:
        return min(marked)[1]
    named = [c for c in candidates if whole_words(c).search(reply)]
    if named:
        return max(named, key=len)
    said = parse_candidates(reply, 1).candidates
    return said[0] if said else ""


def choice_prompt(task: Task, passages: list[Passage], candidates: list[str]) -> TextOrTokens:
    """The multiple-choice prompt over `passages`."""
    settings, t = task.settings, task.settings.variant_template
    pieces = [
        *settings.template.passages(passages),
        t.task_choices.format(words=number_word(settings.words)),
        t.question_choices.format(question=task.question, choices=choices(candidates)),
    ]
    return task.prompt(STAGE, pieces)


def summary_then_predict(task: Task) -> Program[Result]:
    """A summary that no candidate conditions (Listing 6), then the base prompt over it alone."""
    summary = yield from generic_summary(task)
    reply = yield from answer_from(replace(task, passages=[Passage(summary)]))
    return replace(finished(task, short_answer(reply), reply=reply, summary=summary), num_passages=len(task.passages))


def generic_summary(task: Task) -> Program[str]:
    """A summary of the passages for the question."""
    limit = task.settings.max_summary_tokens
    last = task.settings.variant_template.generic_summary.format(question=task.question)
    prompts = task.fitting(
        SUMMARIES,
        lambda passages: [task.prompt(SUMMARIES, [*task.settings.template.passages(passages), last])],
        limit,
    )
    replies = yield from write(SUMMARIES, prompts, max_new_tokens=limit, stop=(DONE,))
    note_cut(task, SUMMARIES, replies[0])
    summary = without_done(replies[0][0].text)
    if not summary:
        task.notes.append("the summary is empty")
    return summary


def oracle(task: Task) -> Program[Result]:
    """The candidate that is right, or nearest: exact match, then F1. A bound on choosing among candidates."""
    found = yield from propose(task)
    best = max(
        found.candidates,
        key=lambda candidate: (exact_match(candidate, task.answers), f1(candidate, task.answers)),
        default="",
    )
    return finished(task, best, candidates=found.candidates)
