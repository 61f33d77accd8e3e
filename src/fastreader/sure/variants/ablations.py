"""Run the paper's baselines (Listings 5 and 9) and ablations (Table 3), which use parts of SuRe or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from fastreader.core.protocol import TextOrTokens
from fastreader.data import Passage
from fastreader.reader.programs.requests import Program, score, write
from fastreader.statistics.measures.answers import exact_match, f1
from fastreader.sure.program import propose, summarise, sure
from fastreader.sure.replies import DONE, parse_candidates, short_answer, whole_words, without_done
from fastreader.sure.task import Task, finished
from fastreader.sure.templates import LETTERS, lettered, number_word
from fastreader.sure.types import Result

STAGE = "answers"


def base(task: Task) -> Program[Result]:
    """Answer from passages, instruction and question."""
    reply = yield from answer_from(task)
    return finished(task, short_answer(reply), reply=reply)


def no_retrieval(task: Task) -> Program[Result]:
    """Answer by the base prompt without passages."""
    return base(replace(task, passages=[]))


def answer_from(task: Task, between: Sequence[str] = ()) -> Program[str]:
    """Return the reply to the base prompt, with more pieces between passages and instruction."""
    tail = [*between, *base_pieces(task)]
    prompts = task.fitting(STAGE, partial(task.after_passages, STAGE, [tail]), task.settings.max_answer_tokens)
    [reply] = yield from write_answers(task, prompts)
    return reply


def base_pieces(task: Task) -> list[str]:
    """Return the pieces of the base prompt after the passages: instruction, shots and question."""
    settings, t = task.settings, task.settings.variant_template
    shots = [settings.template.shot.format(question=q, answer=a) for q, a in settings.shots]
    return [t.task.format(words=number_word(settings.words)), *shots, t.question.format(question=task.question)]


def write_answers(task: Task, prompts: Sequence[TextOrTokens]) -> Program[list[str]]:
    """Return the reply to each prompt, of the length of a short answer."""
    replies = yield from write(STAGE, prompts, max_new_tokens=task.settings.max_answer_tokens)
    task.note_cut(STAGE, [reply for reply, *_ in replies], short_answer)
    return [reply.text for reply, *_ in replies]


def ranking_only(task: Task) -> Program[Result]:
    """Answer by SuRe without validity."""
    return sure(replace(task, settings=replace(task.settings, use=("ranking",))))


def validity_only(task: Task) -> Program[Result]:
    """Answer by SuRe without ranking."""
    return sure(replace(task, settings=replace(task.settings, use=("validity",))))


def with_summaries(task: Task) -> Program[Result]:
    """Answer by the base prompt with all conditional summaries after the passages."""
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
    """Answer by the base prompt with the candidates as choices (Listing 7).

    mode="loglikelihood" takes the likeliest of the letters; mode="generate" looks in the reply for a letter, then for a
    candidate, and else takes the reply itself.
    """
    found = yield from propose(task)
    candidates = found.candidates
    if not candidates:
        task.notes.append("there is no candidate, so there is no answer")
        return finished(task, "", candidates=[])
    settings, t = task.settings, task.settings.variant_template
    ask = [
        t.task_choices.format(words=number_word(settings.words)),
        t.question_choices.format(question=task.question, choices=" ".join(lettered(candidates))),
    ]
    [prompt] = task.fitting(STAGE, partial(task.after_passages, STAGE, [ask]), settings.max_answer_tokens)
    if settings.mode == "loglikelihood":
        labels = [task.label(STAGE, letter) for letter in LETTERS[: len(candidates)]]
        scored = yield from score(STAGE, [(prompt, label) for label in labels])
        logprobs = [s.logprob for s in scored]
        best = candidates[logprobs.index(max(logprobs))]
        return finished(task, best, candidates=candidates, letter_logprobs=logprobs)
    [[reply]] = yield from write(STAGE, [prompt], max_new_tokens=settings.max_answer_tokens)
    task.note_cut(STAGE, [reply], lambda text: chosen(text, candidates))
    return finished(task, chosen(reply.text, candidates), candidates=candidates, reply=reply.text)


def chosen(reply: str, candidates: list[str]) -> str:
    """Return the candidate whose letter comes first in a reply, else one that it names, else the reply's own answer."""
    lower = reply.lower()
    marked = [(lower.index(mark), c) for mark, c in zip(LETTERS, candidates, strict=False) if mark in lower]
    if marked:
        return min(marked)[1]
    named = [c for c in candidates if whole_words(c).search(reply)]
    if named:
        return max(named, key=len)
    return next(iter(parse_candidates(reply, 1).candidates), "")


def summary_then_predict(task: Task) -> Program[Result]:
    """Answer by the base prompt over a summary that depends on no candidate (Listing 6)."""
    summary = yield from generic_summary(task)
    reply = yield from answer_from(replace(task, passages=[Passage(summary)]))
    return finished(task, short_answer(reply), reply=reply, summary=summary)


def generic_summary(task: Task) -> Program[str]:
    """Return a summary of the passages for the question."""
    settings = task.settings
    tail = [settings.variant_template.generic_summary.format(question=task.question)]
    build = partial(task.after_passages, "summaries", [tail])
    prompts = task.fitting("summaries", build, settings.max_summary_tokens)
    [[reply]] = yield from write("summaries", prompts, max_new_tokens=settings.max_summary_tokens, stop=(DONE,))
    task.note_cut("summaries", [reply])
    summary = without_done(reply.text)
    if not summary:
        task.notes.append("the summary is empty")
    return summary


def oracle(task: Task) -> Program[Result]:
    """Answer by the candidate nearest to a right answer by exact match, then F1: a bound on choosing among them."""
    found = yield from propose(task)

    def closeness(candidate: str) -> tuple[float, float]:
        return exact_match(candidate, task.answers), f1(candidate, task.answers)

    return finished(task, max(found.candidates, key=closeness, default=""), candidates=found.candidates)
